"""Keys with which DeepSpeed does not start: those of older releases, and those that it never had in
a section that it reads strictly."""

from __future__ import annotations

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.job_keys import JobTree, look_up
from zerotools.jobs.imports.reading.reader import ConfigReading
from zerotools.jobs.imports.reading.report import KeyOutcome
from zerotools.jobs.launcher_keys.deepspeed_releases import STRICT, is_off, release_text, removal
from zerotools.jobs.text.document import Trail

_COMMENTS = ("_", "/", "#")


def read_removed(reading: ConfigReading) -> None:
    """Remove disabled keys, and refuse enabled ones, for engine deepspeed."""
    if reading.engine != "deepspeed":
        return
    now = release_text(reading.release)
    for name in list(reading.remaining):
        gone = removal(name, reading.release)
        if gone is None:
            continue
        given = reading.remaining.pop(name)
        if is_off(given.value):
            reading.settled[name] = None
            why = f"is off, and left out: DeepSpeed {now} does not start with it"
            reading.row(KeyOutcome.IGNORED, given, None, why)
        else:
            reading.findings.wrong.append(
                f"{given.said} = {show(given.value)}: DeepSpeed {now} no longer accepts it "
                f"(since {release_text(gone.since)}) and does not start; {gone.instead}"
            )


def drop_comments(tree: JobTree) -> None:
    """Leave out of `tree` the comments that people write as keys, where DeepSpeed is strict."""
    for section in STRICT:
        table = look_up(tree, section)
        if isinstance(table, dict):
            for name in [name for name in table if name.startswith(_COMMENTS)]:
                del table[name]


def is_strict(trail: Trail) -> bool:
    """Return whether DeepSpeed refuses an unknown key at `trail`."""
    return ".".join(trail[:-1]) in STRICT and not trail[-1].startswith(_COMMENTS)

"""How many ranks a launcher starts, by its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.report import Findings, KeyOutcome, ReportRow
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.imports.recipes.launcher_numa import READ_HERE
from zerotools.jobs.launcher_keys.launch_flags import ONE_RANK, SEVERAL_MACHINES, WORDS_AFTER

_COUNTS = {
    "deepspeed": ("num_gpus", "num_accelerators"),
    "torchrun": ("nproc_per_node",),
}
_MACHINES = ("num_nodes", "nnodes")
_EVERY = ("gpu", "auto")
_STARTS = "how the launcher starts the ranks; the daemon does"


def ranks_of(
    launcher: str,
    options: Mapping[str, ConfigValue],
    visible: ConfigValue | None,
    findings: Findings,
) -> tuple[ConfigValue | None, bool]:
    """Return the number of ranks, and whether the launcher starts one on every GPU without it.

    Every option gets its row. accelerate's are not read here.
    """
    if launcher == "accelerate":
        count = None if visible is None else _listed(visible)
        _row(findings, visible, "the daemon picks GPUs that are free")
        says_it = {"num_processes", "config_file"} & options.keys()
        return (None if says_it else count), False
    told = [
        _count(options[name], findings) for name in _COUNTS.get(launcher, ()) if name in options
    ]
    count = next(iter(told), None)
    if count is None and "include" in options:
        count = _included(options["include"])
    if count is None and visible is not None and launcher == "deepspeed":
        count = _listed(visible)
    _row(findings, visible, "the daemon picks GPUs that are free")
    for name, given in options.items():
        _judge(launcher, name, given, findings)
    if launcher == "python" or (launcher == "torchrun" and count is None and not told):
        return ConfigValue("ranks", launcher, "", 1), False
    return count, count is None


def console_ranks(
    program: str,
    count: ConfigValue | None,
    visible: ConfigValue | None,
    findings: Findings,
) -> tuple[ConfigValue | None, bool]:
    """Do the same as `ranks_of` for a program that starts its ranks itself: `count` of them, if it
    is set."""
    _row(findings, visible, "the daemon picks GPUs that are free")
    if count is not None:
        return _count(count, findings), False
    if program in ONE_RANK:
        return ConfigValue("ranks", program, "", 1), False
    ranks = None if visible is None else _listed(visible)
    return ranks, ranks is None


def _row(findings: Findings, given: ConfigValue | None, why: str) -> None:
    if given is not None:
        row = ReportRow(KeyOutcome.IGNORED, given.title, given.place, given.value, None, why)
        findings.rows.append(row)


def _count(given: ConfigValue, findings: Findings) -> ConfigValue | None:
    text = str(given.value)
    if text in _EVERY:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 100_000):
        what = f"{given.said} = {show(given.value)}: must be a whole number, 1 at least"
        findings.wrong.append(what)
        return None
    return replace(given, value=int(text))


def _listed(given: ConfigValue) -> ConfigValue | None:
    entries = [entry for entry in str(given.value).split(",") if entry.strip()]
    return replace(given, value=len(entries)) if entries and "-1" not in entries else None


def _included(given: ConfigValue) -> ConfigValue | None:
    """Return `localhost:0,1`, or `host` for all of its GPUs."""
    _, _, slots = str(given.value).partition(":")
    return _listed(replace(given, value=slots)) if "@" not in str(given.value) else None


def _judge(launcher: str, name: str, given: ConfigValue, findings: Findings) -> None:
    several = name in _MACHINES and str(given.value) not in ("1", "1:1", "-1")
    hosts = name == "include" and "@" in str(given.value)
    if several or hosts:
        findings.unsupported.append(f"{given.said} = {show(given.value)}: {SEVERAL_MACHINES}")
    elif name in (*_COUNTS.get(launcher, ()), "include", *READ_HERE.get(launcher, ())):
        return  # its row is the claim's
    elif name in WORDS_AFTER[launcher]:
        _row(findings, given, _STARTS)
    else:
        why = f"{launcher} has no such option"
        row = ReportRow(KeyOutcome.UNKNOWN, given.title, given.place, given.value, None, why)
        findings.rows.append(row)

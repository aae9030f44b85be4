"""`[script]`: the user's own training program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key
from zerotools.jobs.text.exec_limits import too_long

LAUNCHERS = ("plain", "torchrun", "accelerate", "deepspeed")
MODEL, EVALUATED = "model", "evaluated.json"
"""Names in the `output_dir` of an evaluation job: the directory of the exported model, and the
file that names the checkpoint from which it was exported.
"""


_TEXT = re.compile(r"([1-9][0-9]{0,9}):([0-9]{1,19}):([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


@dataclass(frozen=True, kw_only=True)
class ScriptSpec:
    """`[script]`: the program of an `engine = "script"` job; see
    [run your own script](../how-to/run-your-own-script.md)."""

    command: tuple[str, ...] = key(
        "The program and its arguments, a list of strings; no shell reads them. If the first "
        "string ends in `.py`, or is `-m` before a module, `python` runs it."
    )
    launcher: str = key(
        "The program that starts the ranks: the daemon itself (`plain`, with torch's `env://` "
        "variables), or `torchrun`, `accelerate launch` or `deepspeed` under the job's "
        "`python`.",
        default="plain",
        allowed=LAUNCHERS,
    )
    launcher_options: tuple[str, ...] = key(
        'Further options of the launcher, such as `["--config_file", "accelerate.yaml"]`.',
        default=(),
    )
    directory: str = key(
        "The working directory; default: the directory of the job file.", default=".", path=True
    )
    checkpoint_dir: str | None = key(
        "The directory of the program's checkpoints; zerotools watches this directory for "
        "new checkpoints. When the program is started again, `ZEROTOOLS_RESUME_FROM` names the "
        "newest complete checkpoint.",
        default=None,
        path=True,
    )
    evaluates: str | None = key(
        "A job's checkpoint to export before the program starts, or a job's `output_dir`, to "
        "export the newest intact checkpoint in it. The weights are written in 16 bits, with "
        "adapters merged, and `ZEROTOOLS_MODEL` names the model directory. A job that "
        "`eval.tasks` queues has this key.",
        default=None,
        stored_default=None,
        path=True,
    )
    adopted: str | None = key(
        "A process that a user started by hand, and that this job watches. `zerotools adopt` "
        "fills it in, together with the `command` and `directory` of the process. The job "
        "starts no process.",
        default=None,
        stored_default=None,
    )

    @property
    def process(self) -> AdoptedProcess | None:
        """The running process that the job watches; None if the job starts its program itself."""
        return None if self.adopted is None else adopted_process(self.adopted)


def check_script(script: ScriptSpec) -> Iterator[str]:
    """Yield the problems in `[script]` that do not depend on other tables."""
    first = script.command[0] if script.command else ""
    if not first:
        yield "script.command = []: must name a program"
    for name in ("command", "launcher_options"):
        for index, word in enumerate(getattr(script, name)):
            if (why := too_long(word)) is not None:
                yield f"script.{name}: entry {index} ({format_value(word)}) is too long: {why}"
    if script.adopted is not None:
        yield from _check_adopted(script.adopted, script)
    if script.launcher == "plain":
        if script.launcher_options:
            yield (
                f"script.launcher_options = {format_value(script.launcher_options)}: cannot be "
                "combined "
                'with script.launcher = "plain"; leave them out'
            )
    elif first.rpartition("/")[2].startswith("python"):
        yield (
            f"script.command = {format_value(script.command)}: {script.launcher} starts the "
            f"interpreter itself; leave {format_value(first)} out, and use the key python to "
            "choose another interpreter"
        )


def _check_adopted(adopted: str, script: ScriptSpec) -> Iterator[str]:
    try:
        adopted_process(adopted)
    except ValueError as error:
        yield f"script.adopted = {format_value(adopted)}: {error}"
    if script.launcher != "plain":
        yield (
            f'script.launcher = "{script.launcher}": the job only watches a process and '
            "starts none; leave it out"
        )
    if script.evaluates is not None:
        yield (
            f"script.evaluates = {script.evaluates}: the job only watches a process and "
            "starts none; leave it out"
        )


@dataclass(frozen=True, slots=True)
class AdoptedProcess:
    """A process that was already running when a job began to watch it.

    The process is identified by its pid, its start time, and the id of the machine's boot.
    """

    pid: int
    start_ticks: int
    boot_id: str

    def __str__(self) -> str:
        return f"{self.pid}:{self.start_ticks}:{self.boot_id}"


def adopted_process(text: str) -> AdoptedProcess:
    """Parse the value of `script.adopted`, PID:START:BOOT. Raises ValueError."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError("must be PID:START:BOOT, as zerotools adopt fills it in")
    return AdoptedProcess(int(found[1]), int(found[2]), found[3])

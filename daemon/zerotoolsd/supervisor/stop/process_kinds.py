"""Classifies the processes of an attempt for a stop: programs, runners of programs, filters.

A runner starts one program after another and waits for each: a shell, `make`, `xargs`. When its
program ends, it starts the next one. A filter passes on the output of a program and ends with it:
`tee`, `grep`. All functions except `orphan_pids` and `orphan_filters` raise OSError if the machine
has no descriptors left.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from pathlib import Path

from zerotoolsd.supervisor.procfs import (
    GONE,
    TICKS_PER_SECOND,
    Process,
    children_of,
    read_process,
    ticks_now,
)
from zerotoolsd.supervisor.stop.keep_pipes_open import pipes_read, pipes_written

SHELLS = frozenset({"ash", "bash", "dash", "fish", "ksh", "ksh93", "mksh", "sh", "yash", "zsh"})
RUNNERS = SHELLS | {
    *("find", "flock", "gmake", "just", "make", "ninja", "parallel", "snakemake"),
    *("time", "timeout", "watch", "xargs"),
}
FILTERS = frozenset(
    {
        *("awk", "bzip2", "cat", "cut", "gawk", "grep", "gzip", "head", "lz4", "mawk", "pigz"),
        *("pv", "resource_tracker", "sed", "sort", "tail", "tee", "tr", "uniq", "xz", "zstd"),
    }
)
_TERMINALS = frozenset({"script"})
"""Programs that run a command in a separate terminal.

At SIGTERM they close the terminal, and the command gets SIGHUP before it has saved. While
they are stopped by SIGSTOP, nobody reads the output of the command.
"""
_MANY_IN_ONE = ("busybox", "coreutils")
"""Executables that contain several programs. The name with which such an executable is called
selects the program.
"""
_INTERPRETERS = ("perl", "python")
_ELASTIC = b"TORCHELASTIC_RUN_ID="
_WAITING = frozenset({"do_wait", "kernel_wait4", "kernel_waitid"})
"""Names of kernel functions in which a process waits for a child process."""
_HOLD_SECONDS = 0.5
_FORK_SECONDS = 0.1


class ProcessKind(Enum):
    """The kind of a process, which decides how a stop treats it."""

    PROGRAM = "program"
    RUNNER = "runner"
    FILTER = "filter"


def kind_of(process: Process, children: Sequence[Process]) -> ProcessKind:
    """Return the kind of `process`, which has the child processes `children`.

    A process with an unknown name is a runner if SIGTERM would end it and one of two conditions
    holds: it waits for a child in the kernel, or one of its descendants handles SIGTERM. If such a
    process got SIGTERM, it would end alone, and its descendants would get no signal.
    """
    name = _name(process)
    if name in RUNNERS:
        return ProcessKind.RUNNER
    if children and (effect := effect_of(process.pid)) is not TermEffect.HANDLES:
        if waits_for_child(process.pid):
            return ProcessKind.RUNNER
        if effect is TermEffect.DIES and _handles_below(children):
            return ProcessKind.RUNNER
    return ProcessKind.FILTER if name in FILTERS else ProcessKind.PROGRAM


def _handles_below(children: Sequence[Process]) -> bool:
    """Return whether any of `children` or their descendants handles SIGTERM and is no filter."""
    waiting = list(children)
    while waiting:
        process = waiting.pop()
        if effect_of(process.pid) is TermEffect.HANDLES and not is_filter(process):
            return True
        waiting += children_of(process.pid)
    return False


def is_filter(process: Process) -> bool:
    """Return whether `process` is a filter, which only passes on output, such as `tee`."""
    return _name(process) in FILTERS


def is_shell(process: Process) -> bool:
    """Return whether `process` is a shell."""
    return _name(process) in SHELLS


def is_named_runner(process: Process) -> bool:
    """Return whether `process` has the name of a known runner, such as a shell or `make`."""
    return _name(process) in RUNNERS


def waits_for_child(pid: int) -> bool:
    """Return whether the process `pid` is waiting in the kernel for the end of a child process."""
    return _wait_channel(pid) in _WAITING


class Wait:
    """Observes whether a process waits in the kernel for the same child all the time, from the
    creation of this object until `lasts` is called.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pauses = self._count()  # before the first check, and again after the last
        self._began = waits_for_child(pid)

    @property
    def lasts(self) -> bool:
        """Return whether the process has waited for one child since this object was created."""
        return self._began and waits_for_child(self._pid) and self._count() == self._pauses

    def _count(self) -> bytes:
        """Return the line in /proc with the number of voluntary context switches of the process."""
        try:
            lines = Path(f"/proc/{self._pid}/status").read_bytes().splitlines()
        except GONE:
            return b""
        return next((line for line in lines if line.startswith(b"voluntary_ctxt")), b"")


def orphan_pids(others: Collection[int | None], *, shells: bool) -> list[int]:
    """Return the pids of orphans: processes that ranks have started and left behind, and that
    became children of this process.

    `others` are pids that are no orphans. With `shells`, return only shells, which may start
    more processes. Without it, return the orphans that handle SIGTERM or have a descendant
    that does.
    """
    try:
        return [
            process.pid
            for process in _orphans(others)
            if (is_shell(process) if shells else _handles_below([process]))
        ]
    except OSError:
        return []


def orphan_filters(others: Collection[int | None]) -> list[Process]:
    """Return the orphans that are filters. `others` are pids that are no orphans."""
    try:
        return [process for process in _orphans(others) if is_filter(process)]
    except OSError:
        return []


def _orphans(others: Collection[int | None]) -> list[Process]:
    return [process for process in children_of(os.getpid()) if process.pid not in others]


def not_filters(processes: Iterable[Process]) -> list[Process]:
    """Return `processes` without filters. Each filter is replaced by its child processes.

    Reason: in a pipeline of some shells (zsh), the shell becomes the last filter, and the earlier
    programs of the pipeline are its children.
    """
    found = []
    for process in processes:
        found += not_filters(children_of(process.pid)) if is_filter(process) else [process]
    return found


def _name(process: Process) -> str | None:
    try:
        path = os.readlink(f"/proc/{process.pid}/exe")  # noqa: PTH115  # "… (deleted)"
    except GONE:
        return None
    name = Path(path.removesuffix(" (deleted)")).name
    if name in _MANY_IN_ONE:
        words = [Path(os.fsdecode(word)).name for word in _words(process.pid)[:2]]
        return next((word.lstrip("-") for word in words if word != name), name)
    # The kernel names the process of a script after the script.
    if not name.startswith(_INTERPRETERS):
        return name
    return "resource_tracker" if _is_tracker(process.pid) else process.name


def _is_tracker(pid: int) -> bool:
    """Return whether the process `pid` is the resource tracker of Python's `multiprocessing`.

    The tracker ignores SIGTERM and ends after the programs that use it.
    """
    return any(b"import main;main(" in w and b"resource_tracker" in w for w in _words(pid)[1:])


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except GONE:
        return []


def _wait_channel(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/wchan").read_text(encoding="ascii")
    except (*GONE, ValueError):
        return ""


class TermEffect(Enum):
    """The effect that SIGTERM has on a process."""

    HANDLES = "handles"
    DIES = "dies"
    NOTHING = "nothing"


def effect_of(pid: int) -> TermEffect:
    """Return the effect that SIGTERM would have on the process `pid` now. A process that blocks
    SIGTERM and has no handler shows no effect.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    except GONE:
        return TermEffect.NOTHING
    fields = dict(line.split()[:2] for line in lines if line.startswith(b"Sig"))
    ignored, blocked, caught = (
        int(fields.get(name, b"0"), 16) >> (signal.SIGTERM - 1) & 1
        for name in (b"SigIgn:", b"SigBlk:", b"SigCgt:")
    )
    if caught:
        return TermEffect.HANDLES
    return TermEffect.NOTHING if ignored or blocked else TermEffect.DIES


def is_launcher(process: Process, children: Sequence[Process]) -> bool:
    """Return whether `process` is a launcher: a program such as `torchrun` that has started its
    `children` as ranks, or `script`, which runs a command in a separate terminal.

    After SIGTERM, a launcher would give its ranks less time than the grace period.
    """
    if _name(process) in _TERMINALS or b"deepspeed.launcher.launch" in _words(process.pid):
        return True
    own = _variables(process.pid)
    if any(variable.startswith(_ELASTIC) for variable in own):
        return False
    return any(v.startswith(_ELASTIC) for child in children for v in _variables(child.pid))


def ranks_among(children: Sequence[Process]) -> list[Process]:
    """Return the processes among the launcher's `children` that are ranks. If no child is a rank,
    return all children that are programs.
    """
    ranks = [c for c in children if any(v.startswith(b"RANK=") for v in _variables(c.pid))]
    return ranks or not_filters(children) or list(children)


def _variables(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except GONE:
        return []


def process_age(process: Process) -> float:
    """Return the age of `process` in seconds."""
    return (ticks_now() - process.start_ticks) / TICKS_PER_SECOND


def is_command(process: Process, shell: Process, children: Sequence[Process]) -> bool:
    """Return whether `shell` runs `process` as an ordinary command. Return False if the shell only
    reads the output of `process`, as in `$(date)`.

    The shell reads the output if it goes into a pipe that no other one of the shell's `children`
    reads. A child that was just forked and has not executed a program does not count as a command.
    """
    if process_age(process) < _FORK_SECONDS and _words(process.pid) == _words(shell.pid):
        return False
    output = pipes_written(process.pid, "1")
    if output and not output & pipes_written(shell.pid):
        return any(output & pipes_read(child.pid).keys() for child in children)
    return os.path.lexists(f"/proc/{process.pid}/fd/1")  # else it is ending


def await_halt(process: Process, seconds: float = _HOLD_SECONDS) -> bool:
    """Wait until SIGSTOP has stopped all threads of `process`. Return False if this takes
    longer than `seconds`.

    A thread stops when it enters the kernel the next time, and may fork before. A thread in
    `vfork` stops when the child process has begun its program.
    """
    deadline = time.monotonic() + seconds
    while True:
        if all(state in "TtZX" for state in _thread_states(process.pid)):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)


def _thread_states(pid: int) -> list[str]:
    states = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  # names alone
            text = Path(f"/proc/{pid}/task/{thread}/stat").read_bytes()
            states.append(chr(text[text.rindex(b")") + 2]))
    except GONE:  # it has ended
        found = read_process(pid)
        return [] if found is None else [found.state]
    return states

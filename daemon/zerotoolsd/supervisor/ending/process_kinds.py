"""Classifies the processes of an attempt for a stop: programs, runners of programs, filters.

A runner starts one program after another and waits for each: a shell, `make`, `xargs`. When its
program ends, it starts the next one. A filter passes on the output of a program and ends with it:
`tee`, `grep`. All functions raise OSError if the machine has no descriptors left.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from zerotoolsd.supervisor.procfs import GONE, TICKS_PER_SECOND, Process, read_process, ticks_now

SHELLS = frozenset({"ash", "bash", "dash", "fish", "ksh", "ksh93", "mksh", "sh", "yash", "zsh"})
RUNNERS = SHELLS | {
    *("find", "flock", "gmake", "just", "make", "ninja", "parallel", "snakemake"),
    *("time", "timeout", "watch", "xargs"),
}
FILTERS = frozenset(
    {
        *("awk", "cat", "coreutils", "gawk", "grep", "gzip", "head", "mawk", "sed", "tail", "tee"),
        "zstd",
    }
)
_INTERPRETERS = ("perl", "python")
_WAITING = frozenset({"do_wait", "kernel_wait4", "kernel_waitid"})
"""Kernel functions that wait for a child process."""
_HOLD_SECONDS = 0.5
_FORK_SECONDS = 0.1


class ProcessKind(Enum):
    """The role of a process in a stop."""

    PROGRAM = "program"
    RUNNER = "runner"
    FILTER = "filter"


def kind_of(process: Process, children: Sequence[Process]) -> ProcessKind:
    """Return the kind of `process` with these `children`.

    A process with an unknown name is a runner if it waits for a child in the kernel and does not
    handle SIGTERM: the signal would end it, and the child would never get one.
    """
    name = _name(process)
    if name in RUNNERS:
        return ProcessKind.RUNNER
    is_waiting = bool(children) and _wait_channel(process.pid) in _WAITING
    if is_waiting and effect_of(process.pid) is not TermEffect.HANDLES:
        return ProcessKind.RUNNER
    return ProcessKind.FILTER if name in FILTERS else ProcessKind.PROGRAM


def is_filter(process: Process) -> bool:
    """Return whether `process` only passes output on."""
    return _name(process) in FILTERS


def is_shell(process: Process) -> bool:
    """Return whether `process` is a shell."""
    return _name(process) in SHELLS


def _name(process: Process) -> str | None:
    try:
        path = os.readlink(f"/proc/{process.pid}/exe")  # noqa: PTH115  # "… (deleted)"
    except GONE:
        return None
    name = Path(path.removesuffix(" (deleted)")).name
    if name == "busybox":
        words = [Path(os.fsdecode(word)).name for word in _words(process.pid)[:2]]
        return next((word.lstrip("-") for word in words if word != "busybox"), name)
    # The kernel names the process of a script after the script.
    return process.name if name.startswith(_INTERPRETERS) else name


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
    """The effect of SIGTERM on a process."""

    HANDLES = "handles"
    DIES = "dies"
    NOTHING = "nothing"


def effect_of(pid: int) -> TermEffect:
    """Return the effect that SIGTERM would have now. A blocked signal has none."""
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


def is_rank(pid: int) -> bool:
    """Return whether a launcher has started the process as a rank."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except GONE:
        return False
    return any(variable.startswith(b"RANK=") for variable in variables)


def age(process: Process) -> float:
    """Return the seconds since the process began."""
    return (ticks_now() - process.start_ticks) / TICKS_PER_SECOND


def pipes(pid: int, *descriptors: int) -> set[str]:
    """Return the pipes among these descriptors of the process, as /proc names them."""
    found = set()
    for number in descriptors:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115  # "pipe:[7]"
        except GONE:
            continue
        if target.startswith("pipe:"):
            found.add(target)
    return found


def is_command(process: Process, shell: Process, children: Sequence[Process]) -> bool:
    """Return whether `shell` runs `process` as a command of the script, and does not read its
    output as in `$(date)`. Output that the shell reads goes into a pipe, and no other of its
    `children` reads that pipe. A child that was just forked is not known to be a command yet."""
    if age(process) < _FORK_SECONDS and _words(process.pid) == _words(shell.pid):
        return False
    output = pipes(process.pid, 1)
    if output and not output & pipes(shell.pid, 1, 2):
        return any(output & pipes(child.pid, 0) for child in children)
    return os.path.lexists(f"/proc/{process.pid}/fd/1")  # else it is ending


def await_halt(process: Process, seconds: float = _HOLD_SECONDS) -> bool:
    """Wait until every thread of a process that got SIGSTOP is stopped. Return False if that takes
    longer than `seconds`.

    A thread stops when it next enters the kernel, and may fork before that. A thread in `vfork`
    stops when the child has begun its program.
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

"""Classifies the processes of an attempt for a stop: programs, runners of programs, filters.

A runner starts one program after another and waits for each: a shell, `make`, `xargs`. When its
program ends, it starts the next one. A filter passes on the output of a program and ends with it:
`tee`, `grep`. All functions raise OSError if the machine has no descriptors left.
"""

from __future__ import annotations

import array
import fcntl
import os
import signal
import termios
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
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
"""Programs that run a command in a separate terminal. At SIGTERM they close it, and the command
gets SIGHUP before it has saved; at SIGSTOP its output is not read."""
_MANY_IN_ONE = ("busybox", "coreutils")
"""Executables that are several programs, chosen by the name with which they are called."""
_INTERPRETERS = ("perl", "python")
_ELASTIC = b"TORCHELASTIC_RUN_ID="
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

    A process with an unknown name is a runner if SIGTERM would end it, and either it waits for a
    child in the kernel or a process below it handles SIGTERM. The signal would end only this
    process, and the processes below would never get one.
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
    """Return whether one of these, or a descendant, handles SIGTERM and is not a filter."""
    waiting = list(children)
    while waiting:
        process = waiting.pop()
        if effect_of(process.pid) is TermEffect.HANDLES and not is_filter(process):
            return True
        waiting += children_of(process.pid)
    return False


def is_filter(process: Process) -> bool:
    """Return whether `process` only passes output on."""
    return _name(process) in FILTERS


def is_shell(process: Process) -> bool:
    """Return whether `process` is a shell."""
    return _name(process) in SHELLS


def is_named_runner(process: Process) -> bool:
    """Return whether `process` has the name of a runner: a shell, `make` and others."""
    return _name(process) in RUNNERS


def waits_for_child(pid: int) -> bool:
    """Return whether the process waits for a child in the kernel."""
    return _wait_channel(pid) in _WAITING


class Wait:
    """Observes whether a process waits in the kernel for one child, until `lasts` is read."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pauses = self._count()  # before the first check, and again after the last
        self._began = waits_for_child(pid)

    @property
    def lasts(self) -> bool:
        """Return whether the process has waited for the same child since then."""
        return self._began and waits_for_child(self._pid) and self._count() == self._pauses

    def _count(self) -> bytes:
        """Return the line with the number of the process's voluntary context switches."""
        try:
            lines = Path(f"/proc/{self._pid}/status").read_bytes().splitlines()
        except GONE:
            return b""
        return next((line for line in lines if line.startswith(b"voluntary_ctxt")), b"")


def orphans(others: Collection[int | None], *, shells: bool) -> list[int]:
    """Return the pids of children of this process that ranks started and left behind, except
    `others`.

    With `shells`, return only shells, which may start more processes. Else return programs that
    handle SIGTERM, with their ancestors.
    """
    try:
        return [
            process.pid
            for process in children_of(os.getpid())
            if process.pid not in others
            and (is_shell(process) if shells else _handles_below([process]))
        ]
    except OSError:
        return []


def not_filters(processes: Iterable[Process]) -> list[Process]:
    """Return the processes that are not filters, and the children of those that are.

    A shell that becomes the last filter of a pipeline (zsh) has the earlier programs as children.
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
    """Return whether the process is the resource tracker of `multiprocessing`.

    It ignores SIGTERM, and ends with the programs that write to it.
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
    """The effect of SIGTERM on a process."""

    HANDLES = "handles"
    DIES = "dies"
    NOTHING = "nothing"


def effect_of(pid: int) -> TermEffect:
    """Return the effect that SIGTERM would have on the process now. A blocked signal has none."""
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
    """Return whether `process` started its `children` as ranks or in a terminal, as `torchrun`
    does.

    At SIGTERM a launcher would give its ranks less time than the grace period.
    """
    if _name(process) in _TERMINALS or b"deepspeed.launcher.launch" in _words(process.pid):
        return True
    own = _variables(process.pid)
    if any(variable.startswith(_ELASTIC) for variable in own):
        return False
    return any(v.startswith(_ELASTIC) for child in children for v in _variables(child.pid))


def ranks_among(children: Sequence[Process]) -> list[Process]:
    """Return the children that a launcher has started as ranks; all programs if it has no ranks."""
    ranks = [c for c in children if any(v.startswith(b"RANK=") for v in _variables(c.pid))]
    return ranks or not_filters(children) or list(children)


def _variables(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except GONE:
        return []


def age(process: Process) -> float:
    """Return the seconds since the process began."""
    return (ticks_now() - process.start_ticks) / TICKS_PER_SECOND


def is_command(process: Process, shell: Process, children: Sequence[Process]) -> bool:
    """Return whether `shell` runs `process` as a command, and does not read its output as in
    `$(date)`.

    The shell reads an output if it goes into a pipe that no other of its `children` reads. A child
    that was just forked does not count as a command yet.
    """
    if age(process) < _FORK_SECONDS and _words(process.pid) == _words(shell.pid):
        return False
    output = written(process.pid, "1")
    if output and not output & written(shell.pid):
        return any(output & read(child.pid).keys() for child in children)
    return os.path.lexists(f"/proc/{process.pid}/fd/1")  # else it is ending


def await_halt(process: Process, seconds: float = _HOLD_SECONDS) -> bool:
    """Wait until all threads of a process that got SIGSTOP stop; False after `seconds`.

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


_ROOM = 1 << 20
"""Bytes that a pipe can hold while its reader is stopped; the kernel's default limit."""
_READS, _WRITES = 0o400, 0o200


def written(pid: int, *numbers: str) -> frozenset[str]:
    """Return the pipes that the process writes to, or these descriptors are, by their names in
    /proc."""
    return frozenset(_targets(pid, numbers or ("1", "2")).values())


def read(pid: int) -> dict[str, str]:
    """Return the pipes that the process reads and others write to, each with its descriptor."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208  # names alone
    except GONE:
        return {}
    modes = {number: _mode(pid, number) for number in numbers}
    targets = _targets(pid, numbers)
    own = {target for number, target in targets.items() if modes[number] & _WRITES}
    return {
        target: number
        for number, target in targets.items()
        if modes[number] & _READS and target not in own
    }


def _targets(pid: int, numbers: Collection[str]) -> dict[str, str]:
    found = {}
    for number in numbers:
        with suppress(*GONE):
            target = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115  # "pipe:[7]"
            if target.startswith("pipe:"):
                found[number] = target
    return found


def _mode(pid: int, number: str) -> int:
    try:
        return os.lstat(f"/proc/{pid}/fd/{number}").st_mode  # of the link itself
    except GONE:
        return 0


def keep_open(pid: int, number: str) -> int | None:
    """Open the write end of a pipe that the process reads, so that it never ends, and enlarge the
    pipe.

    Return None if the pipe is gone or is not accessible. Raises OSError if the machine has no
    descriptors.
    """
    try:
        fd = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except GONE:
        return None
    with suppress(OSError):  # above the user's limit: it stays as it is
        if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < _ROOM:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _ROOM)
    return fd


def is_empty(fd: int) -> bool:
    """Return whether the pipe contains no unread data."""
    waiting = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, waiting)
    return waiting[0] == 0

"""Reads processes, their descendants and their state from /proc. A pid alone never identifies a
process, because the kernel reuses pids.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_OWNERS = (b"Uid:", b"Gid:")
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""Errors when a file in /proc is read, if the process has ended or is hidden."""


class Process(NamedTuple):
    """A process, read from /proc/PID/stat. The pair (`pid`, `start_ticks`) identifies the
    process until the next boot.
    """

    pid: int
    parent: int
    state: str
    start_ticks: int
    rss_bytes: int
    name: str = ""
    session: int = 0
    threads: int = 1

    @property
    def is_over(self) -> bool:
        """Return whether all threads of the process have ended. A zombie may have live threads."""
        return self.state in "ZX" and self.threads <= 1


@cache
def boot_id() -> str:
    """Return the id that the kernel gave to the current boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def read_process(pid: int, read: Callable[[Path], bytes] | None = None) -> Process | None:
    """Return the process with this pid, even if it is a zombie; None if it does not exist.

    Also return None if /proc hides the process: with the mount option `hidepid=1` processes
    of other users are hidden.
    """
    try:
        text = read_stat(pid) if read is None else read(Path(f"/proc/{pid}/stat"))
    except GONE:
        return None
    # The name in parentheses may hold anything; fields are counted from its end.
    begin, end = text.index(b"("), text.rindex(b")")
    parts = text[end + 2 :].split(None, 22)
    return Process(
        pid=pid,
        state=parts[0].decode("ascii"),
        parent=int(parts[1]),
        start_ticks=int(parts[19]),
        rss_bytes=int(parts[21]) * PAGE,
        name=text[begin + 1 : end].decode("utf-8", "replace"),
        session=int(parts[3]),
        threads=int(parts[17]),
    )


def all_pids() -> set[int]:
    """Return the pids of all processes that /proc shows."""
    return {int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal()}


def oom_kills(read: Callable[[Path], bytes] = Path.read_bytes) -> int | None:
    """Return how many processes the kernel's OOM killer has ended since the boot, in any cgroup.

    Return None if the kernel does not report it.
    """
    try:
        lines = read(Path("/proc/vmstat")).splitlines()
    except OSError:
        return None
    counts = (line.split()[1] for line in lines if line.startswith(b"oom_kill "))
    return next(map(int, counts), None)


def read_stat(pid: int) -> bytes:
    """Return the contents of the file /proc/PID/stat of the process `pid`. Raises OSError."""
    # Called many times a second: this takes a third of the time of Path.read_bytes.
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def zombie_status(pid: int, start_ticks: int) -> int | None:
    """Return the wait status of the process (`pid`, `start_ticks`), a zombie that has ended and was
    not reaped. Return None if there is no such zombie, or if the kernel hides its status.
    """
    try:
        text = read_stat(pid)
        parts = text[text.rindex(b")") + 2 :].split()
        if parts[0] != b"Z" or int(parts[19]) != start_ticks or len(parts) < 50:
            return None
        status = int(parts[49])
        return status if status or _may_inspect(pid) else None
    except GONE:
        return None


def _may_inspect(pid: int) -> bool:
    """Return whether this user may inspect the zombie `pid` (ptrace(2)). If not, the kernel shows
    0 in place of its status.
    """
    euid, egid = os.geteuid(), os.getegid()
    if euid == 0:
        return True
    lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    rows = {line[:4]: set(map(int, line.split()[1:4])) for line in lines if line[:4] in _OWNERS}
    return rows == dict(zip(_OWNERS, ({euid}, {egid}), strict=True))


def ticks_now() -> int:
    """Return the current time in clock ticks since the boot, the unit of `start_ticks`. Every
    process that starts later has a `start_ticks` of at least this value.
    """
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_SECOND)


def all_processes() -> dict[int, Process]:
    """Return all processes that /proc shows: pid -> process."""
    found = map(read_process, all_pids())
    return {process.pid: process for process in found if process is not None}


def children_of(pid: int) -> list[Process]:
    """Return the child processes of `pid` that have not ended. Only the children are read, not
    all processes.

    Raises OSError if the machine has no file descriptors left.
    """
    known: set[int] | None = None
    while (found := _child_pids(pid)) != known:  # one that ends meanwhile may hide another
        if found is None:
            return [p for p in all_processes().values() if p.parent == pid and not p.is_over]
        known = found
    looked = map(read_process, sorted(known or ()))
    return [p for p in looked if p is not None and p.parent == pid and not p.is_over]


def _child_pids(pid: int) -> set[int] | None:
    """Return the pids of the child processes of `pid`; None if the kernel does not list them."""
    found: set[int] = set()
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  # names alone
    except GONE:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123  # often
                found.update(map(int, file.read().split()))
        except GONE:
            if os.path.exists(f"/proc/{pid}/task/{thread}"):  # noqa: PTH110
                return None
    return found


def descendants(root: int, table: Mapping[int, Process]) -> list[Process]:
    """Return all descendants of the process `root`, that is, its children, their children and
    so on.

    `table` has all processes by pid. `root` is not in the result.
    """
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    return list(_below(root, children))


def _below(root: int, children: Mapping[int, list[Process]]) -> Iterator[Process]:
    waiting = list(children.get(root, ()))
    while waiting:
        process = waiting.pop()
        yield process
        waiting += children.get(process.pid, ())


_KTHREADD = 2


def await_program(process: Process, milliseconds: int = 20) -> None:
    """Wait until the kernel has loaded the program of `process`, but at most `milliseconds`.

    The parent of `process` can continue before the program is loaded (`vfork` returns when the
    child drops the parent's memory, in exec_mmap of fs/exec.c). Until then, /proc shows neither
    command nor environment of the process. On a busy machine, about half of the reads directly
    after the start are too early. Kernel threads never have a command or an environment.
    """
    if _KTHREADD in (process.pid, process.parent):
        return
    for _ in range(milliseconds):
        try:
            if process.is_over or Path(f"/proc/{process.pid}/cmdline").read_bytes():
                return
        except OSError:
            return
        time.sleep(0.001)


TICKS = os.sysconf("SC_CLK_TCK")
_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits in the kernel and cannot be interrupted",
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "Z": "has ended",
}
_LONGEST = 4000


class Activity(NamedTuple):
    """The state of a process in the kernel.

    `state` is the letter in /proc/PID/stat, such as `R` or `D`. `tracer` is the pid of an attached
    debugger; 0: no debugger. `work` grows while the process computes, reads or writes: one for each
    second of processor time, plus one for each 512 KiB read or written.
    """

    state: str
    tracer: int = 0
    wchan: str = ""
    work: float = 0.0

    @property
    def words(self) -> str:
        """Return the state of the process as text, such as `is stopped by a signal (state T)`."""
        where = f" in {self.wchan}" if self.state == "D" and self.wchan else ""
        by = f", pid {self.tracer}" if self.tracer else ""
        return f"{_STATES.get(self.state, 'is')}{where}{by} (state {self.state})"


def process_state(pid: int) -> Activity | None:
    """Return the current state of the process `pid`; None if it is gone or /proc hides it."""
    stat = _read(pid, "stat")
    if ")" not in stat:
        return None
    parts = stat[stat.rindex(")") + 2 :].split()
    cpu = (int(parts[11]) + int(parts[12])) / TICKS
    tracer = _field(_read(pid, "status"), "TracerPid:")
    io = _read(pid, "io")
    moved = sum(_field(io, f"{name}:") for name in ("rchar", "wchar", "read_bytes", "write_bytes"))
    wchan = _read(pid, "wchan").strip()
    return Activity(parts[0], tracer, "" if wchan == "0" else wchan, cpu + moved / 2**19)


def process_report(pid: int) -> str:
    """Return lines for the log about the process `pid`: its state, kernel function and threads."""
    found = process_state(pid)
    if found is None:
        return f"pid {pid} is gone"
    lines = [f"pid {pid} {found.words}"]
    for name in ("wchan", "syscall", "stack"):
        text = _read(pid, name).strip()
        if text and text != "0":
            lines.append(f"  /proc/{pid}/{name}: " + text.replace("\n", "\n    "))
    return "\n".join(lines)[:_LONGEST]


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        if line.startswith(name):
            value = line[len(name) :].strip()
            return int(value) if value.isdecimal() else 0
    return 0


def _read(pid: int, name: str) -> str:
    """Return the text of the file `name` in /proc/PID. Return an empty text if it cannot be
    read: only root can read the file `stack`.
    """
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


SHARE = 0.001
"""Fraction of the time of one processor that the measurements may use."""
ALL_EVERY = 60
"""After this many measurements all processes are read again, not only the known descendants and
new processes.
"""
Clock = Callable[[], float]


class HostMemory:
    """Measures the host memory of all descendants of this process. After the first minutes, this
    takes at most the fraction SHARE of the processor's time.

    At most `longest_pause` seconds after a measurement, the next one is due. After each
    measurement, `note` is called with the time at which it began and with the processes that were
    found.
    """

    def __init__(
        self,
        clock: Clock = time.monotonic,
        used: Clock = time.thread_time,
        read: Callable[[int], Process | None] = read_process,
        note: Callable[[int, list[Process]], None] = lambda moment, processes: None,
        longest_pause: float = float("inf"),
        there: Callable[[], set[int]] = all_pids,
    ) -> None:
        self._note, self._clock, self._used, self._read = note, clock, used, read
        self._there = there
        self._longest_pause = longest_pause
        self._scans = 0
        self._others: set[int] = set()
        self._due = float("-inf")

    def measure(self, excluded_pids: Container[int | None]) -> int | None:
        """Return the resident memory of all descendants in bytes; None if it is not yet time
        for the next measurement.

        Processes with a pid in `excluded_pids` do not count. Raises OSError if the machine has no
        file descriptors left.
        """
        now, used = self._clock(), self._used()
        if now < self._due:
            return None
        moment = ticks_now()
        ours = self._scan()
        self._note(moment, ours)
        # The first pauses are at most 1, 2, 4 ... seconds, as a young program grows fast.
        young = 2 ** min(self._scans - 1, ALL_EVERY)
        self._due = now + min((self._used() - used) / SHARE, self._longest_pause, young)
        return sum(process.rss_bytes for process in ours if process.pid not in excluded_pids)

    def _scan(self) -> list[Process]:
        self._scans += 1
        if not self._scans % ALL_EVERY:
            self._others = set()
        there = self._there()
        found = {pid: process for pid in there - self._others if (process := self._read(pid))}
        ours = descendants(os.getpid(), found)
        known = self._others | found.keys() | {0}
        # A process may have become our own child if its parent was gone before it was read.
        others = {process.pid for process in found.values() if process.parent in known}
        self._others = (self._others & there) | others - {process.pid for process in ours}
        return ours

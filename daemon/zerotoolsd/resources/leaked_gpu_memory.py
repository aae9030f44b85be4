"""Finds memory that an ended attempt left on a GPU, and the processes that hold it.

A process belongs to the attempt if the attempt's records prove it (`attempts.orphan_processes`). If
NVML lists no process for the memory, the possible holders are named. A possible holder has the
device file of a GPU open, and belongs to the attempt or is an orphan of the same user that began
after the attempt had begun.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import Enum, unique
from itertools import islice
from pathlib import Path
from typing import Any

from zerotools.sensors.foreign_gpu_memory import unaccounted_bytes
from zerotools.sensors.snapshot import Gpu
from zerotoolsd.attempts import orphan_processes
from zerotoolsd.attempts.orphan_processes import Traces
from zerotoolsd.supervisor.procfs import Process, all_processes, descendants
from zerotoolsd.supervisor.stop.kill_descendants import plain_name
from zerotoolsd.users.account import user_name

PREFIX = "/dev/nvidia"
MOST_FILES = 4096
"""At most this many open files are examined in one process."""
SECONDS = 1.0
"""Time limit, in seconds, for the search in all processes. The processes that are left are
skipped.
"""


def gpu_file_holders(
    processes: Iterable[Process], prefix: str = PREFIX, proc: Path = Path("/proc")
) -> dict[int, str]:
    """Return the processes that have a GPU device file open: pid -> path of the first such file.

    Files that belong to all GPUs (`nvidiactl`, `nvidia-uvm`) do not count.
    """
    found, deadline = dict[int, str](), time.monotonic() + SECONDS
    for process in processes:
        names = sorted(_open_devices(proc / str(process.pid) / "fd", prefix))
        if names:
            found[process.pid] = names[0]
        if time.monotonic() > deadline:
            break
    return found


def _open_devices(directory: Path, prefix: str) -> set[str]:
    found = set[str]()
    try:
        with os.scandir(directory) as entries:
            for entry in islice(entries, MOST_FILES):
                with suppress(OSError):  # it was closed meanwhile
                    target = os.readlink(entry.path)  # noqa: PTH115  # "socket:[7]" is no path
                    if target.startswith(prefix) and target[len(prefix) :].isdecimal():
                        found.add(target)
    except OSError:  # the process has ended, or belongs to another user
        return found
    return found


GIB = 2**30
_MOST_NAMED = 4
_INIT = 1
_MANAGERS = ("systemd", "init")
"""Names of processes that become the parent of orphans, such as systemd."""


@dataclass(frozen=True)
class LeftProcess:
    """A process that may hold GPU memory, in the form in which messages name it.

    If NVML does not list the process, `device` is the device file that the process has open.
    """

    pid: int
    name: str
    uid: int | None
    device: str | None = None


@dataclass(frozen=True)
class Suspects:
    """The processes that may hold GPU memory, keyed by pid. `ours` belong to the attempt; `orphans`
    may belong to it.
    """

    ours: Mapping[int, LeftProcess] = field(default_factory=dict)
    orphans: Sequence[LeftProcess] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the suspects as JSON values."""
        return {
            "ours": [asdict(each) for each in self.ours.values()],
            "orphans": [asdict(each) for each in self.orphans],
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Suspects:
        """Return the suspects from the JSON values that `to_json` returned."""
        ours = [LeftProcess(**each) for each in tree["ours"]]
        orphans = [LeftProcess(**each) for each in tree["orphans"]]
        return cls({each.pid: each for each in ours}, orphans)


Table = Callable[[], dict[int, Process]]
Holders = Callable[[Collection[Process]], Mapping[int, str]]
Roots = Sequence[tuple[int, int]]
"""The running supervisors and keepers: (pid, start) to attempt."""


def find_suspects(run_dir: str, token: str, running: Roots, daemon: int) -> dict[str, Any]:
    """Return the result of `suspected_holders` as JSON values.

    It runs in a separate process, because reading /proc may never end if a process hangs in the
    kernel. Raises OSError.
    """
    return suspected_holders(run_dir, token, running, daemon).to_json()


def suspected_holders(
    run_dir: str,
    token: str,
    running: Roots,
    daemon: int,
    look: Table = all_processes,
    holders: Holders = gpu_file_holders,
) -> Suspects:
    """Return the processes that may hold memory of an ended attempt. Raises OSError.

    Processes of other `running` attempts, and of the `daemon` (a pid), are excluded.
    """
    traces, table = orphan_processes.traces_of(Path(run_dir), token), look()
    theirs = _below(running, table)
    free = {pid: process for pid, process in table.items() if pid not in theirs}
    ours = {
        process.pid: process
        for process in orphan_processes.find_attempt_processes(traces, lambda: dict(free))
    }
    own = {os.getpid(), daemon, *(each.pid for each in descendants(daemon, table))}
    orphans = [
        process
        for process in free.values()
        if process.pid not in {*ours, *own} and _may_be(process, traces, table)
    ]
    devices = holders([*ours.values(), *orphans])
    named = {pid: _named(process, devices.get(pid)) for pid, process in ours.items()}
    return Suspects(
        named, [_named(each, devices[each.pid]) for each in orphans if each.pid in devices]
    )


def _below(running: Roots, table: Mapping[int, Process]) -> set[int]:
    found = set()
    for pid, start in running:
        root = table.get(pid)
        if root is not None and root.start_ticks == start:
            found |= {pid, *(each.pid for each in descendants(pid, table))}
    return found


def _may_be(process: Process, traces: Traces, table: Mapping[int, Process]) -> bool:
    """Return whether a process may belong to the attempt: it began after the attempt had begun,
    lost its parent, and has the attempt's user.
    """
    if process.is_over or not traces.oldest or process.start_ticks < traces.oldest:
        return False
    if not process.parent:  # process 1, and the parent of the kernel's threads
        return False
    parent = table.get(process.parent)
    lost = process.parent == _INIT or parent is None or parent.name in _MANAGERS
    uid = os.geteuid() if traces.uid is None else traces.uid
    return lost and _uid_of(process.pid) == uid


def _named(process: Process, device: str | None) -> LeftProcess:
    return LeftProcess(process.pid, plain_name(process.name), _uid_of(process.pid), device)


def _uid_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116  # once for each of many
    except OSError:
        return None


def holders_phrase(left: LeakedMemory, found: Suspects, gpu: Gpu) -> str:
    """Return a phrase on the processes that hold the memory of a GPU. The phrase is the end of a
    sentence that begins "GPU 0 is in use by ".
    """
    size = f"{left.size / GIB:.1f} GiB"
    listed = [found.ours[pid] for pid in left.pids if pid in found.ours]
    if listed:
        whose = f"{_listed(listed)} with {size}" if left.size else _listed(listed)
        return f"{whose} ({_kill(listed)})"
    may_be = [*(each for each in found.ours.values() if each.device), *found.orphans]
    if may_be:
        return (
            f"{size} of memory, perhaps of {_listed(may_be)}, which {_has(may_be)} "
            f"({_kill(may_be)})"
        )
    return (
        f"{size} of memory that no visible process holds (to free it: zerotools drain, and when "
        f"nothing runs, nvidia-smi --gpu-reset -i {gpu.index})"
    )


def _listed(found: Sequence[LeftProcess]) -> str:
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return ", ".join(_words(each) for each in found[:_MOST_NAMED]) + more


def _words(process: LeftProcess) -> str:
    words = f"pid {process.pid}" + (f" ({process.name})" if process.name else "")
    return words if process.uid is None else f"{words} of {user_name(process.uid)}"


def _has(found: Sequence[LeftProcess]) -> str:
    names = sorted({each.device for each in found if each.device})
    return f"{'has' if len(found) == 1 else 'have'} {', '.join(names[:_MOST_NAMED])} open"


def _kill(found: Sequence[LeftProcess]) -> str:
    pids = " ".join(str(each.pid) for each in found[:_MOST_NAMED])
    return f"to end {'it' if len(found) == 1 else 'them'}: kill {pids}"


TOLERANCE = 256 << 20
"""Number of bytes by which the memory use of the GPU driver itself varies."""


@unique
class LeakVerdict(Enum):
    """Whether memory of an ended attempt remains on a GPU."""

    FREE = "free"
    LEFT = "left"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class LeakedMemory:
    """The memory that an ended attempt left on a GPU, in bytes. None: the driver does not report
    it.

    Attributes:
        held: the memory of the attempt's remaining processes, as NVML reports it.
        pids: the pids of these processes.
        loose: the memory that no process holds.
    """

    verdict: LeakVerdict
    held: int | None = 0
    loose: int = 0
    pids: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The sum of the known bytes."""
        return (self.held or 0) + self.loose


FREE, UNKNOWN = LeakedMemory(LeakVerdict.FREE), LeakedMemory(LeakVerdict.UNKNOWN)


def normal_bytes(limit: int, baseline: int | None) -> int:
    """Return how many bytes of a GPU may be in use by no process without counting as a leak.

    The result is the larger of `limit`, and `baseline` (the bytes in use before the attempt) plus
    TOLERANCE.
    """
    return max(limit, 0 if baseline is None else baseline + TOLERANCE)


def can_be_seen(gpu: Gpu) -> bool:
    """Return whether the driver reports the memory use of this GPU."""
    return gpu.error is None and gpu.mig_instances is None and gpu.memory_used_bytes is not None


def memory_left(
    gpu: Gpu,
    ours: Collection[int],
    limit: int,
    baseline: int | None,
    *,
    given: bool = False,
    lists: bool = True,
) -> LeakedMemory:
    """Return the memory that the ended attempt left on a GPU, as far as the driver shows it.

    Args:
        ours: the pids of the attempt's processes.
        given: whether another job has the GPU or a part of it now.
        lists: whether NVML lists processes on this machine.
    """
    listed = [process for process in gpu.processes if process.pid in ours]
    sizes = [process.memory_used_bytes for process in listed]
    held = None if None in sizes else sum(size or 0 for size in sizes)
    pids = tuple(process.pid for process in listed)
    unaccounted = unaccounted_bytes(gpu)
    normal = normal_bytes(limit, baseline)
    others = [p for p in gpu.processes if not p.graphics and p.pid not in ours]
    is_alone = lists and not others and not given
    loose = unaccounted if unaccounted is not None and unaccounted > normal and is_alone else 0
    if loose or (listed and (held is None or held > limit)):
        return LeakedMemory(LeakVerdict.LEFT, held, loose, pids)
    return FREE if unaccounted is not None and unaccounted <= normal else UNKNOWN

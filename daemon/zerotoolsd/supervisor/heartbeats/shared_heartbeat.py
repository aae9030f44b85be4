"""Shared memory in which each rank reports its phase to its supervisor.

A rank's main thread writes one line whenever it makes progress: when a phase begins, a step is
done, a batch is evaluated, or a wait for other ranks begins. Other threads cannot write the line
(`HeartbeatWriter.beat`). So an unchanged line means that the main thread makes no progress, even if
other threads run. Writing a line takes a microsecond and no system call. The line can be read even
if the supervisor hangs, and after the rank is killed.

The supervisor creates the memory (a memfd) and passes its path in /proc to the ranks. A rank that
cannot open it (because it is in another PID namespace) only sends its datagrams.

    count   u32   how many lines the rank has written
    phase   u8    the index of the phase in `stall_limits.NAMES`
    flags   u8    1: waits for the other ranks; 2: prints its stacks when it gets `DUMP_SIGNAL`
    step    u64   optimizer steps that are done
    doing   96 s  the activity as text: `all-reduce`, `loading step 40`
    again   u32   equal to `count`; if they differ, the line is being written now
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from zerotoolsd.supervisor.heartbeats.stall_limits import NAMES, STARTING

VARIABLE = "ZEROTOOLS_PULSE"
DUMP_SIGNAL = signal.SIGQUIT
"""The signal at which a rank prints the stacks of its threads and continues, as a Java virtual
machine does.
"""
_LINE = struct.Struct("=IBBQ96sI")
_WAITS, _DUMPS = 1, 2
_TRIES = 3


class Beat(NamedTuple):
    """The newest heartbeat of a rank. `number` is the number of heartbeats so far; 0 before the
    first one.
    """

    number: int = 0
    phase: str = STARTING
    doing: str = ""
    step: int = 0
    waits: bool = False
    dumps: bool = False


class HeartbeatWriter:
    """Writes the heartbeats of a rank; used in the process of the rank.

    Without shared memory, all methods do nothing.
    """

    def __init__(self, memory: mmap.mmap | None = None, rank: int = 0) -> None:
        self._memory = memory
        self._at = rank * _LINE.size
        self._thread = threading.get_ident()
        self._count = 0
        self._phase, self._doing, self._step, self._flags = 0, b"", 0, 0

    @property
    def connected(self) -> bool:
        """Return whether the heartbeats are written to memory that the supervisor can read."""
        return self._memory is not None

    def answers_dumps(self) -> None:
        """Tell the supervisor that this rank prints its stacks when it gets DUMP_SIGNAL."""
        self._flags |= _DUMPS
        self.beat()

    def enter(self, phase: str, doing: str = "") -> None:
        """Record that the rank begins the phase `phase`, or begins the activity `doing` within
        the current phase.
        """
        self._phase, self._doing = NAMES.index(phase), doing.encode(errors="replace")
        self.beat()

    def beat(self, step: int | None = None) -> None:
        """Record that the main thread made progress. `step` is the number of finished optimizer
        steps.

        Calls from other threads are ignored.
        """
        if self._memory is None or threading.get_ident() != self._thread:
            return
        if step is not None:
            self._step = step
        self._count = count = (self._count + 1) & 0xFFFFFFFF
        line = (count, self._phase, self._flags, self._step, self._doing, count)
        _LINE.pack_into(self._memory, self._at, *line)

    @contextmanager
    def waiting(self, doing: str) -> Iterator[None]:
        """Return a context during which the rank is marked as waiting for the other ranks.
        `doing` describes the wait, such as `all-reduce`.
        """
        if self._memory is None or threading.get_ident() != self._thread:
            yield
            return
        before, self._doing = self._doing, doing.encode()
        self._flags |= _WAITS
        self.beat()
        yield  # a rank that raises here is still the one that waited
        self._flags &= ~_WAITS
        self._doing = before
        self.beat()


def open_heartbeat(environment: Mapping[str, str], rank: int) -> HeartbeatWriter:
    """Open the shared heartbeat memory at the path in `environment`, for rank `rank`. Call this
    in the main thread.
    """
    path = environment.get(VARIABLE)
    if path is None:
        return HeartbeatWriter()
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return HeartbeatWriter()
    try:
        memory = mmap.mmap(fd, 0)
    except (OSError, ValueError):
        return HeartbeatWriter()
    finally:
        os.close(fd)
    return (
        HeartbeatWriter(memory, rank)
        if (rank + 1) * _LINE.size <= len(memory)
        else HeartbeatWriter()
    )


class HeartbeatReader:
    """Reads the heartbeats of all ranks; used in the process of the supervisor."""

    def __init__(self, ranks: int) -> None:
        """Create the shared memory for the heartbeats of `ranks` ranks.

        Raises OSError if the machine has no memory or no file descriptor left.
        """
        self._fd = os.memfd_create("zerotools-heartbeats", os.MFD_CLOEXEC)
        try:
            size = max(1, ranks * _LINE.size)
            os.ftruncate(self._fd, size)
            self._memory = mmap.mmap(self._fd, size)
        except BaseException:  # undone, and raised again
            os.close(self._fd)
            raise

    @property
    def path(self) -> str:
        """Return the path in /proc at which the ranks can open the shared memory."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def read(self, rank: int) -> Beat:
        """Return the newest heartbeat of `rank`. Its values may be invalid, because the rank
        can write anything.
        """
        for _ in range(_TRIES):
            count, phase, flags, step, doing, again = _LINE.unpack_from(
                self._memory, rank * _LINE.size
            )
            if count == again:
                break
        words = doing.rstrip(b"\0").decode(errors="replace")
        return Beat(
            count,
            NAMES[phase % len(NAMES)],
            "".join(letter for letter in words if letter.isprintable()),
            min(step, 2**63 - 1),
            waits=bool(flags & _WAITS),
            dumps=bool(flags & _DUMPS),
        )

    def close(self) -> None:
        """Free the shared memory in this process. Running ranks can still use it."""
        self._memory.close()
        with suppress(OSError):
            os.close(self._fd)

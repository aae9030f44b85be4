"""Reads and writes files at offsets from many threads, and keeps the files open."""

from __future__ import annotations

import errno
import os
import resource
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, cast

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.open_source import FarSource, LocalSource, OpenSource, RemotePath
from zerotools.io.files.regular_files import open_regular, open_source
from zerotools.io.files.source_stamps import Sources

MAX_OPEN_FILES = 1024
# Other files that the process opens besides those of two `OpenFiles`: libraries, the lock, the
# journal.
_SPARE = 48
# At most this many threads read at once, and each keeps its own files open.
_THREADS = 16
# For larger writes the kernel takes larger pieces of memory for its cache. A virtual machine may
# have returned this memory to its host, and waits for it: 1.1 s of system time for 1 GB. With this
# size it is 0.3 s (benchmarks/results/reshard.md).
_WRITE = 128 * 1024


def max_open_files() -> int:
    """Return how many files one `OpenFiles` may have open at the same time.

    It is half of the files that the process may still open, because a command may use two
    `OpenFiles` at once.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sum(1 for _ in Path("/proc/self/fd").iterdir()) + _SPARE
    room = MAX_OPEN_FILES if limit == resource.RLIM_INFINITY else (limit - used) // 2 - _THREADS
    return min(MAX_OPEN_FILES, max(_THREADS, room))


class OpenFiles:
    """Files below one directory. Each is opened at its first use and kept open, about `most` of
    them at a time.

    A file that a thread uses is not closed. Each read or write gives its position in the file, so
    several threads can use the same descriptor. With `sources`, every opened file is recorded
    there, and refused if it has changed.
    """

    def __init__(
        self,
        root: Path,
        flags: int = os.O_RDONLY,
        most: int | None = None,
        *,
        sources: Sources | None = None,
        named_by: str = "the checkpoint's metadata",
    ) -> None:
        self._root = root
        self.is_far = isinstance(root, RemotePath)
        self._sources = sources
        self._named_by = named_by
        self._seen: set[Path] = set()
        self._flags = flags
        self._most = max_open_files() if most is None else most
        self._open: OrderedDict[str, OpenSource] = OrderedDict()
        self._users: dict[str, int] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every file. A later access opens a file again."""
        for source in self._open.values():
            source.close()
        self._open.clear()

    @contextmanager
    def source(self, file: str) -> Iterator[OpenSource]:
        """Keep a file open until the context ends. Raises the errors of `read_into`."""
        source = self._acquire(file)
        try:
            yield source
        finally:
            self._release([file])

    @contextmanager
    def _descriptor(self, file: str) -> Iterator[int]:
        with self.source(file) as source:
            assert isinstance(source, LocalSource), f"{self._root / file} is not on this machine"
            yield source.descriptor

    def _acquire(self, file: str) -> OpenSource:
        with self._lock:
            source = self._open.get(file)
            if source is None:
                source = self._open_now(file)
            self._open.move_to_end(file)
            self._users[file] = self._users.get(file, 0) + 1
            return source

    def _release(self, files: Iterable[str]) -> None:
        with self._lock:
            for file in files:
                self._users[file] -= 1
                if not self._users[file]:
                    del self._users[file]
            self._close_idle()

    @contextmanager
    def holding(self) -> Iterator[ThreadFiles]:
        """Until the context ends, keep open the last few files that this thread has read. This is
        for many small reads.
        """
        held: OrderedDict[str, OpenSource] = OrderedDict()
        try:
            yield ThreadFiles(self, held, max(1, self._most // _THREADS))
        finally:
            self._release(held)

    def _open_now(self, file: str) -> OpenSource:
        path = Path(file) if self.is_far and file.startswith("/") else self._root / file
        try:
            source = (
                open_source(path)
                if self._flags == os.O_RDONLY
                else LocalSource(open_regular(path, self._flags))
            )
        except FileNotFoundError:
            raise BadFile(
                f"{path} is missing, but {self._named_by} lists it; copy or download it again"
            ) from None
        except OSError as error:
            raise BadFile(f"{path} cannot be opened: {error.strerror}") from error
        try:
            if self._sources is not None:
                self._sources.record(path, source.status())
                self._seen.add(path)
        except BaseException:  # not kept open: the next read would trust it
            source.close()
            raise
        self._open[file] = source
        return source

    def check_sources(self) -> None:
        """Check that no opened file has changed. Without `sources`, nothing is checked.

        Raises:
            BadFile: a file has changed since it was first read.
        """
        if self._sources is not None:
            self._sources.check(self._seen)

    def _close_idle(self) -> None:
        idle = (file for file in self._open if file not in self._users)
        for file in list(islice(idle, max(0, len(self._open) - self._most))):
            self._open.pop(file).close()

    def read_into(self, file: str, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes of the file from `offset` on.

        Raises:
            BadFile: the file is missing, unreadable, or ends before the buffer is full.
        """
        with self.source(file) as source:
            self._read(source, file, offset, buffer)

    def read_ranges(self, ranges: Sequence[NeededRange]) -> list[bytearray]:
        """Return the bytes of each range. If the files are in an object store, all ranges are
        requested in parallel.

        Raises:
            BadFile: for the same reasons as `read_into`.
        """
        found = []
        with self.holding() as held:
            ready = held.with_bytes(lambda: ranges)
            for file, begin, end in ranges:
                with self.source(file) as source:
                    size = source.status().st_size
                if size < end:  # memory is not taken for bytes that do not exist
                    raise BadFile(
                        f"{self._root / file} has {size} bytes, but {self._named_by} names bytes "
                        f"up to {end}; it is truncated: copy or download it again"
                    )
                data = bytearray(end - begin)
                ready.read_into(file, begin, memoryview(data))
                found.append(data)
        return found

    def _read(self, source: OpenSource, file: str, offset: int, buffer: memoryview) -> None:
        done, left = 0, buffer
        while left:
            try:
                count = source.read_into(left, offset + done)
            except OSError as error:
                raise BadFile(
                    f"{self._root / file} cannot be read at byte {offset + done}: {error.strerror}"
                ) from error
            if count == 0:
                raise BadFile(
                    f"{self._root / file} is truncated: it ends at byte {offset + done}, but "
                    f"{offset + len(buffer)} bytes were expected; copy or download it again"
                )
            done += count
            left = buffer[done:]

    def write_at(self, file: str, offset: int, data: memoryview | bytes) -> None:
        """Write all of `data` to the file at `offset`.

        Raises:
            BadRequest: the disk is full, or refuses the write for another reason.
        """
        view = memoryview(data)
        with self._descriptor(file) as descriptor:
            done = 0
            while done < len(view):
                try:
                    done += os.pwrite(descriptor, view[done : done + _WRITE], offset + done)
                except OSError as error:
                    raise BadRequest(
                        f"{self._root / file} cannot be written: {error.strerror}"
                    ) from error

    def forget(self, file: str) -> None:
        """Ask the system to drop its cached copy of the file, so that later reads use the disk."""
        with self.source(file) as source:
            if isinstance(source, LocalSource):
                os.posix_fadvise(source.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync(self, file: str) -> None:
        """Flush the file to the disk."""
        with self._descriptor(file) as descriptor:
            os.fsync(descriptor)


class HeldFiles(Protocol):
    """Files that one thread reads by name and offset."""

    def read_into(self, file: str, offset: int, buffer: memoryview) -> None:
        """Read in the same way as `OpenFiles.read_into`."""


class ThreadFiles:
    """Files of one `OpenFiles` that one thread keeps open, at most `most` of them.

    The limit is needed because one tile may need the files of thousands of ranks.
    """

    def __init__(self, files: OpenFiles, held: OrderedDict[str, OpenSource], most: int) -> None:
        self._files = files
        self._acquired = held
        self._most = most

    def read_into(self, file: str, offset: int, buffer: memoryview) -> None:
        """Read in the same way as `OpenFiles.read_into`."""
        self._files._read(self._source(file), file, offset, buffer)

    def with_bytes(self, reads: Callable[[], Iterable[NeededRange]]) -> HeldFiles:
        """Return these files, prepared for reads of the byte ranges that `reads` returns.

        If the files are in an object store, the bytes of all ranges are requested in parallel, and
        this method waits for them. Files of this machine are returned unchanged.

        Raises:
            BadFile: for the same reasons as `OpenFiles.read_into`.
        """
        return self if not self._files.is_far else FetchedBytes(self, reads())

    def _source(self, file: str) -> OpenSource:
        source = self._acquired.get(file)
        if source is None:
            if len(self._acquired) >= self._most:
                oldest, _ = self._acquired.popitem(last=False)
                self._files._release([oldest])
            source = self._acquired[file] = self._files._acquire(file)
        return source


class NeededRange(NamedTuple):
    """The bytes [begin, end) of a file, which a later step will read."""

    file: str
    begin: int
    end: int


class FetchedBytes:
    """The bytes of many ranges that one thread needs, fetched into memory. Other bytes are read
    from the files.
    """

    def __init__(self, files: ThreadFiles, reads: Iterable[NeededRange]) -> None:
        wanted: dict[str, list[tuple[int, int]]] = {}
        for file, begin, end in reads:
            wanted.setdefault(file, []).append((begin, end))
        self._files = files
        self._parts: dict[str, tuple[list[int], list[Sequence[memoryview]]]] = {}
        asked: list[tuple[str, list[int], Callable[[], Sequence[Sequence[memoryview]]]]] = []
        for file, ranges in wanted.items():
            source = files._source(file)
            if isinstance(source, LocalSource):  # a partial sum, on the disk next to the output
                continue
            end = source.status().st_size
            ordered = sorted(each for each in ranges if each[1] <= end)
            asked.append(
                (file, [begin for begin, _ in ordered], cast(FarSource, source).fetch(ordered))
            )
        for file, starts, wait in asked:
            self._parts[file] = starts, list(wait())

    def read_into(self, file: str, offset: int, buffer: memoryview) -> None:
        """Read in the same way as `OpenFiles.read_into`."""
        starts, ranges = self._parts.get(file, ((), ()))
        number = bisect_right(starts, offset) - 1
        if number < 0 or not _fill_from(ranges[number], offset - starts[number], buffer):
            self._files.read_into(file, offset, buffer)


def _fill_from(parts: Sequence[memoryview], at: int, buffer: memoryview) -> bool:
    """Fill `buffer` with the bytes from byte `at` on, if `parts` has enough of them. Else return
    False, and leave `buffer` unchanged.
    """
    if at + len(buffer) > sum(map(len, parts)):
        return False
    done = 0
    for part in parts:
        if at < len(part):
            some = part[at : at + len(buffer) - done]
            buffer[done : done + len(some)] = some
            done += len(some)
        at = max(0, at - len(part))
    return True


def sync_directory(path: Path) -> None:
    """Flush a directory to the disk, so that new names and renames in it survive a power loss.

    Some file systems cannot do this (CIFS before Linux 5.8, shared folders of virtual machines).
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Flush a file to the disk, so that its bytes survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Open files, read and written at offsets, from many threads."""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.regular import open_regular
from zerotools.io.files.sources import Sources

MAX_OPEN_FILES = 1024
# What the process opens beside the files of two `OpenFiles`: libraries, the lock, the journal.
_SPARE = 48
# No more threads than this read at once, each with files of its own in hand.
_THREADS = 16


def max_open_files() -> int:
    """How many files one `OpenFiles` of two may have open, under the limit of the process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sum(1 for _ in Path("/proc/self/fd").iterdir()) + _SPARE
    room = MAX_OPEN_FILES if limit == resource.RLIM_INFINITY else (limit - used) // 2 - _THREADS
    return min(MAX_OPEN_FILES, max(_THREADS, room))


class OpenFiles:
    """Files below one root, opened on first use and kept open, about `most` of them at a time.

    A file in use by a thread is never closed under it. Reads and writes are positional, so that
    threads share descriptors. Where `sources` are given, every file that is opened is one of them,
    and is refused if it is another than it was.
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
        self._sources = sources
        self._named_by = named_by
        self._seen: set[Path] = set()
        self._flags = flags
        self._most = max_open_files() if most is None else most
        self._open: OrderedDict[str, int] = OrderedDict()
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
        """Close every file. Those that are asked for later are opened again."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    @contextmanager
    def descriptor(self, file: str) -> Iterator[int]:
        """A file, open until the context ends; raises as `read_into`."""
        descriptor = self._take(file)
        try:
            yield descriptor
        finally:
            self._give_back([file])

    def _take(self, file: str) -> int:
        with self._lock:
            descriptor = self._open.get(file)
            if descriptor is None:
                descriptor = self._open_now(file)
            self._open.move_to_end(file)
            self._users[file] = self._users.get(file, 0) + 1
            return descriptor

    def _give_back(self, files: Iterable[str]) -> None:
        with self._lock:
            for file in files:
                self._users[file] -= 1
                if not self._users[file]:
                    del self._users[file]
            self._close_idle()

    @contextmanager
    def holding(self) -> Iterator[ThreadFiles]:
        """For many small reads: the last few files stay open until the context ends."""
        descriptors: OrderedDict[str, int] = OrderedDict()
        try:
            yield ThreadFiles(self, descriptors, max(1, self._most // _THREADS))
        finally:
            self._give_back(descriptors)

    def _open_now(self, file: str) -> int:
        path = self._root / file
        try:
            descriptor = open_regular(path, self._flags)
        except FileNotFoundError:
            raise BadFile(f"{path} is missing; {self._named_by} names it") from None
        except OSError as error:
            raise BadFile(f"{path} cannot be opened: {error.strerror}") from error
        self._open[file] = descriptor
        if self._sources is not None:
            self._sources.note(path, os.fstat(descriptor))
            self._seen.add(path)
        return descriptor

    def check_sources(self) -> None:
        """Look once more at every file that was opened.

        Raises:
            BadFile: one is not what it was when it was first read.
        """
        if self._sources is not None:
            self._sources.check(self._seen)

    def _close_idle(self) -> None:
        idle = (file for file in self._open if file not in self._users)
        for file in list(islice(idle, max(0, len(self._open) - self._most))):
            os.close(self._open.pop(file))

    def read_into(self, file: str, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` (bytes) from `offset` on.

        Raises:
            BadFile: the file is missing, unreadable, or ends too early.
        """
        with self.descriptor(file) as descriptor:
            self._read(descriptor, file, offset, buffer)

    def _read(self, descriptor: int, file: str, offset: int, buffer: memoryview) -> None:
        done, left = 0, buffer
        while left:
            try:
                count = os.preadv(descriptor, [left], offset + done)
            except OSError as error:
                raise BadFile(
                    f"{self._root / file} cannot be read at byte {offset + done}: {error.strerror}"
                ) from error
            if count == 0:
                raise BadFile(
                    f"{self._root / file} ends at byte {offset + done}, but {offset + len(buffer)} "
                    "bytes were expected; it is truncated"
                )
            done += count
            left = buffer[done:]

    def write_at(self, file: str, offset: int, data: memoryview | bytes) -> None:
        """Write all of `data` at `offset`.

        Raises:
            BadRequest: the disk is full, or refuses the write for another reason.
        """
        view = memoryview(data)
        with self.descriptor(file) as descriptor:
            done = 0
            while done < len(view):
                try:
                    done += os.pwrite(descriptor, view[done:], offset + done)
                except OSError as error:
                    raise BadRequest(
                        f"{self._root / file} cannot be written: {error.strerror}"
                    ) from error

    def forget(self, file: str) -> None:
        """Ask the system to drop its copy of the file, so that reads come from the disk."""
        with self.descriptor(file) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync(self, file: str) -> None:
        """Flush the file to the disk."""
        with self.descriptor(file) as descriptor:
            os.fsync(descriptor)


class ThreadFiles:
    """Files of one `OpenFiles`, held open by one thread: at most `most` of them, because a tile may
    be made of the files of thousands of ranks."""

    def __init__(self, files: OpenFiles, descriptors: OrderedDict[str, int], most: int) -> None:
        self._files = files
        self._descriptors = descriptors
        self._most = most

    def read_into(self, file: str, offset: int, buffer: memoryview) -> None:
        """As `OpenFiles.read_into`."""
        descriptor = self._descriptors.get(file)
        if descriptor is None:
            if len(self._descriptors) >= self._most:
                oldest, _ = self._descriptors.popitem(last=False)
                self._files._give_back([oldest])
            descriptor = self._descriptors[file] = self._files._take(file)
        self._files._read(descriptor, file, offset, buffer)


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory survive power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the bytes of a file survive power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

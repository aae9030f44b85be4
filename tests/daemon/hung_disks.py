"""File systems that never answer, where a process may mount one: a FUSE of few words.

The root answers; `door`, a directory in it, answers until `hang`, and then no look at it ever comes
back: the process that looks sleeps in the kernel, and no signal ends it. `let_go` fails every look.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_HEADER = struct.Struct("<IIQQ")
_PID = struct.Struct("<I")
_LOOKUP, _FORGET, _GETATTR, _INIT, _BATCH_FORGET = 1, 2, 3, 26, 42
_EMPTY = frozenset({18, 28, 29, 34})
"""RELEASE, READDIR, RELEASEDIR and ACCESS: nothing to say, and no error."""
_OPEN = frozenset({14, 27})
_LARGEST = 1 << 18
_DIRECTORY_MODE = 0o40755


class HungDisk:
    """A mounted file system; `door` is the directory that can hang."""

    def __init__(self, path: Path, fd: int) -> None:
        self.door = path / "door"
        self._fd = fd
        self._hangs = False
        self._served: int | None = None
        """The only process that is answered, once one has asked; 0: there is none."""
        self._unanswered: list[int] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def hang(self, *, but_for_the_first: bool = False) -> None:
        """Answer nothing more: nobody at all, or nobody but the process that asks first."""
        self._served = None if but_for_the_first else 0
        self._hangs = True

    @property
    def is_awaited(self) -> bool:
        """Whether a process waits for an answer."""
        return bool(self._unanswered)

    def let_go(self) -> None:
        """Answer again; whoever waits gets an error."""
        self._hangs = False
        while self._unanswered:
            self._reply(self._unanswered.pop(), errno.EIO, b"")

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._fd, _LARGEST)
            except OSError:
                return
            _, operation, unique, node = _HEADER.unpack_from(request)
            if operation in (_FORGET, _BATCH_FORGET):
                continue  # these have no answer
            (pid,) = _PID.unpack_from(request, 32)
            if self._hangs and operation != _INIT and not self._is_served(pid):
                self._unanswered.append(unique)
            else:
                self._reply(unique, *self._answer(operation, node, request[40:]))

    def _is_served(self, pid: int) -> bool:
        self._served = pid if self._served is None else self._served
        return pid == self._served

    def _reply(self, unique: int, error: int, data: bytes) -> None:
        with suppress(OSError):  # whoever asked is gone
            os.write(self._fd, struct.pack("<IiQ", 16 + len(data), -error, unique) + data)

    def _answer(self, operation: int, node: int, rest: bytes) -> tuple[int, bytes]:
        if operation == _INIT:
            return 0, struct.pack("<IIII32x", 7, 23, _LARGEST // 2, 0) + bytes(16)
        if operation == _GETATTR:
            return 0, struct.pack("<QII", 0, 0, 0) + _attributes(node)
        if operation == _LOOKUP and rest.rstrip(b"\0") == b"door":
            return 0, struct.pack("<QQQQII", 2, 1, 0, 0, 0, 0) + _attributes(2)
        if operation in _OPEN:
            return 0, struct.pack("<QII", 1, 0, 0)
        if operation in _EMPTY:
            return 0, b""
        return (errno.ENOENT if operation == _LOOKUP else errno.ENOSYS), b""


def _attributes(node: int) -> bytes:
    return struct.pack("<QQQ24x12xIIIIIII", node, 0, 0, _DIRECTORY_MODE, 2, 0, 0, 0, 4096, 0)


@contextmanager
def hung_disk(path: Path) -> Iterator[HungDisk | None]:
    """A file system at `path`; None where this process may not mount one."""
    path.mkdir()
    try:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    where = os.fsencode(path)
    if _libc.mount(b"zerotools-test", where, b"fuse", 0, options):
        os.close(fd)
        yield None
        return
    disk = HungDisk(path, fd)
    try:
        yield disk
    finally:
        disk.let_go()
        _libc.umount2(where, 2)
        os.close(fd)

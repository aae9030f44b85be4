"""Traces a forked child with ptrace(2), and kills it at a system call.

`run_until` kills the child at the n-th call that may change a file. `run_touching` calls a function
before the n-th call that touches a given file.

Every call that can create, write, flush, rename or remove a file stops the child before the call is
done. The child continues until the n-th such call, and is killed there. So the disk has the state
that any kill at that moment leaves. In the same way, `run_touching` stops the child before every
call that opens, reads or queries one file, to simulate what another process does at that moment.

A filter of seccomp(2) lets all other calls pass without a stop, which would take most of the time.
Threads of the child are traced, too. The child must start no process: the filter makes the calls in
question fail where nobody traces. The caller must have no other child that ends in the meantime.
Only Linux on x86-64 is supported.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_TRACEME, _CONT, _SETOPTIONS, _GET_CALL_INFO = 0, 7, 0x4200, 0x420E
_OPTIONS = 0x8 | 0x80 | 0x100000  # threads; stops at calls of the filter; killed with the tracer
_STOPPED_AT_CALL = signal.SIGTRAP | 7 << 8
_WALL = 0x40000000
_AT_CALL = 3
_INFO_BYTES = 88
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_PASS, _TRACE = 0x7FFF0000, 0x7FF00000

CHANGING = {
    1: "write", 18: "pwrite64", 20: "writev", 40: "sendfile", 74: "fsync", 75: "fdatasync",
    76: "truncate", 77: "ftruncate", 82: "rename", 83: "mkdir", 84: "rmdir", 85: "creat",
    86: "link", 87: "unlink", 88: "symlink", 90: "chmod", 91: "fchmod", 92: "chown", 93: "fchown",
    188: "setxattr", 189: "lsetxattr", 258: "mkdirat", 260: "fchownat", 263: "unlinkat",
    264: "renameat", 265: "linkat", 266: "symlinkat", 268: "fchmodat", 280: "utimensat",
    285: "fallocate", 296: "pwritev", 316: "renameat2", 326: "copy_file_range",
}  # fmt: skip
"""System calls that change files, by their numbers on x86-64.

Opening a file can also create it. But this state also occurs before a later `link`, `rename` or
write.
"""

# Their names, and which of their arguments is the path or the descriptor.
_BY_NAME = {
    2: ("open", 0), 4: ("stat", 0), 6: ("lstat", 0), 21: ("access", 0), 257: ("openat", 1),
    262: ("newfstatat", 1), 332: ("statx", 1),
}  # fmt: skip
_BY_DESCRIPTOR = {
    0: ("read", 0), 5: ("fstat", 0), 8: ("lseek", 0), 9: ("mmap", 4), 17: ("pread64", 0),
    19: ("readv", 0), 40: ("sendfile", 1), 295: ("preadv", 0), 326: ("copy_file_range", 0),
    327: ("preadv2", 0),
}  # fmt: skip
_LONGEST, _PAGE = 4096, 4096

IS_SUPPORTED = platform.machine() == "x86_64"


@dataclass
class Traced:
    """The result of a traced child.

    `calls` are the names of the calls that stopped the child, in order. If the child was killed,
    its last call was not done. `status` is the exit status; None if the child was killed.
    """

    calls: list[str] = field(default_factory=list)
    status: int | None = None


def run_until(act: Callable[[], object], number: int | None = None) -> Traced:
    """Run `act` in a forked child, and kill the child before its call `number`, counted from 0.

    If `number` is None, the child runs to its end. Its output is not captured.

    Raises:
        OSError: the system does not let a process trace its child.
    """
    found = Traced()

    def is_last(_: int, call: int, __: tuple[int, ...]) -> bool:
        found.calls.append(CHANGING[call])
        return number is not None and len(found.calls) > number

    return _run(act, found, is_last, CHANGING)


def run_touching(
    act: Callable[[], object],
    file: Path,
    number: int | None = None,
    change: Callable[[], object] = lambda: None,
) -> Traced:
    """Run `act` in a forked child, and call `change` before its call `number`, counted from 0.

    Only calls that open, read or query `file` count. The path of `file` must have no symbolic
    links.

    Raises:
        OSError: the system does not let a process trace its child.
    """
    found = Traced()
    name = os.fsencode(file)

    def look(thread: int, call: int, arguments: tuple[int, ...]) -> bool:
        if call in _BY_NAME:
            touches = _text_at(thread, arguments[_BY_NAME[call][1]]) == name
        else:
            touches = _path_of(thread, arguments[_BY_DESCRIPTOR[call][1]]) == name
        if touches:
            if len(found.calls) == number:
                change()
            found.calls.append((_BY_NAME | _BY_DESCRIPTOR)[call][0])
        return False

    return _run(act, found, look, _BY_NAME | _BY_DESCRIPTOR)


def _text_at(thread: int, address: int) -> bytes:
    """Return the text at `address` in the memory of the child, up to the end of the page."""
    with suppress(OSError), Path(f"/proc/{thread}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(min(_LONGEST, _PAGE - address % _PAGE)).partition(b"\0")[0]
    return b""


def _path_of(thread: int, descriptor: int) -> bytes:
    with suppress(OSError):
        link = Path(f"/proc/{thread}/fd/{descriptor}").readlink()
        return os.fsencode(link).removesuffix(b" (deleted)")
    return b""


Judge = Callable[[int, int, tuple[int, ...]], bool]
"""A function of a thread and the number and arguments of a call. It is called before the call is
done.

If it returns True, the child is killed there.
"""


def _run(
    act: Callable[[], object], found: Traced, judge: Judge, numbers: Collection[int]
) -> Traced:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    libc.ptrace.restype = ctypes.c_long
    child = os.fork()
    if not child:
        _be_traced(libc, act, numbers)
    return _Tracer(libc, child, found, judge).run()


def _be_traced(libc: ctypes.CDLL, act: Callable[[], object], numbers: Collection[int]) -> None:
    status = 1
    try:
        if libc.ptrace(_TRACEME, 0, None, None) == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            _stop_at(libc, numbers)
            act()
            status = 0
    except BaseException:  # the status reports it to the parent
        traceback.print_exc()
    finally:
        os._exit(status)


def _stop_at(libc: ctypes.CDLL, numbers: Collection[int]) -> None:
    """Make each of these calls of this process stop it for its tracer. See seccomp(2)."""
    lines = [struct.pack("HBBI", _LOAD, 0, 0, 0)]
    for left, number in zip(range(len(numbers), 0, -1), sorted(numbers), strict=True):
        lines.append(struct.pack("HBBI", _EQUAL, left, 0, number))
    lines += [struct.pack("HBBI", _RETURN, 0, 0, what) for what in (_PASS, _TRACE)]
    code = ctypes.create_string_buffer(b"".join(lines))
    program = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code))
    prctl = libc.prctl
    prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 2, ctypes.c_void_p, ctypes.c_ulong)
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, None, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p)
    if prctl(_PR_SET_SECCOMP, _MODE_FILTER, program):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


class _Tracer:
    def __init__(self, libc: ctypes.CDLL, child: int, found: Traced, judge: Judge) -> None:
        self._libc = libc
        self._child = child
        self._found = found
        self._judge = judge

    def run(self) -> Traced:
        _, status = os.waitpid(self._child, _WALL)
        if os.WIFEXITED(status):
            raise OSError("a child cannot be traced here")
        if not self._ask(_SETOPTIONS, self._child, 0, _OPTIONS):
            raise OSError("the child ended before it could be traced")
        self._go_on(self._child)
        while True:
            thread, status = os.waitpid(-1, _WALL)
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                if thread == self._child:
                    self._found.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
                    return self._found
                continue
            if status >> 8 == _STOPPED_AT_CALL:
                if self._is_the_one(thread):
                    self._kill()
                    return self._found
                self._go_on(thread)
            else:
                stopped = os.WSTOPSIG(status)
                quiet = stopped in (signal.SIGTRAP, signal.SIGSTOP)
                self._go_on(thread, 0 if quiet else stopped)

    def _is_the_one(self, thread: int) -> bool:
        """Examine the call at which `thread` has stopped. Return whether the child must be killed
        there.

        If the thread has ended since its stop, because another thread ended the process, the result
        is False.
        """
        info = ctypes.create_string_buffer(_INFO_BYTES)
        if not self._ask(_GET_CALL_INFO, thread, _INFO_BYTES, ctypes.addressof(info)):
            return False
        number, *arguments = struct.unpack_from("<7Q", info.raw, 24)
        assert info.raw[0] == _AT_CALL
        return self._judge(thread, number, tuple(arguments))

    def _kill(self) -> None:
        os.kill(self._child, signal.SIGKILL)
        while True:
            thread, status = os.waitpid(-1, _WALL)
            if thread == self._child and (os.WIFSIGNALED(status) or os.WIFEXITED(status)):
                return

    def _go_on(self, thread: int, stopped_by: int = 0) -> None:
        self._ask(_CONT, thread, 0, stopped_by)

    def _ask(self, request: int, thread: int, address: int, data: int) -> bool:
        """Send a ptrace request for `thread`. Return False if the thread no longer exists.

        exit_group(2) and kill(2) end stopped threads.
        """
        if self._libc.ptrace(request, thread, address, data) >= 0:
            return True
        code = ctypes.get_errno()
        if code != errno.ESRCH:
            raise OSError(code, os.strerror(code))
        return False

"""A forked child that is killed at the n-th system call that may change a file: ptrace(2).

Every call that can make, fill, flush, rename or remove something stops the child before it is
made. Those before the one that is asked for are let go, and there the child is killed: what is on
the disk then is what any kill at that moment leaves. Threads of the child are traced, too. The
caller must have no other child that ends meanwhile. Linux on x86-64.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

_TRACEME, _CONT_TO_CALL, _SETOPTIONS, _GET_CALL_INFO = 0, 24, 0x4200, 0x420E
_OPTIONS = 0x1 | 0x8 | 0x100000  # stops at calls are marked; threads too; killed with the tracer
_STOPPED_AT_CALL = signal.SIGTRAP | 0x80
_WALL = 0x40000000
_ENTRY = 1
_INFO_BYTES = 88

CHANGING = {
    1: "write", 18: "pwrite64", 20: "writev", 40: "sendfile", 74: "fsync", 75: "fdatasync",
    76: "truncate", 77: "ftruncate", 82: "rename", 83: "mkdir", 84: "rmdir", 85: "creat",
    86: "link", 87: "unlink", 88: "symlink", 90: "chmod", 91: "fchmod", 92: "chown", 93: "fchown",
    188: "setxattr", 189: "lsetxattr", 258: "mkdirat", 260: "fchownat", 263: "unlinkat",
    264: "renameat", 265: "linkat", 266: "symlinkat", 268: "fchmodat", 280: "utimensat",
    285: "fallocate", 296: "pwritev", 316: "renameat2", 326: "copy_file_range",
}  # fmt: skip
"""Numbers of x86-64. Opening makes files, too, but nothing that `link`, `rename` or a write would
not show."""

IS_SUPPORTED = platform.machine() == "x86_64"


@dataclass
class Traced:
    """`calls` are the names of the calls that were stopped at, in their order; the last of a child
    that was killed was not made. `status` is the exit status of one that ended by itself."""

    calls: list[str] = field(default_factory=list)
    status: int | None = None


def run_until(act: Callable[[], object], number: int | None = None) -> Traced:
    """Run `act` in a child of a fork, and kill it before its call `number`, counted from 0 (None:
    let it end). What it writes to standard output and error is its own affair.

    Raises:
        OSError: the system does not let a process trace its child.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    libc.ptrace.restype = ctypes.c_long
    child = os.fork()
    if not child:
        _be_traced(libc, act)
    return _Tracer(libc, child, number).run()


def _be_traced(libc: ctypes.CDLL, act: Callable[[], object]) -> None:
    status = 1
    try:
        if libc.ptrace(_TRACEME, 0, None, None) == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            act()
            status = 0
    except BaseException:  # the parent is told by the status
        traceback.print_exc()
    finally:
        os._exit(status)


class _Tracer:
    def __init__(self, libc: ctypes.CDLL, child: int, number: int | None) -> None:
        self._libc = libc
        self._child = child
        self._number = number
        self._found = Traced()

    def run(self) -> Traced:
        _, status = os.waitpid(self._child, _WALL)
        if os.WIFEXITED(status):
            raise OSError("a child cannot be traced here")
        self._ask(_SETOPTIONS, self._child, 0, _OPTIONS)
        self._go_on(self._child)
        while True:
            thread, status = os.waitpid(-1, _WALL)
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                if thread == self._child:
                    self._found.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
                    return self._found
                continue
            stopped = os.WSTOPSIG(status)
            if stopped == _STOPPED_AT_CALL:
                if self._is_the_one(thread):
                    self._kill()
                    return self._found
                self._go_on(thread)
            else:
                quiet = stopped in (signal.SIGTRAP, signal.SIGSTOP)
                self._go_on(thread, 0 if quiet else stopped)

    def _is_the_one(self, thread: int) -> bool:
        """Note the call that a thread stopped before; whether it is the last to be seen."""
        info = ctypes.create_string_buffer(_INFO_BYTES)
        self._ask(_GET_CALL_INFO, thread, _INFO_BYTES, ctypes.addressof(info))
        number = int.from_bytes(info.raw[24:32], "little")
        if info.raw[0] != _ENTRY or number not in CHANGING:
            return False
        self._found.calls.append(CHANGING[number])
        return self._number is not None and len(self._found.calls) > self._number

    def _kill(self) -> None:
        os.kill(self._child, signal.SIGKILL)
        while True:
            thread, status = os.waitpid(-1, _WALL)
            if thread == self._child and (os.WIFSIGNALED(status) or os.WIFEXITED(status)):
                return

    def _go_on(self, thread: int, stopped_by: int = 0) -> None:
        self._ask(_CONT_TO_CALL, thread, 0, stopped_by, may_be_gone=True)

    def _ask(
        self, request: int, thread: int, address: int, data: int, *, may_be_gone: bool = False
    ) -> None:
        done = self._libc.ptrace(request, thread, address, data)
        if done < 0 and not may_be_gone:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

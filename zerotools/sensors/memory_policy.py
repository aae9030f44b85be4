"""The memory node that gives a process its memory: the kernel's memory policies, read-only.

The system call has no function in libc. Containers often forbid it (Docker's default, unless the
container has CAP_SYS_NICE), and setting a policy with it.
"""

from __future__ import annotations

import ctypes
import os
import sys

_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}
"""include/uapi/asm-generic/unistd.h, and arch/x86/entry/syscalls/syscall_64.tbl of Linux."""
_MOST_NODES = 1024
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)
_libc = ctypes.CDLL(None, use_errno=True)

MODES = ("default", "preferred", "bind", "interleave", "local", "preferred many")


def memory_policy() -> tuple[str, frozenset[int]]:
    """Return the policy of the calling thread: one of MODES, and its nodes. Raises OSError: it
    cannot be read here, or this kernel has no NUMA."""
    number = _GET_MEMPOLICY.get(os.uname().machine) if sys.maxsize > 2**32 else None
    if number is None:
        raise OSError(38, os.strerror(38))
    mode, mask = ctypes.c_int(), (ctypes.c_ulong * (_MOST_NODES // _WORD))()
    # One more than there are bits: the kernel takes one away (get_mempolicy(2), "BUGS").
    size = ctypes.c_ulong(_MOST_NODES + 1)
    if _libc.syscall(ctypes.c_long(number), ctypes.byref(mode), mask, size, None, 0):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    nodes = (n for n in range(_MOST_NODES) if mask[n // _WORD] >> n % _WORD & 1)
    known = mode.value < len(MODES)
    return MODES[mode.value] if known else str(mode.value), frozenset(nodes)

"""A program to which the kernel denies system calls, as a container's seccomp profile does.

    python denied_calls.py NUMBER[,NUMBER...] PROGRAM ARGUMENT...

What it executes, and all that this starts, gets EPERM for calls with these numbers.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Sequence

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06
_DENY, _ALLOW = 0x00050000 | errno.EPERM, 0x7FFF0000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def deny(numbers: Sequence[int]) -> None:
    """Of this process from now on: a program of classic BPF (seccomp(2)) compares the number."""
    steps = [struct.pack("HBBI", _LOAD, 0, 0, 0)]  # seccomp_data.nr
    for at, number in enumerate(numbers):
        steps.append(struct.pack("HBBI", _EQUALS, len(numbers) - at, 0, number))
    steps.append(struct.pack("HBBI", _RETURN, 0, 0, _ALLOW))
    steps.append(struct.pack("HBBI", _RETURN, 0, 0, _DENY))
    code = ctypes.create_string_buffer(b"".join(steps))
    program = _Program(len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, None, 0, 0)):
        last = [ctypes.byref(program)] if arguments[0] == _PR_SET_SECCOMP else [arguments[2]]
        if libc.prctl(arguments[0], arguments[1], *last, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    deny([int(number) for number in sys.argv[1].split(",")])
    os.execv(sys.argv[2], sys.argv[2:])

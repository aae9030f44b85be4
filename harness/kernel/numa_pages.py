"""Returns the NUMA node of a memory page, according to the kernel (get_mempolicy(2))."""

from __future__ import annotations

import ctypes
import os

_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}
_NODE_OF_ADDRESS = 0b11  # MPOL_F_NODE | MPOL_F_ADDR
_libc = ctypes.CDLL(None, use_errno=True)


def node_of(address: int) -> int:
    """Return the NUMA node of the page at `address`.

    If the page has no memory yet, the kernel allocates it.

    Raises:
        OSError: the kernel refuses.
    """
    node = ctypes.c_int()
    number = ctypes.c_long(_GET_MEMPOLICY[os.uname().machine])
    where, flags = ctypes.c_void_p(address), ctypes.c_ulong(_NODE_OF_ADDRESS)
    if _libc.syscall(number, ctypes.byref(node), None, ctypes.c_ulong(0), where, flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return node.value

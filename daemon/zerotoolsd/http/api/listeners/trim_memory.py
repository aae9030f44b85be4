"""Returns memory to the machine after many concurrent clients have left.

The interpreter and the C library keep freed memory for later use. After a rush that is megabytes of
a daemon that should be small.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

RUSH = 200
"""Connections at once that count as a rush."""
_libc = ctypes.CDLL(None)


def give_back() -> None:
    """Return free memory to the system. Takes some milliseconds for each 10,000 objects."""
    gc.collect()
    if hasattr(_libc, "malloc_trim"):  # of glibc alone
        _libc.malloc_trim(0)


class MemoryTrimmer:
    """Calls `end` when a rush is over."""

    def __init__(self, end: Callable[[], None] = give_back) -> None:
        self._end = end
        self._most = 0

    def look(self, connections: int) -> None:
        """Record the number of connections; return memory after a rush."""
        self._most = max(self._most, connections)
        if self._most >= RUSH and connections <= self._most // 8:
            self._most = 0
            self._end()

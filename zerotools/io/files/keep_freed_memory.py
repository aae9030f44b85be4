"""Makes the C library keep freed memory for the next allocation.

By default glibc returns freed blocks of megabytes to the kernel at once, and each page of the next
block costs a page fault: a third of the processor time of `zerotools delta`
(benchmarks/results/delta.md).
"""

from __future__ import annotations

import ctypes

# M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 << 20
_LARGEST_KEPT_BLOCK = 16 << 20


def keep_freed_memory() -> None:
    """Let this process keep up to 64 MiB of freed memory per thread, of blocks below 16 MiB.

    This changes the whole process, so only programs call it, and not functions that users call.
    Without glibc it does nothing.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_TRIM_THRESHOLD, _KEPT_BYTES)
        set_option(_MMAP_THRESHOLD, _LARGEST_KEPT_BLOCK)

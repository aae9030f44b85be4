"""The cast from float32 to float16 by torch's kernel, if that is worth importing torch.

numpy casts one element at a time, in 1.7 ns. torch's kernel uses the vector instructions of the
processor, and needs 0.06 ns for an element. But importing torch takes 1.2 s and 220 MB. So torch is
imported only if the cast by numpy would take several times as long as the import. Both casts round
to nearest even, and give the same bits.
"""

from __future__ import annotations

import importlib.util
import threading

from zerotools.io.numeric.dtype_casts import Array, Cast, numpy_cast

NUMPY_SECONDS_PER_ELEMENT = 1.7e-9
TORCH_IMPORT_SECONDS = 1.2
WORTHWHILE = 3


def cast_for(elements: int, workers: int) -> Cast:
    """Return the faster function for the cast of `elements` elements from float32 to float16 with
    `workers` threads.
    """
    seconds = elements * NUMPY_SECONDS_PER_ELEMENT / workers
    if seconds < WORTHWHILE * TORCH_IMPORT_SECONDS or importlib.util.find_spec("torch") is None:
        return numpy_cast
    return torch_cast()


def torch_cast() -> Cast:
    """Return a function that casts as `numpy_cast` does, but uses torch from float32 to float16.
    Imports torch.
    """
    import torch

    prepared = threading.local()

    def cast(destination: Array, source: Array) -> None:
        if (source.dtype.name, destination.dtype.name) != ("float32", "float16"):
            numpy_cast(destination, source)
            return
        if not hasattr(prepared, "done"):
            torch.set_num_threads(1)  # of this thread; tiles run in parallel
            prepared.done = True
        torch.from_numpy(destination).copy_(torch.from_numpy(source))

    return cast

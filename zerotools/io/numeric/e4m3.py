"""float32 to float8_e4m3fn by its bits, some eight times faster than ml_dtypes casts.

A normal number keeps the upper 3 bits of its mantissa. It is rounded by adding just less than half
of the removed part, and 1 more if the last kept bit is odd. Its exponent has a bias of 7 and not
127. Below 2**-6 all numbers are multiples of 2**-9: adding 2**14, with a last bit of that value,
rounds to one, and leaves their count in the lowest bits.
"""

from __future__ import annotations

import numpy as np

from zerotools.io.numeric.numpy_dtypes import Array

_CUT, _MAGNITUDE, _SIGN = 20, 0x7FFFFFFF, 0x80
_ROUND = ((1 << (_CUT - 1)) - 1 - ((127 - 7) << 23)) % 2**32
_LEAST_NORMAL = 0x3C800000
"""The bits of 2**-6."""
_MAGIC = np.float32(2**14)


def to_e4m3(values: Array) -> Array:
    """Return the bytes (uint8) of float32 `values`, which are contiguous, finite, and at most 448
    in magnitude; rounded to nearest even. Takes 8 bytes of memory for each of them."""
    bits = values.view(np.uint32)
    magnitudes = bits & np.uint32(_MAGNITUDE)
    rounded = magnitudes >> np.uint32(_CUT)
    rounded &= np.uint32(1)
    rounded += magnitudes
    rounded += np.uint32(_ROUND)
    rounded >>= np.uint32(_CUT)
    is_small = magnitudes < np.uint32(_LEAST_NORMAL)
    counts = magnitudes.view(np.float32)
    counts += _MAGIC
    magnitudes -= _MAGIC.view(np.uint32)
    np.copyto(rounded, magnitudes, where=is_small)
    found: Array = rounded.astype(np.uint8)
    signs = (bits >> np.uint32(24)).astype(np.uint8)
    signs &= np.uint8(_SIGN)
    found |= signs
    return found

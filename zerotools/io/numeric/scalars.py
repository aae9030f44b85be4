"""Single numbers that are 0-d tensors, such as an optimizer's `step`.

numpy is imported only for types that `struct` does not have, because reading metadata should take
milliseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.core.training_state import Scalar
from zerotools.io.files.regular_files import source_file


class LazyScalars(Mapping[Key, Scalar]):
    """Numbers of optimizer state. Numbers in tensors are read on access, each once, with errors of
    `read`."""

    def __init__(
        self, numbers: Mapping[Key, Tensor | Scalar], read: Callable[[Key, Tensor], Scalar]
    ) -> None:
        self._numbers = dict(numbers)
        self._read = read

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._numbers)

    def __contains__(self, key: object) -> bool:
        return key in self._numbers

    def __getitem__(self, key: Key) -> Scalar:
        number = self._numbers[key]
        if isinstance(number, Tensor):
            number = self._numbers[key] = self._read(key, number)
        return number


def scalars_below(root: Path, numbers: Mapping[Key, Tensor | Scalar]) -> LazyScalars:
    """Return `numbers`, with tensors in files below `root`."""
    return LazyScalars(numbers, partial(_read_below, root))


def _read_below(root: Path, _key: Key, tensor: Tensor) -> Scalar:
    return read_scalar(root, tensor)


def read_scalar(root: Path, tensor: Tensor) -> Scalar:
    """Return the value of a tensor of one element, in a file below `root`.

    Raises:
        BadFile: it is in no file, or its file ends before it.
    """
    chunk = next((chunk for chunk in tensor.chunks if not chunk.box.is_empty), None)
    if chunk is None:
        raise BadFile(f"{root}: no file holds a number of the optimizer's state")
    path = root / chunk.file
    try:
        with source_file(path) as source:
            data = source.read(tensor.dtype.itemsize, chunk.offset)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    if len(data) < tensor.dtype.itemsize:
        raise BadFile(f"{path} ends before byte {chunk.offset + tensor.dtype.itemsize}")
    return Scalar(_value(data, tensor.dtype), tensor.dtype)


_FORMATS = {"float32": "<f", "float64": "<d", "float16": "<e", "int32": "<i", "int64": "<q"}


def _value(data: bytes, dtype: DType) -> int | float:
    """Return the value of the bytes; the types that optimizers count in need no numpy."""
    if dtype.name in _FORMATS:
        value: int | float = struct.unpack(_FORMATS[dtype.name], data)[0]
        return value
    import numpy as np

    from zerotools.io.numeric.dtype_casts import numpy_dtype

    found: int | float = np.frombuffer(data, numpy_dtype(dtype))[0].item()
    return found


def scalar_bytes(value: int | float, dtype: DType) -> bytes:
    """Return the bytes of a tensor of one element, rounded to its type."""
    import numpy as np

    from zerotools.io.numeric.dtype_casts import numpy_dtype

    return np.array(value, numpy_dtype(dtype)).tobytes()

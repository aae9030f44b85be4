"""Single numbers that are stored as 0-d tensors, such as the `step` of an optimizer.

Reading metadata should take milliseconds. So numpy is imported only for dtypes that `struct` does
not have.
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
    """Numbers of the optimizer state, as key -> number. A number that is stored in a tensor is read
    by `read` at its first access, and then kept.
    """

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
    """Return the `numbers` as a `LazyScalars`; tensors among them are in files below `root`."""
    return LazyScalars(numbers, partial(_read_below, root))


def _read_below(root: Path, _key: Key, tensor: Tensor) -> Scalar:
    return read_scalar(root, tensor)


def read_scalar(root: Path, tensor: Tensor) -> Scalar:
    """Read the value of a tensor of one element from its file below `root`.

    Raises:
        BadFile: no file has the element, or the file ends before it.
    """
    chunk = next((chunk for chunk in tensor.chunks if not chunk.box.is_empty), None)
    if chunk is None:
        raise BadFile(
            f"{root}: a number of the optimizer's state is in no file; copy or download the files "
            "again"
        )
    path = root / chunk.file
    try:
        with source_file(path) as source:
            data = source.read(tensor.dtype.itemsize, chunk.offset)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    if len(data) < tensor.dtype.itemsize:
        raise BadFile(
            f"{path} ends before byte {chunk.offset + tensor.dtype.itemsize}: it is truncated; "
            "copy or download it again"
        )
    return Scalar(_value(data, tensor.dtype), tensor.dtype)


_FORMATS = {"float32": "<f", "float64": "<d", "float16": "<e", "int32": "<i", "int64": "<q"}


def _value(data: bytes, dtype: DType) -> int | float:
    """Convert the bytes of one element to a number. numpy is not needed for the dtypes that
    optimizers use for `step`.
    """
    if dtype.name in _FORMATS:
        value: int | float = struct.unpack(_FORMATS[dtype.name], data)[0]
        return value
    import numpy as np

    from zerotools.io.numeric.dtype_casts import numpy_dtype

    found: int | float = np.frombuffer(data, numpy_dtype(dtype))[0].item()
    return found


def scalar_bytes(value: int | float, dtype: DType) -> bytes:
    """Return the bytes of one element with the value `value`, rounded to `dtype`."""
    import numpy as np

    from zerotools.io.numeric.dtype_casts import numpy_dtype

    return np.array(value, numpy_dtype(dtype)).tobytes()

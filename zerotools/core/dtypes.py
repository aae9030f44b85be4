"""The table of element types (dtypes): their width in bits, and their name in each format.

numpy is not imported here, because reading a header needs only widths.
`zerotools.io.numeric.dtype_casts` converts a `DType` to numpy's dtype.

Sources: safetensors `tensor.rs` (Dtype), torch `torch/storage.py` (legacy storage classes) and
`c10/core/ScalarType.h`.
"""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.core.errors import Unsupported


@dataclass(frozen=True, slots=True)
class DType:
    """The dtype of a tensor. `name` is torch's name, which is also numpy's name if numpy has this
    dtype.
    """

    name: str
    bits: int
    safetensors: str | None
    torch_storage: str | None
    is_float: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes per element; every dtype in the table is a whole number of bytes wide."""
        return self.bits // 8

    def __str__(self) -> str:
        return self.name


FLOAT64 = DType("float64", 64, "F64", "DoubleStorage", is_float=True)
FLOAT32 = DType("float32", 32, "F32", "FloatStorage", is_float=True)
FLOAT16 = DType("float16", 16, "F16", "HalfStorage", is_float=True)
BFLOAT16 = DType("bfloat16", 16, "BF16", "BFloat16Storage", is_float=True)
FLOAT8_E4M3FN = DType("float8_e4m3fn", 8, "F8_E4M3", None, is_float=True)
FLOAT8_E5M2 = DType("float8_e5m2", 8, "F8_E5M2", None, is_float=True)
FLOAT8_E4M3FNUZ = DType("float8_e4m3fnuz", 8, "F8_E4M3FNUZ", None, is_float=True)
FLOAT8_E5M2FNUZ = DType("float8_e5m2fnuz", 8, "F8_E5M2FNUZ", None, is_float=True)
FLOAT8_E8M0FNU = DType("float8_e8m0fnu", 8, "F8_E8M0", None, is_float=True)
COMPLEX64 = DType("complex64", 64, "C64", "ComplexFloatStorage")
COMPLEX128 = DType("complex128", 128, None, "ComplexDoubleStorage")
INT64 = DType("int64", 64, "I64", "LongStorage")
INT32 = DType("int32", 32, "I32", "IntStorage")
INT16 = DType("int16", 16, "I16", "ShortStorage")
INT8 = DType("int8", 8, "I8", "CharStorage")
UINT64 = DType("uint64", 64, "U64", None)
UINT32 = DType("uint32", 32, "U32", None)
UINT16 = DType("uint16", 16, "U16", None)
UINT8 = DType("uint8", 8, "U8", "ByteStorage")
BOOL = DType("bool", 8, "BOOL", "BoolStorage")

DTYPES = (
    FLOAT64, FLOAT32, FLOAT16, BFLOAT16,
    FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT8_E4M3FNUZ, FLOAT8_E5M2FNUZ, FLOAT8_E8M0FNU,
    COMPLEX64, COMPLEX128,
    INT64, INT32, INT16, INT8, UINT64, UINT32, UINT16, UINT8, BOOL,
)  # fmt: skip

_BY_NAME = {dtype.name: dtype for dtype in DTYPES}
PRECISIONS = {"fp16": FLOAT16, "bf16": BFLOAT16, "fp32": FLOAT32}
"""The types that a run computes in, by their names in job files (`bf16`, ...)."""
_BY_SAFETENSORS = {dtype.safetensors: dtype for dtype in DTYPES if dtype.safetensors}
_BY_TORCH_STORAGE = {dtype.torch_storage: dtype for dtype in DTYPES if dtype.torch_storage}


def dtype_named(name: str) -> DType:
    """Return the dtype that torch calls `name`, such as "bfloat16" (no prefix "torch.")."""
    return _look_up(_BY_NAME, name)


def from_safetensors(name: str) -> DType:
    """Return the dtype that a safetensors header calls `name`, such as "BF16"."""
    return _look_up(_BY_SAFETENSORS, name)


def from_torch_storage(name: str) -> DType:
    """Return the dtype of the legacy torch storage class `name`, such as "FloatStorage"."""
    return _look_up(_BY_TORCH_STORAGE, name)


def _look_up(table: dict[str, DType], name: str) -> DType:
    try:
        return table[name]
    except KeyError:
        raise Unsupported(f"element type {name!r} is not one that zerotools supports") from None

"""The difference that `--tolerance` allows, and the common dtype of a comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.dtypes import (
    BFLOAT16,
    COMPLEX64,
    COMPLEX128,
    FLOAT8_E8M0FNU,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT64,
    UINT64,
    DType,
)
from zerotools.core.errors import BadRequest
from zerotools.io.numeric.compare_values import NOTHING, Allowance

_COMPLEX = (COMPLEX64, COMPLEX128)
# The widest step between two numbers of a type, relative to them.
_STEP = {BFLOAT16: 2.0**-7, FLOAT16: 2.0**-10}
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The difference between two tensors that is allowed.

    `text` is the value of `--tolerance`. If `allows_cast` is True, tensors of different dtypes can
    be equal. `allowance` is the allowed difference of each element, in the common dtype.
    """

    text: str = "bits"
    allows_cast: bool = False
    allowance: Allowance = NOTHING


def parse_tolerance(text: str) -> Tolerance:
    """Parse `bits`, `cast`, `ulp=N`, `abs=X`, `rel=Y` or `abs=X,rel=Y`, the text of `--tolerance`.

    Raises:
        BadRequest: the text has another form, or a number is negative or not finite.
    """
    if text in ("bits", "cast"):
        return Tolerance(text, text == "cast")
    words = [word.partition("=") for word in text.split(",")]
    names = [name for name, _, _ in words]
    try:
        if names == ["ulp"]:
            return Tolerance(text, True, Allowance(ulps=_at_least_0(int(words[0][2]))))
        if names in (["abs"], ["rel"], ["abs", "rel"], ["rel", "abs"]):
            numbers = {name: _at_least_0(float(value)) for name, _, value in words}
            allowance = Allowance(None, numbers.get("abs", 0.0), numbers.get("rel", 0.0))
            return Tolerance(text, True, allowance)
    except ValueError:
        pass
    raise BadRequest(
        f"--tolerance {text!r} is not bits, cast, ulp=N or abs=X,rel=Y; write for example ulp=2 "
        "or abs=1e-6,rel=1e-3"
    )


def tolerance_of_sums(merged: Checkpoint) -> str:
    """Return the tolerance for comparing a merged model with the sum of base model and adapter.

    It allows one rounding step of the narrowest dtype in the merged model, and the effect of the
    order of summation in fp32.
    """
    types = {t.dtype for key, t in merged.tensors.items() if key.role in ("param", "param16")}
    steps = [_STEP[dtype] for dtype in types if dtype in _STEP]
    return f"abs=1e-06,rel={max(steps, default=1e-5):g}"


def _at_least_0(number: Number) -> Number:
    if not (number >= 0 and math.isfinite(number)):
        raise ValueError
    return number


def common_type(ours: DType, theirs: DType) -> DType | None:
    """Return the dtype for comparing two tensors; None if no dtype holds the values of both.

    - The same dtype twice: this dtype.
    - Two floating-point dtypes of different widths: the narrower one, as after an export. But if
      the narrower one is `float8_e8m0fnu` (a dtype of scales): float32, or float64 if the wider one
      is float64.
    - Two different floating-point dtypes of the same width: float32.
    - Two different integer dtypes: int64, or uint64 if one is uint64 and the other is unsigned or
      bool.
    - An integer and a floating-point dtype: float64.
    - Two complex dtypes: complex64.
    """
    if ours == theirs:
        return ours
    if ours in _COMPLEX or theirs in _COMPLEX:
        return COMPLEX64 if ours in _COMPLEX and theirs in _COMPLEX else None
    if ours.is_float and theirs.is_float:
        narrow, wide = sorted((ours, theirs), key=lambda dtype: dtype.bits)
        if narrow == FLOAT8_E8M0FNU or narrow.bits == wide.bits:
            return FLOAT64 if wide == FLOAT64 else FLOAT32
        return narrow
    if ours.is_float or theirs.is_float:
        return FLOAT64
    if UINT64 not in (ours, theirs):
        return INT64
    return UINT64 if all(each.name.startswith(("u", "bool")) for each in (ours, theirs)) else None

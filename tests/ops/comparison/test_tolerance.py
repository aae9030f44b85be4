"""Tolerances as users write them, and the type in which two tensors are compared."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from zerotools.core import dtypes
from zerotools.core.dtypes import DType, dtype_named
from zerotools.core.errors import BadRequest
from zerotools.io.numeric.compare_values import NOTHING, Allowance
from zerotools.io.numeric.dtype_casts import numpy_dtype
from zerotools.ops.comparison.tolerance import Tolerance, common_type, parse_tolerance


def test_what_may_be_written() -> None:
    assert parse_tolerance("bits") == Tolerance("bits", False, NOTHING)
    assert parse_tolerance("cast") == Tolerance("cast", True, NOTHING)
    assert parse_tolerance("ulp=2").allowance == Allowance(ulps=2)
    assert parse_tolerance("abs=1e-6,rel=1e-3").allowance == Allowance(None, 1e-6, 1e-3)
    assert parse_tolerance("rel=1e-3,abs=1e-6").allowance == Allowance(None, 1e-6, 1e-3)
    assert parse_tolerance("abs=0").allowance == Allowance(None, 0.0, 0.0)
    assert parse_tolerance("rel=0.5").allowance == Allowance(None, 0.0, 0.5)


@pytest.mark.parametrize(
    "text",
    ["", "exact", "ulp", "ulp=", "ulp=-1", "ulp=1.5", "abs=nan", "abs=inf", "rel=-1", "abs=1,abs=2",
     "abs=1;rel=2", "ulp=1,abs=2", "bits,cast", "abs=1,"],
)  # fmt: skip
def test_what_may_not(text: str) -> None:
    with pytest.raises(BadRequest, match=r"--tolerance .* is not bits, cast, ulp=N or abs=X,rel=Y"):
        parse_tolerance(text)


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [
        ("float32", "bfloat16", "bfloat16"),
        ("float16", "float32", "float16"),
        ("float64", "float8_e4m3fn", "float8_e4m3fn"),
        ("float16", "bfloat16", "float32"),
        ("float8_e4m3fn", "float8_e5m2", "float32"),
        ("float8_e8m0fnu", "float64", "float64"),
        ("float8_e8m0fnu", "float16", "float32"),
        ("int64", "int32", "int64"),
        ("uint8", "uint64", "uint64"),
        ("bool", "uint64", "uint64"),
        ("bool", "int8", "int64"),
        ("int64", "uint64", None),
        ("int64", "float32", "float64"),
        ("complex64", "complex128", "complex64"),
        ("complex64", "float32", None),
    ],
)
def test_the_common_type(ours: str, theirs: str, common: str | None) -> None:
    for pair in ((ours, theirs), (theirs, ours)):
        found = common_type(*map(dtype_named, pair))
        assert (None if found is None else found.name) == common


@pytest.mark.parametrize(
    ("ours", "theirs"), list(itertools.combinations_with_replacement(dtypes.DTYPES, 2)), ids=str
)
def test_every_two_types_have_one_or_none_in_either_order(ours: DType, theirs: DType) -> None:
    found = common_type(ours, theirs)
    assert found == common_type(theirs, ours)
    if ours == theirs:
        assert found == ours
    elif found is not None:
        sample = np.ones(3, numpy_dtype(ours)).astype(numpy_dtype(found))
        assert (sample == np.ones(3, numpy_dtype(theirs)).astype(numpy_dtype(found))).all()

"""Rules for weights that a program stores scaled or shifted: the value that it computes from an
element A of the Hub.

    A / root(SIZE)          divided by the square root of a size
    A * root(SIZE)          multiplied by the square root of a size
    A * bf16(root(SIZE))    multiplied by the root, rounded to bfloat16
    A + SIZE                plus a number, for example for a norm that multiplies by 1 + its weight

Each rule is one float32 operation and one rounding, as in MaxText's
`checkpoint_conversion/utils/param_mapping.py`. To divide by a root, MaxText multiplies by 1 / root.
To reverse a multiplication, it divides.

The optimizer state is converted exactly. For w' = c w, the gradient with respect to w' is g / c. So
moments of first order (`exp_avg`, `momentum_buffer`) are divided by c, and moments of second order
(`exp_avg_sq`) by c * c. An addition changes no gradient.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.core.quantisation_schemes import Arithmetic
from zerotools.maps.expressions import parse_size_expression, size_of

_RULE = re.compile(r"A\s*([*/+])\s*(.+)")
_ROOT = re.compile(r"(bf16\()?root\((.+?)\)(?(1)\))")
ORDERS: Mapping[str, int] = {
    "exp_avg": 1, "momentum_buffer": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2, "square_avg": 2,
}  # fmt: skip
"""The power of the gradient that each role of optimizer state is an average of."""


@dataclass(frozen=True, slots=True)
class StoredValue:
    """The rule for the value that a program stores instead of an element A of the Hub: `A sign
    number`. The number is `size`, its root, or its root rounded to bfloat16.
    """

    sign: str
    size: str
    is_root: bool
    is_rounded: bool

    def bound(self, names: Mapping[str, Any]) -> BoundValue | None:
        """Return the rule with its size as a number; None if the rule changes no element.

        Raises:
            BadRequest: the size is not a whole number.
        """
        size = size_of(self.size, names)
        if size == (0 if self.sign == "+" else 1):
            return None
        return BoundValue(self.sign, size, self.is_root, self.is_rounded)


@dataclass(frozen=True, slots=True)
class BoundValue:
    """A `StoredValue` for one model, with its size as a number."""

    sign: str
    size: int
    is_root: bool
    is_rounded: bool

    @property
    def _number(self) -> float:
        number = math.sqrt(self.size) if self.is_root else float(self.size)
        return _bfloat16(number) if self.is_rounded else number

    def of_weight(self, *, to_hub: bool) -> Arithmetic:
        """Return the arithmetic from the Hub's weight to the stored weight; with `to_hub`, the
        reverse.
        """
        number = self._number
        if self.sign == "+":
            return Arithmetic("-" if to_hub else "+", number)
        if self.sign == "/":
            return Arithmetic("*", number if to_hub else 1 / number)
        return Arithmetic("/" if to_hub else "*", number)

    def of_state(self, order: int, *, to_hub: bool) -> Arithmetic | None:
        """Return the arithmetic for optimizer state that averages the gradient to the power
        `order`; None if the state does not change.
        """
        if self.sign == "+":
            return None
        is_exact = order == 2 and self.is_root and not self.is_rounded
        number = float(self.size) if is_exact else self._number**order
        return Arithmetic("*" if (self.sign == "*") == to_hub else "/", number)


def parse_stored_value(text: str) -> StoredValue:
    """Parse a rule such as `A / root(head)`.

    Raises:
        ValueError: the text is not such a rule.
    """
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not A * root(SIZE), A / root(SIZE) or A + SIZE")
    sign, number = found[1], found[2]
    root = _ROOT.fullmatch(number)
    size = number if root is None else root[2]
    parse_size_expression(size)
    if (root is None) != (sign == "+"):
        raise ValueError(f"{text!r} must have root(...) behind * or /, and no root behind +")
    return StoredValue(sign, size, root is not None, root is not None and root[1] is not None)


def _bfloat16(number: float) -> float:
    """Return the bfloat16 value that is nearest to a positive number, as a float."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    bits += 0x7FFF + (bits >> 16 & 1)
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])

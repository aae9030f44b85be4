"""Numbers and conditions of a layout map: `hidden // heads`, `head_dim or hidden // heads`.

Names are sizes of the map, arguments, or keys of config.json. An unset name is false, and not a
number: `a or b` is the first that is set. No other Python is supported.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from zerotools.core.errors import BadRequest

_OPERATIONS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_LARGEST = 2**48


class _Unsaid:
    """The value of a name that neither config.json nor an argument has."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __bool__(self) -> bool:
        return False


@lru_cache(maxsize=4096)
def parsed(text: str) -> ast.expr:
    """Parse the expression into a tree.

    Raises:
        ValueError: it is not one, or has more than names, numbers, words, lists and operators.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)  # of numbers run into words
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{text!r} is not an expression") from None
    for node in ast.walk(tree):
        if not isinstance(node, _TAKEN):
            raise ValueError(f"{text!r} has {type(node).__name__}, which maps do not take")
    return tree


_TAKEN: tuple[type[ast.AST], ...] = (
    ast.expr_context, ast.boolop, ast.Not, ast.USub, *_OPERATIONS, *_COMPARISONS, ast.Name,
    ast.Constant, ast.List, ast.Tuple, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp,
)  # fmt: skip


def value_of(text: str, names: Mapping[str, Any]) -> Any:
    """Return the value of the expression with these names; None if it is only an unset name.

    Raises:
        BadRequest: a number that is needed is not set, or not a number.
        ValueError: it is not an expression.
    """
    found = named_value(text, names)
    return None if isinstance(found, _Unsaid) else found


def named_value(text: str, names: Mapping[str, Any]) -> Any:
    """Return the same as `value_of`; but an unset name may be used by other expressions, which then
    report it."""
    return _value(parsed(text), names, text)


def size_of(text: str, names: Mapping[str, Any]) -> int:
    """Return a size, in elements.

    Raises:
        BadRequest: it is not a whole number of at least 0, or uses unset names.
        ValueError: it is not an expression.
    """
    found = named_value(text, names)
    if isinstance(found, _Unsaid):
        raise _lacking(found, text)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < _LARGEST:
        raise BadRequest(
            f"{text} is {found!r:.80} by config.json, and must be a whole number of elements"
        )
    return found


def _value(node: ast.expr, names: Mapping[str, Any], text: str) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        value = names.get(node.id)
        return _Unsaid(node.id) if value is None else value
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each, names, text) for each in node.elts]
    if isinstance(node, ast.BoolOp):
        return _either(node, names, text)
    if isinstance(node, ast.IfExp):
        chosen = node.body if _value(node.test, names, text) else node.orelse
        return _value(chosen, names, text)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, names, text)
        if isinstance(node.op, ast.Not):
            return not value
        return _computed(operator.neg, (value,), text)
    if isinstance(node, ast.Compare):
        return _compared(node, names, text)
    assert isinstance(node, ast.BinOp)
    sides = (_value(node.left, names, text), _value(node.right, names, text))
    return _computed(_OPERATIONS[type(node.op)], sides, text)


def _either(node: ast.BoolOp, names: Mapping[str, Any], text: str) -> Any:
    is_or = isinstance(node.op, ast.Or)
    value: Any = None
    for each in node.values:
        value = _value(each, names, text)
        if bool(value) == is_or:
            break
    return value


def _compared(node: ast.Compare, names: Mapping[str, Any], text: str) -> bool:
    left = _value(node.left, names, text)
    for kind, each in zip(node.ops, node.comparators, strict=True):
        right = _value(each, names, text)
        if isinstance(left, _Unsaid) and isinstance(kind, ast.Eq | ast.NotEq):
            left = None
        if isinstance(right, _Unsaid) and isinstance(kind, ast.In | ast.NotIn):
            right = []
        if not _computed(_COMPARISONS[type(kind)], (left, right), text):
            return False
        left = right
    return True


def _computed(operation: Callable[..., Any], values: tuple[Any, ...], text: str) -> Any:
    unsaid = next((value for value in values if isinstance(value, _Unsaid)), None)
    if unsaid is not None:
        raise _lacking(unsaid, text)
    if operation in _OPERATIONS.values() and not all(isinstance(v, int) for v in values):
        said = " and ".join(f"{value!r:.40}" for value in values)
        raise BadRequest(f"{text} cannot be computed of {said}, which are not whole numbers")
    try:
        return operation(*values)
    except (TypeError, ZeroDivisionError, ValueError, OverflowError) as error:
        said = ", ".join(f"{value!r:.40}" for value in values)
        raise BadRequest(f"{text} cannot be computed of {said}: {error}") from None


def names_in(text: str) -> set[str]:
    """Return the names in an expression."""
    return {node.id for node in ast.walk(parsed(text)) if isinstance(node, ast.Name)}


def _lacking(unsaid: _Unsaid, text: str) -> BadRequest:
    return BadRequest(
        f"config.json has no {unsaid.name}, which the map needs for {text}; give it by "
        f"--map-arg {unsaid.name}=NUMBER"
    )

"""Parse the expressions of layout maps: sizes, conditions, and tensors made from tensors of the
Hub.

In `interleave(A, B, C; groups)`, tensors come first, then a semicolon and sizes. `{i}` in a name is
an index. A name may contain a number that is computed from an index: `{i+size}` and, in names of a
layout, `{i-size}`, `{i//2}`, `{i%2}`.

    concat(A, B, ...; dim)        concatenated along a dimension
    part(A; dim, begin, end)      the indices [begin, end) of a dimension
    every(A; dim, first, step)    every step-th index of a dimension
    stack(A; e)                   the tensors of all indices e, along a new first dimension
    item(A; number)               one index of the first dimension
    transpose(A; dim, dim)        two dimensions exchanged
    split(A; dim, count)          a dimension as two: `count` equal parts, and the indices in each
    pairs(A; heads)               rows of each head: from halves to pairs (rope)
    halves(A; heads)              rows of each head: from pairs to halves (rope)
    interleave(A, B, ...; groups) rows of all tensors, cut into groups: A0 B0 ... A1 B1 ...
    pad(A; multiple)              rows rounded up to a multiple; added rows repeat the last row
    zeros(A; rows)                `rows` rows; added rows are 0

Sizes and conditions are numbers over config.json: `hidden // heads`, `head_dim or hidden // heads`.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.core.nearest_word import nearest_of

SIZES: Mapping[str, int] = {
    "concat": 1, "part": 3, "every": 3, "stack": 1, "item": 1, "transpose": 2, "pairs": 1,
    "halves": 1, "interleave": 1, "pad": 1, "zeros": 1,
    "split": 2,
}  # fmt: skip
"""The number of sizes that each operation takes, by the operation's word."""
_JOINING = ("concat", "interleave")
_NAME = re.compile(r"[\w.{}+\-]+")
_DEEPEST = 64
_INDEX = re.compile(r"\{(\w+)([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class TensorName:
    """A tensor of the Hub; its name may contain indices."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Operation:
    """The operation `word` on tensors. Its sizes are still text, not numbers."""

    word: str
    tensors: tuple[TensorExpression, ...]
    sizes: tuple[str, ...]


TensorExpression = TensorName | Operation


def indices_of(pattern: str) -> tuple[str, ...]:
    """Return the indices in a tensor name, in order."""
    return tuple(dict.fromkeys(found[1] for found in _INDEX.finditer(pattern)))


def shifts_of(pattern: str) -> tuple[tuple[str, str], ...]:
    """Return (index, expression), such as (i, i+size), for each number in a tensor name that is
    computed from an index.
    """
    return tuple((found[1], found[0][1:-1]) for found in _INDEX.finditer(pattern) if found[2])


def with_indices(pattern: str, indices: Mapping[str, int]) -> str:
    """Return the name with each `{...}` replaced by its number, a result of `MapSizes.at`."""
    return _INDEX.sub(lambda found: str(indices[found[0][1:-1]]), pattern)


def tensors_in(expression: TensorExpression) -> Iterator[str]:
    """Yield the names of all tensors in an expression, in order."""
    if isinstance(expression, TensorName):
        yield expression.pattern
        return
    for each in expression.tensors:
        yield from tensors_in(each)


def sizes_in(expression: TensorExpression) -> Iterator[str]:
    """Yield all sizes in a tensor expression."""
    if isinstance(expression, Operation):
        yield from expression.sizes
        for each in expression.tensors:
            yield from sizes_in(each)


def parse_tensor_expression(text: str) -> TensorExpression:
    """Parse a tensor expression into a tree.

    Raises:
        ValueError: the text is not a tensor expression. If a word is unknown, the message has the
            most similar known word.
    """
    reader = _Reader(text)
    found = reader.expression()
    if reader.rest():
        raise ValueError(f"{reader.rest()!r} cannot follow {text[: reader.at]!r}")
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def rest(self) -> str:
        return self.text[self.at :].strip()

    def _next(self) -> str:
        rest = self.text[self.at :]
        self.at += len(rest) - len(rest.lstrip())
        return self.text[self.at : self.at + 1]

    def expression(self) -> TensorExpression:
        if self.text.count("(") > _DEEPEST:
            raise ValueError(f"it has more than {_DEEPEST} operations")
        self._next()
        found = _NAME.match(self.text, self.at)
        if found is None:
            raise ValueError(f"a tensor or a function is expected at {self.rest()!r}")
        self.at = found.end()
        if self._next() != "(":
            return TensorName(found[0])
        self.at += 1
        return self._operation(found[0])

    def _operation(self, word: str) -> Operation:
        if word not in SIZES:
            known = nearest_of(word, SIZES)
            raise ValueError(f"{word}(...) does not exist; the nearest is {known}")
        tensors = [self.expression()]
        while self._next() == ",":
            self.at += 1
            tensors.append(self.expression())
        if self._next() != ";":
            raise ValueError(f"{word}(...) lacks a semicolon before its sizes")
        sizes = self._sizes(word)
        if len(tensors) > 1 and word not in _JOINING:
            raise ValueError(f"{word}(...) takes 1 tensor, but has {len(tensors)}")
        if len(sizes) != SIZES[word]:
            raise ValueError(f"{word}(...) takes {SIZES[word]} sizes, but has {len(sizes)}")
        return Operation(word, tuple(tensors), sizes)

    def _sizes(self, word: str) -> tuple[str, ...]:
        depth, begin = 0, self.at + 1
        sizes: list[str] = []
        for at in range(begin, len(self.text)):
            letter = self.text[at]
            depth += (letter in "([") - (letter in ")]")
            if depth < 0 or (letter == "," and not depth):
                sizes.append(self.text[begin:at].strip())
                begin = at + 1
            if depth < 0:
                self.at = at + 1
                for size in sizes:
                    parse_size_expression(size)
                return tuple(sizes)
        raise ValueError(f"{word}(...) lacks its closing bracket")


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


class _Unset:
    """The value of a name that neither config.json nor an argument sets."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __bool__(self) -> bool:
        return False


@lru_cache(maxsize=4096)
def parse_size_expression(text: str) -> ast.expr:
    """Parse a size or a condition into the tree of a Python expression.

    Raises:
        ValueError: the text is not an expression, or has parts that are not names, numbers, words,
            lists or operators.
    """
    try:
        with warnings.catch_warnings():
            # Python only warns about a number directly before a word, such as `2if`.
            warnings.simplefilter("error", SyntaxWarning)
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{text!r} is not a valid expression") from None
    for node in ast.walk(tree):
        if not isinstance(node, _TAKEN):
            raise ValueError(f"{text!r} has {type(node).__name__}, which maps do not support")
    return tree


_TAKEN: tuple[type[ast.AST], ...] = (
    ast.expr_context, ast.boolop, ast.Not, ast.USub, *_OPERATIONS, *_COMPARISONS, ast.Name,
    ast.Constant, ast.List, ast.Tuple, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp,
)  # fmt: skip


def value_of(text: str, names: Mapping[str, Any]) -> Any:
    """Return the value of a size or condition; None if the text is only an unset name.

    Names are sizes of the map, arguments, or keys of config.json. An unset name is false and is not
    a number. So `a or b` is the first of the two that is set.

    Raises:
        BadRequest: a number that is needed is not set, or is not a number.
        ValueError: the text is not an expression.
    """
    found = named_value(text, names)
    return None if isinstance(found, _Unset) else found


def unmet_part(condition: str, names: Mapping[str, Any]) -> str | None:
    """Return the first part of `A and B and ...` that is false, with the values of its names.

    Returns:
        For instance `layers % 2 == 0, but layers is 3`; None if the condition is true.
    """
    tree = parse_size_expression(condition)
    is_and = isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And)
    for part in tree.values if is_and else [tree]:  # type: ignore[attr-defined]
        if not _value(part, names, condition):
            used = sorted({node.id for node in ast.walk(part) if isinstance(node, ast.Name)})
            values = [f"{name} is {names.get(name, 'not set')!s:.40}" for name in used]
            return f"{ast.unparse(part)}, but {' and '.join(values)}"
    return None


def named_value(text: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression like `value_of`. For an unset name, return an object that
    raises an error with this name when it is used.
    """
    return _value(parse_size_expression(text), names, text)


def size_of(text: str, names: Mapping[str, Any]) -> int:
    """Return the value of a size expression, as a number of elements.

    Raises:
        BadRequest: the value is not a whole number of at least 0, or the expression uses unset
            names.
        ValueError: the text is not an expression.
    """
    found = named_value(text, names)
    if isinstance(found, _Unset):
        raise _lacking(found, text)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < _LARGEST:
        raise BadRequest(
            f"{text} is {found!r:.80} in config.json, but must be a whole number of elements"
        )
    return found


def whole_number_of(text: str, names: Mapping[str, Any]) -> int:
    """Return the value of an expression as a whole number, which may be negative. Raise the errors
    of `size_of`.
    """
    found = named_value(text, names)
    if isinstance(found, _Unset):
        raise _lacking(found, text)
    if isinstance(found, bool) or not isinstance(found, int):
        raise BadRequest(f"{text} is {found!r:.80} in config.json, but must be a whole number")
    return found


def _value(node: ast.expr, names: Mapping[str, Any], text: str) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        value = names.get(node.id)
        return _Unset(node.id) if value is None else value
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
        if isinstance(left, _Unset) and isinstance(kind, ast.Eq | ast.NotEq):
            left = None
        if isinstance(right, _Unset) and isinstance(kind, ast.In | ast.NotIn):
            right = []
        if not _computed(_COMPARISONS[type(kind)], (left, right), text):
            return False
        left = right
    return True


def _computed(operation: Callable[..., Any], values: tuple[Any, ...], text: str) -> Any:
    unsaid = next((value for value in values if isinstance(value, _Unset)), None)
    if unsaid is not None:
        raise _lacking(unsaid, text)
    if operation in _OPERATIONS.values() and not all(isinstance(v, int) for v in values):
        said = " and ".join(f"{value!r:.40}" for value in values)
        raise BadRequest(f"{text} cannot be computed from {said}, which are not whole numbers")
    try:
        return operation(*values)
    except (TypeError, ZeroDivisionError, ValueError, OverflowError) as error:
        said = ", ".join(f"{value!r:.40}" for value in values)
        raise BadRequest(f"{text} cannot be computed from {said}: {error}") from None


def size_names_in(text: str) -> set[str]:
    """Return the names in a size or condition."""
    return {node.id for node in ast.walk(parse_size_expression(text)) if isinstance(node, ast.Name)}


def _lacking(unsaid: _Unset, text: str) -> BadRequest:
    return BadRequest(
        f"config.json has no {unsaid.name}, which the map needs for {text}; pass --map-arg "
        f"{unsaid.name}=NUMBER"
    )

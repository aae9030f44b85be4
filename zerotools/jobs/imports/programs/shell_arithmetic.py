"""Compute arithmetic expressions with whole numbers, as a shell does."""

from __future__ import annotations

import ast
import re

_SUM = re.compile(r"[0-9 \t+*/%()-]+")


def worked_out(formula: str) -> int | None:
    """Return the value of the expression `formula`; None if it contains anything except numbers
    and operators.
    """
    if not _SUM.fullmatch(formula):
        return None
    try:
        return _value(ast.parse(formula.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr) -> int:
    """Return the value of the parsed expression `node`.

    Raises ValueError if it is not arithmetic.
    """
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.BinOp(left=left, op=op, right=right):
            one, other = _value(left), _value(right)
            match op:
                case ast.Add():
                    return one + other
                case ast.Sub():
                    return one - other
                case ast.Mult():
                    return one * other
                case ast.Div() | ast.FloorDiv():
                    return int(one / other)
                case ast.Mod():
                    return one % other
    raise ValueError("it is not a calculation with whole numbers")

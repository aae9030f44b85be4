"""Positions in a job file: the line of a key, and the position of a syntax error.

tomllib keeps no positions. The line of a key is found by reading the file's beginnings: the
statement that sets the key lies between the last beginning that is valid without it and the first
that is valid with it.

    1  [train]
    2  steps = 10         lines 1 to 2 have train.steps and line 1 alone has not: it is line 2
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

MAX_LINES = 2000
"""Files with more lines are not searched, because each beginning is parsed separately."""
_TOML_PLACE = re.compile(
    r"^(?P<why>.*?) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$"
)
_KEY = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*")
_TABS = 4


def line_of(text: str, key: str) -> int | None:
    """Return the line, counted from 1, on which the TOML in `text` sets the dotted `key`; None if
    it does not, or if the file is too long to search."""
    lines = text.splitlines()
    trail = key.split(".")
    if len(lines) > MAX_LINES or not _has(_tree("\n".join(lines)), trail):
        return None
    valid = 0
    for count in range(1, len(lines) + 1):
        tree = _tree("\n".join(lines[:count]))
        if tree is None:
            continue
        if _has(tree, trail):
            return _first_statement(lines, valid)
        valid = count
    return None


def _first_statement(lines: list[str], after: int) -> int:
    """Return the first line behind `after` lines that is not blank or a comment, counted from 1."""
    for number, line in enumerate(lines[after:], after + 1):
        if line.strip() and not line.strip().startswith("#"):
            return number
    return after + 1


def _tree(text: str) -> Mapping[str, Any] | None:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None


def _has(tree: Any, trail: list[str]) -> bool:
    for name in trail:
        if not isinstance(tree, Mapping) or name not in tree:
            return False
        tree = tree[name]
    return True


def problem_line(text: str, problem: str) -> int | None:
    """Return the line of the key that a problem such as `train.steps = 0: must be at least 1`
    begins with, in a job file of TOML or JSON; None if it is not written there."""
    found = _KEY.match(problem)
    if found is None:
        return None
    if text.lstrip().startswith("{"):
        from zerotools.jobs.text.json_text import parse_json

        return parse_json(text, source="").lines.get(tuple(found[0].split(".")))
    return line_of(text, found[0])


def toml_problem(text: str, error: tomllib.TOMLDecodeError) -> tuple[str, int, int]:
    """Return why `text` is not TOML, and the line and column, counted from 1, at which that
    shows."""
    found = _TOML_PLACE.match(str(error))
    lines = text.splitlines() or [""]
    if found is None:
        return str(error), 1, 1
    why = found["why"][:1].lower() + found["why"][1:]
    if found["line"] is None:
        return f"{why} at the end of the file", len(lines), len(lines[-1]) + 1
    return why, int(found["line"]), int(found["column"])


def excerpt(text: str, line: int, column: int) -> str:
    """Return the line, and a caret below the column."""
    lines = text.splitlines()
    shown = lines[line - 1] if line <= len(lines) else ""
    before = shown[: column - 1].expandtabs(_TABS)
    number = str(line)
    return f"  {number} | {shown.expandtabs(_TABS)}\n  {' ' * len(number)} | {' ' * len(before)}^"

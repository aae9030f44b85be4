"""Write a tree of plain values as TOML 1.0, with comments for some of its keys."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from zerotools.core.errors import BadRequest

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(tree: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """Return `tree` as the text of a TOML file.

    `comments` maps a dotted key to the comment for it.

    Raises:
        BadRequest: the tree contains a null, which TOML does not have.
    """
    return "\n".join(_table(tree, (), comments)).lstrip("\n") + "\n"


def _table(
    tree: Mapping[str, Any], path: tuple[str, ...], comments: Mapping[str, str]
) -> Iterator[str]:
    tables = {name: value for name, value in tree.items() if isinstance(value, Mapping)}
    for name, value in tree.items():
        if name not in tables:
            where = ".".join([*path, name])
            beside = f"  # {_one_line(comments[where])}" if where in comments else ""
            yield f"{_key(name)} = {_value(value, where)}{beside}"
    for name, table in tables.items():
        if not table or any(not isinstance(value, Mapping) for value in table.values()):
            yield f"\n[{'.'.join(map(_key, [*path, name]))}]"
        yield from _table(table, (*path, name), comments)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _value(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadRequest(
                f"{where}: a job file cannot have the number {value}; write a finite number"
            )
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(entry, where) for entry in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{_key(k)} = {_value(v, where)}" for k, v in value.items())
        return f"{{ {', '.join(pairs)} }}"
    raise BadRequest(f"{where}: TOML has no null; leave it out")


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _one_line(comment: str) -> str:
    return "".join(c if c.isprintable() else " " for c in comment)

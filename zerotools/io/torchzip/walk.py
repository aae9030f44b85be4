"""Every value in a tree, each object once, without recursion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerotools.core.checkpoint import Opaque


def walk(tree: Any) -> Iterator[Any]:
    """Yield all values of a tree that a pickle gave. Shared objects come once, so a pickle that
    refers to the same list a thousand times over costs no more than its length."""
    seen: set[int] = set()
    stack = [tree]
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, Mapping):
            stack += value.keys()
            stack += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            stack += value
        elif isinstance(value, Opaque):
            stack += (value.args, value.state, value.kwargs, value.items, value.appended)

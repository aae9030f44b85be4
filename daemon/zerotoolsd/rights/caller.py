"""Who asks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A user, as the kernel or a token names it. `name` and the names of its `groups` are empty
    where they are not known: then no rule that names them is about it."""

    uid: int
    name: str | None = None
    groups: frozenset[str] = frozenset()


def called(uid: int, name: str | None) -> str:
    """`anna (uid 1000)`, for a message."""
    return f"uid {uid}" if name is None else f"{name} (uid {uid})"

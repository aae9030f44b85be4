"""The caller of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A user, as identified by the kernel or a token. `name` and the names of its `groups` are
    empty if unknown: then no rule by name applies."""

    uid: int
    name: str | None = None
    groups: frozenset[str] = frozenset()


def called(uid: int, name: str | None) -> str:
    """Format a user for a message: `anna (uid 1000)`."""
    return f"uid {uid}" if name is None else f"{name} (uid {uid})"

"""Names of a toy checkpoint's files. `format` and what it imports later share them, so they are in
a module of their own: no module may import itself by way of others."""

from __future__ import annotations

METADATA = "toy.json"


def rank_file(rank: int) -> str:
    """The file of one rank, counted from 0."""
    return f"rank-{rank}.bin"

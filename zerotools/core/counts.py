"""Counts in words: `1 tensor`, `2 tensors`."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`count` and its noun, which gets an s unless the plural is given."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"

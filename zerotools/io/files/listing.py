"""The names in a directory."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.errors import BadRequest


def names_in(path: Path) -> set[str]:
    """The names in a directory.

    Raises:
        BadRequest: it cannot be listed.
    """
    try:
        return {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise BadRequest(f"{path} cannot be listed: {error.strerror}") from None


def names_if_readable(path: Path) -> set[str]:
    """The names in a directory; none where it cannot be listed."""
    try:
        return names_in(path)
    except BadRequest:
        return set()

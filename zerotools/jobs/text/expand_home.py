"""Expand paths that begin with `~`."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.errors import BadRequest


def expanded(path: str) -> Path:
    """Return the path with its leading home directory expanded.

    Raises:
        BadRequest: no user has this home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        who = path.split("/", 1)[0]
        raise BadRequest(
            f"{path!r}: no home directory {who} is known on this machine; write the whole path, or "
            f"./{who} for a file of this name"
        ) from None

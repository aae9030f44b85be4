"""Expand paths that begin with `~`."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.errors import BadRequest


def expand_home(path: str) -> Path:
    """Return `path` with a leading `~` or `~USER` replaced by the home directory.

    Raises:
        BadRequest: the user USER does not exist, or the user has no home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        who = path.split("/", 1)[0]
        raise BadRequest(
            f"{path!r}: no home directory {who} is known on this machine; write the whole path, or "
            f"./{who} for a file of this name"
        ) from None

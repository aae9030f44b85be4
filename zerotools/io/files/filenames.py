"""File names that a checkpoint carries, before they are used to open anything."""

from __future__ import annotations


def stays_below_root(name: str) -> bool:
    """Return whether `name` is a relative POSIX path, in its simplest spelling, of a file below its
    root.

    Absolute paths, `..`, `.`, empty parts, backslashes and NUL are refused, so that a name from a
    file can be joined to the checkpoint's directory as it is.
    """
    if not name or "\0" in name or "\\" in name:
        return False
    # By hand: a checkpoint has thousands, and a path object takes ten times as long to make.
    return not any(part in ("", ".", "..") for part in name.split("/"))

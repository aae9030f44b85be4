"""The names in a directory and below it, and a check of file names that a checkpoint contains."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.io.files.open_source import RemotePath


def names_in(path: Path) -> set[str]:
    """Return the names in a directory.

    Raises:
        BadRequest: it cannot be listed.
    """
    try:
        return {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise BadRequest(f"{path} cannot be listed: {error.strerror}") from None


def names_if_readable(path: Path) -> set[str]:
    """Return the names in a directory; empty if it cannot be listed."""
    try:
        return names_in(path)
    except BadRequest:
        return set()


def is_there(path: Path) -> bool:
    """Return whether the name exists, also as a broken link."""
    return path.exists() if isinstance(path, RemotePath) else os.path.lexists(path)


def folders_below(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the directory `path` and each below it, without following links, with the names in it
    that are not directories."""
    if not isinstance(path, RemotePath):
        for folder, _, names in os.walk(path):
            yield Path(folder), names
        return
    files: dict[Path, list[str]] = {path: []}
    for each in path.below():
        for parent in reversed(each.relative_to(path).parents):
            files.setdefault(path / parent, [])
        files[each.parent].append(each.name)
    yield from files.items()


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

"""The names in a directory and below it, and a check of file names that a checkpoint contains."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.io.files.open_source import RemotePath


def names_in(path: Path) -> set[str]:
    """Return the names of all entries in a directory.

    Raises:
        BadRequest: the directory cannot be listed.
    """
    try:
        return {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise BadRequest(f"{path} cannot be listed: {error.strerror}") from None


def names_if_readable(path: Path) -> set[str]:
    """Return the names of all entries in a directory; empty if the directory cannot be listed."""
    try:
        return names_in(path)
    except BadRequest:
        return set()


def is_there(path: Path) -> bool:
    """Return whether an entry exists at the path. A broken symbolic link also counts."""
    return path.exists() if isinstance(path, RemotePath) else os.path.lexists(path)


def folders_below(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the directory `path` and each directory below it, with the names of its entries that
    are not directories. Symbolic links are not followed.
    """
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
    """Return whether `name` is a relative POSIX path, in its simplest spelling, to a file below the
    root.

    Absolute paths, `..`, `.`, empty parts, backslashes and NUL are refused. So a name from a
    checkpoint can be joined to the directory of the checkpoint unchanged.
    """
    if not name or "\0" in name or "\\" in name:
        return False
    # A path object would take ten times as long, and a checkpoint has thousands of names.
    return not any(part in ("", ".", "..") for part in name.split("/"))

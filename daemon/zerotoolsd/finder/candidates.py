"""What in a directory may be a checkpoint, and what tells one state of it from another."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.formats import FORMATS
from zerotools.formats.detect import UNFINISHED, formats_in
from zerotoolsd.supervisor.trouble import is_of_machine

MAX_FILES = 100_000
_TEMPORARY = re.compile(r"\..*|tmp[-_.].*|.*[-_.](tmp|temp|incomplete|partial)")
_SUFFIXES = tuple(suffix for form in FORMATS.values() for suffix in form.suffixes)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Candidate:
    """A file or directory as it is now. `changed` is when its newest file was last written, in
    nanoseconds; `number` is the last number in its name."""

    path: Path
    fingerprint: str
    changed: int

    @property
    def number(self) -> int | None:
        found = _NUMBER.findall(self.path.stem if self.path.is_file() else self.path.name)
        return int(found[-1]) if found and len(found[-1]) < 19 else None


def candidates_in(directory: Path) -> list[Candidate]:
    """What `directory` holds; it is itself one where no directory in it is. Empty: it is not there.

    Raises:
        BadRequest: it cannot be listed.
        OSError: the disk or the file server gives errors that pass: nothing can be said of it now.
    """
    try:
        if not directory.is_dir():
            return []
        every = set(os.listdir(directory))  # noqa: PTH208  # names
    except OSError as error:
        if is_of_machine(error):
            raise
        raise BadRequest(f"{directory} cannot be listed: {error.strerror}") from None
    names = sorted(n for n in every if not _is_temporary(n) and not _is_alias(directory, n))
    inside = [directory / name for name in names if (directory / name).is_dir()]
    found = [path for path in inside if _may_be_checkpoint(path)]
    if not found and any(
        not FORMATS[held].is_nested for held in formats_in(directory, every, FORMATS)
    ):
        found = [directory]
    if not found:
        found = [directory / name for name in names if name.endswith(_SUFFIXES)]
    return [candidate for path in found if (candidate := candidate_of(path)) is not None]


def _is_temporary(name: str) -> bool:
    return bool(_TEMPORARY.fullmatch(name) or UNFINISHED.fullmatch(name))


def _is_alias(directory: Path, name: str) -> bool:
    """Whether it is a link such as `latest` to another entry, which is found under its own name."""
    path = directory / name
    return path.is_symlink() and path.resolve().parent == directory.resolve()


def _may_be_checkpoint(path: Path) -> bool:
    """Whether one is in it, or one directory further down, as accelerate and verl nest them."""
    names = _names(path)
    return _holds(path, names) or any(_holds(path / n, _names(path / n)) for n in names)


def _names(path: Path) -> set[str]:
    try:
        return {entry.name for entry in os.scandir(path)}
    except OSError as error:
        _raise_if_it_passes(error)
        return set()


def _raise_if_it_passes(error: OSError) -> None:
    if is_of_machine(error):
        raise error


def _holds(path: Path, names: set[str]) -> bool:
    if any(name.endswith(_SUFFIXES) for name in names):
        return True
    return bool(names and formats_in(path, names, FORMATS))


def candidate_of(path: Path) -> Candidate | None:
    """`path` as it is now; None: it is gone, or has no file. Raises OSError, as `candidates_in`."""
    digest, changed, count = hashlib.sha256(), 0, 0
    try:
        for name, found in _files(path):
            digest.update(os.fsencode(name))
            digest.update(f"\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
            changed, count = max(changed, found.st_mtime_ns), count + 1
            if count > MAX_FILES:
                break
    except OSError as error:
        _raise_if_it_passes(error)
        return None  # it is being written, or deleted
    return Candidate(path, digest.hexdigest(), changed) if count else None


def _files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    if not path.is_dir():
        yield path.name, path.stat()
        return
    for root, directories, names in os.walk(path, onerror=_raise_if_it_passes):
        directories.sort()
        for name in sorted(names):
            file = Path(root) / name
            yield str(file.relative_to(path)), file.lstat()

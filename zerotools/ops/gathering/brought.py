"""Journal entries of an unfinished output for files that were fetched or begun."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zerotools.ops.gathering.far_listing import FarFile

COMMAND = "gather"


@dataclass(frozen=True, slots=True)
class Brought:
    """A file as its source had it. `sha256` is that of the received bytes; None: it is not
    complete."""

    source: str
    size: int
    time: str
    sha256: str | None

    @property
    def file(self) -> FarFile:
        """The file as a listing has it."""
        return FarFile(self.size, self.time)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the journal."""
        return asdict(self)

    def is_complete_in(self, directory: Path, name: str) -> bool:
        """Return whether all of it has arrived and is still in `directory`, with no link on its
        path."""
        path = directory / name
        way = [path, *(each for each in path.parents if each.is_relative_to(directory))]
        if self.sha256 is None or any(each.is_symlink() for each in way):
            return False
        return path.is_file() and path.stat().st_size == self.size


def brought(noted: Any) -> Brought | None:
    """Return a line of the journal as an entry, or None if it is not one."""
    try:
        found = Brought(**noted)
    except TypeError:
        return None
    is_text = all(isinstance(each, str) for each in (found.source, found.time, found.sha256 or ""))
    return found if is_text and isinstance(found.size, int) else None


def identity(tag: str | None) -> dict[str, str]:
    """Return the part of an output's identity that must not change between runs. Sources may be
    added and removed."""
    return {"command": COMMAND, "tag": tag or ""}


def start_over(directory: Path) -> str:
    """Return the advice for a new start."""
    return f"remove {directory} to start over"

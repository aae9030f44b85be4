"""A config file as values that know the line on which they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest

LARGEST_FILE = 1 << 20
DEEPEST = 32
"""The limit of nested objects; those of DeepSpeed nest five levels."""

Trail = tuple[str, ...]
"""The keys that lead to a value; an element of a list counts by its index."""


@dataclass(frozen=True)
class Document:
    """The tree of a file, and the line of each key in it.

    `titles` has the user's name of a key if the tree was made of another file's keys; `accepted`
    lists the corrections of `--lenient`, `mended` is the corrected text; `text` is the whole file
    as it was written.
    """

    source: str
    tree: Mapping[str, Any]
    lines: Mapping[Trail, int]
    accepted: tuple[str, ...] = ()
    titles: Mapping[Trail, str] | None = None
    text: str | None = None
    mended: str | None = None

    def title(self, trail: Trail) -> str:
        """Return the key as the user wrote it, dotted."""
        return (self.titles or {}).get(trail) or ".".join(trail)

    def place(self, trail: Trail) -> str:
        """Return `ds.json:12`, or only the file for a key that is not written in it."""
        line = self.lines.get(trail)
        return self.source if line is None else f"{self.source}:{line}"


def read_text(path: Path, what: str) -> str:
    """Return the UTF-8 text of a config or job file, without a byte order mark; `what` names it in
    errors.

    Raises:
        BadRequest: it is not there, cannot be read, is larger than 1 MiB, or not UTF-8.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise BadRequest(f"{path}: there is no such {what}") from None
    except OSError as error:
        raise BadRequest(f"{path}: cannot be read ({error.strerror})") from error
    return text_of(data, str(path), what)


def text_of(data: bytes, source: str, what: str) -> str:
    """Return text as in `read_text`, from bytes that were read: one more than the limit means too
    many.

    Raises:
        BadRequest: there are too many, or they are not UTF-8.
    """
    if len(data) > LARGEST_FILE:
        raise BadRequest(f"{source}: a {what} has {LARGEST_FILE} bytes at most, and this has more")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise BadRequest(f"{source}: is UTF-16; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadRequest(
            f"{source}:{line}: is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from None

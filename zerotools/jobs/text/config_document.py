"""A config file as a tree of values, with the line number of each key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest

LARGEST_FILE = 1 << 20
DEEPEST = 32
"""The largest accepted depth of nested objects. DeepSpeed's configs have at most five levels."""

Trail = tuple[str, ...]
"""The keys on the way from the root of a tree to a value.

For an element of a list, the key is its index.
"""


@dataclass(frozen=True)
class Document:
    """The values of a config file as a tree, and the line number of each key.

    If the tree was made from a file with other keys, `titles` has the original keys. `accepted`
    lists the corrections that `--lenient` made, and `mended` is the corrected text. `text` is the
    original text of the file.
    """

    source: str
    tree: Mapping[str, Any]
    lines: Mapping[Trail, int]
    accepted: tuple[str, ...] = ()
    titles: Mapping[Trail, str] | None = None
    text: str | None = None
    mended: str | None = None

    def title(self, trail: Trail) -> str:
        """Return the dotted key at `trail` as the user wrote it."""
        return (self.titles or {}).get(trail) or ".".join(trail)

    def location(self, trail: Trail) -> str:
        """Return the file and the line of a key, such as `ds.json:12`.

        Return only the file if the key is not in it.
        """
        line = self.lines.get(trail)
        return self.source if line is None else f"{self.source}:{line}"


def read_text(path: Path, what: str) -> str:
    """Return the text of a config or job file in UTF-8, without a byte order mark.

    `what` names the kind of file in error messages.

    Raises:
        BadRequest: the file does not exist, cannot be read, is larger than 1 MiB, or is not UTF-8.
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
    """Return the text of a config or job file from its bytes, as `read_text` returns it.

    A file with more bytes than the size limit is refused. So a caller needs to read only one byte
    more than the limit.

    Raises:
        BadRequest: there are more bytes than the limit, or they are not UTF-8.
    """
    if len(data) > LARGEST_FILE:
        raise BadRequest(
            f"{source}: a {what} may have at most {LARGEST_FILE} bytes, but this one has more"
        )
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise BadRequest(f"{source}: is UTF-16; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadRequest(
            f"{source}:{line}: is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from None

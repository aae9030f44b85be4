"""Messages on a file that should be UTF-8 and is not: the wrong byte, or the kind of the file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from zerotools.core.errors import BadFile

_OTHERS = (
    (b"\x1f\x8b", "is compressed by gzip: unpack it (gunzip -k)"),
    (b"\x28\xb5\x2f\xfd", "is compressed by zstd: unpack it (unzstd)"),
    (b"\xfd7zXZ\0", "is compressed by xz: unpack it (unxz -k)"),
    (b"BZh", "is compressed by bzip2: unpack it (bunzip2 -k)"),
    (b"PK\3\4", "is a zip archive: unpack it (unzip)"),
    (b"PAR1", "is Parquet: give it a name that ends in .parquet"),
    (b"ARROW1", "is Arrow: give it a name that ends in .arrow"),
    (b"\xff\xfe", "is UTF-16: convert it (iconv -f UTF-16 -t UTF-8)"),
    (b"\xfe\xff", "is UTF-16: convert it (iconv -f UTF-16 -t UTF-8)"),
)
"""The first bytes of other kinds of files, and the action to take."""
_LONGEST = max(len(start) for start, _ in _OTHERS)


def not_utf8(path: Path, line: int, error: UnicodeDecodeError, at: int | None = None) -> BadFile:
    """Return the refusal of `path`: its line `line`, counted from 1, has the `error`; `at` is the
    byte of the file, if it is known."""
    known = _known_as(path)
    if known is not None:
        return BadFile(f"{path} {known}, and name the new file")
    wrong = f"0x{error.object[error.start]:02x}"
    where = f" ({wrong}: {error.reason})"
    if at is not None:
        where = f": byte {at} of the file is {wrong} ({error.reason})"
    return BadFile(f"{path}, line {line}: is not UTF-8{where}; convert it, or leave it out")


def _known_as(path: Path) -> str | None:
    with suppress(OSError), path.open("rb") as file:
        begin = file.read(_LONGEST)
        return next((what for start, what in _OTHERS if begin.startswith(start)), None)
    return None

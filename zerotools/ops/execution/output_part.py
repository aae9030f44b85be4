"""The number of a part of the work, when several processes do it together."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zerotools.core.errors import BadRequest

MOST_PARTS = 1 << 20


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Part number `index`, from 1, of an output that is divided into `of` parts."""

    index: int
    of: int

    def __str__(self) -> str:
        return f"part {self.index} of {self.of}"


def parse_part(given: str | tuple[int, int] | OutputPart) -> OutputPart:
    """Parse the number of a part: "3/8" or (3, 8) is the third of eight parts.

    Raises:
        BadRequest: `given` is not the number of a part.
    """
    if isinstance(given, OutputPart):
        return given
    text = "/".join(map(str, given)) if isinstance(given, list | tuple) else str(given)
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if found is None:
        raise BadRequest(f"--part {text!r} is not a part; write 3/8 for the third of eight")
    index, of = int(found[1]), int(found[2])
    if not 1 <= of <= MOST_PARTS or not 1 <= index <= of:
        raise BadRequest(f"--part {text!r}: parts are counted from 1/{of} to {of}/{of}")
    return OutputPart(index, of)

"""Format counts (`1 tensor`, `2 tensors`), and parse sizes such as `5GB` and `1GiB`."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "b": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), start=1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), start=1)},
}
MOST_BYTES = 2**62


def count_text(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun, such as `2 tensors`. The plural of the noun is formed with an
    s, unless `plural` is set.
    """
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def bytes_of(size: int | str) -> int:
    """Return `size` as a number of bytes. `size` is a number, or text with a unit such as `512MiB`.

    Raises:
        ValueError: the value is not a size, is less than one byte, or is larger than any machine's
            memory or disks.
    """
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([a-zA-Z]*)\s*", str(size))
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError("is not a size; write 5GB, 512MiB or a number of bytes")
    found = int(float(match[1]) * factor)
    if found < 1:
        raise ValueError("is less than one byte")
    if found > MOST_BYTES:
        raise ValueError("is more than any machine has")
    return found

"""Option types: sizes such as `5GB` and `1GiB`."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {
    "": 1,
    "b": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), start=1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), start=1)},
}


class ByteSize(click.ParamType[int]):
    """A number of bytes: `5GB` is 5 * 10^9, `1GiB` is 2^30, a bare number counts bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(value))
        factor = _UNITS.get(match[2].lower()) if match else None
        if match is None or factor is None:
            self.fail(
                f"{value!r} is not a size; write 5GB, 512MiB or a number of bytes", param, ctx
            )
        size = int(float(match[1]) * factor)
        if size < 1:
            self.fail(f"{value!r} is less than one byte", param, ctx)
        return size

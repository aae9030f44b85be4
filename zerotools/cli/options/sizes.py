"""Option types: sizes such as `5GB` and `1GiB`."""

from __future__ import annotations

from typing import Any

import click

from zerotools.core.counts import bytes_of


class ByteSize(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A number of bytes: `5GB` is 5 * 10^9, `1GiB` is 2^30, a bare number counts bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return bytes_of(str(value))
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)

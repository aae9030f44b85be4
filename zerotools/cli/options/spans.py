"""An option type: spans of time such as `30d` and `12h`."""

from __future__ import annotations

from typing import Any

import click

from zerotools.core.errors import BadRequest


class Span(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """Seconds: `30d`, `12h`, or a bare number of them."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        from zerotools.jobs.binding.durations import seconds_of  # of jobs: only if it is given

        try:
            return seconds_of(int(value) if value.isascii() and value.isdecimal() else value)
        except ValueError as error:
            option = param.opts[0] if param is not None else "the time"
            raise BadRequest(f"{option} {value}: {error}") from None

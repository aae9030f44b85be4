"""Many submissions of one job: a sweep over values of its keys, or a number of copies."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from zerotools.cli.options.grouped import JOB, option
from zerotools.core.errors import BadRequest
from zerotools.jobs.sweeps import MOST_MEMBERS, count_of, values_of


@dataclass(frozen=True, kw_only=True)
class ArrayOptions:
    """The values of one command's options."""

    sweeps: tuple[str, ...] = ()
    count: int | None = None

    @property
    def asked(self) -> bool:
        """True if an array is requested."""
        return bool(self.sweeps) or self.count is not None

    def sweep(self) -> dict[str, list[Any]]:
        """Return the values of each key. Raises BadRequest: none, or too many."""
        found: dict[str, list[Any]] = {}
        for text in self.sweeps:
            key, values = values_of(text)
            if key in found:
                raise BadRequest(f"--sweep {text}: {key} is swept twice; name all its values once")
            found[key] = values
        count_of(found, self.count)
        return found


def array_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets `array`, an ArrayOptions."""

    @option(
        "--sweep",
        "sweeps",
        group=JOB,
        metavar="KEY=V,V,...",
        multiple=True,
        help="A job for each of these values of a key; several: for each combination.",
    )
    @option(
        "--array",
        "count",
        group=JOB,
        type=click.IntRange(1, MOST_MEMBERS),
        metavar="N",
        help="Number of jobs of each; ZEROTOOLS_ARRAY_INDEX gives their ranks the index of the "
        "job.",
    )
    @functools.wraps(command)
    def with_options(
        *arguments: Any, sweeps: tuple[str, ...], count: int | None, **others: Any
    ) -> Any:
        return command(*arguments, array=ArrayOptions(sweeps=sweeps, count=count), **others)

    return with_options

"""The waiting conditions of a submitted job: its priority, a hold, a time, other jobs."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import click

from zerotools.cli.options.grouped import WHEN, option
from zerotools.core.errors import BadRequest
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.priorities import LEAST_PRIORITY, MOST_PRIORITY

CONDITIONS = ("ok", "any")
_TIME_OF_DAY = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")


@dataclass(frozen=True, kw_only=True)
class WaitingOptions:
    """The values of one command's options."""

    priority: int | None = None
    hold: bool = False
    begin: str | None = None
    after: tuple[str, ...] = ()

    def terms(self, numbers_of: Callable[[str], Sequence[int]]) -> dict[str, Any]:
        """Return the keys of a request for them; `numbers_of` returns those of the jobs that a word
        names. Raises BadRequest."""
        found: dict[str, Any] = {}
        if self.priority is not None:
            found["priority"] = self.priority
        if self.hold:
            found["hold"] = True
        if self.begin is not None:
            found["begin"] = time_of(self.begin, time.time())
        if self.after:
            found["after"] = dependencies(numbers_of, self.after)
        return found


def waiting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets `waiting`, a WaitingOptions."""

    @option(
        "--priority",
        group=WHEN,
        type=click.IntRange(LEAST_PRIORITY, MOST_PRIORITY),
        metavar="N",
        help=f"{LEAST_PRIORITY} to {MOST_PRIORITY}: the higher one starts first.  [default: 0]",
    )
    @option(
        "--hold",
        group=WHEN,
        is_flag=True,
        help="Hold it until zerotools release JOB.",
    )
    @option(
        "--begin",
        group=WHEN,
        metavar="WHEN",
        help="Not before this time: +2h, 22:30, 2027-01-31 or 2027-01-31T22:30.",
    )
    @option(
        "--after",
        group=WHEN,
        metavar="JOB[:ok|any]",
        multiple=True,
        help="Only when this job has succeeded, or with :any has ended; may be repeated.",
    )
    @functools.wraps(command)
    def with_options(
        *arguments: Any,
        priority: int | None,
        hold: bool,
        begin: str | None,
        after: tuple[str, ...],
        **others: Any,
    ) -> Any:
        waiting = WaitingOptions(priority=priority, hold=hold, begin=begin, after=after)
        return command(*arguments, waiting=waiting, **others)

    return with_options


def time_of(text: str, now: float) -> float:
    """Return the time of WHEN, in seconds since 1970, by the local calendar. Raises BadRequest."""
    if text.startswith("+"):
        try:
            return now + seconds_of(int(text[1:]) if text[1:].isdecimal() else text[1:])
        except ValueError as error:
            raise BadRequest(f"--begin {text}: {error}") from None
    if (match := _TIME_OF_DAY.fullmatch(text)) is not None:
        hour, minute, second = (int(part or 0) for part in match.groups())
        today = datetime.fromtimestamp(now).replace(
            hour=hour, minute=minute, second=second, microsecond=0
        )
        next_one = today if today.timestamp() > now else today + timedelta(days=1)
        return next_one.timestamp()
    try:
        found = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise BadRequest(
            f"--begin {text}: is not a time; write +2h, 22:30, 2027-01-31 or 2027-01-31T22:30"
        ) from None
    if found < now:
        shown = datetime.fromtimestamp(now).isoformat(sep=" ", timespec="seconds")
        raise BadRequest(f"--begin {text}: is in the past; it is {shown}")
    return found


def dependencies(
    numbers_of: Callable[[str], Sequence[int]], given: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the dependencies of --after; `numbers_of` returns the jobs that a word names. Raises
    BadRequest: the job or the condition does not exist."""
    found: dict[int, dict[str, Any]] = {}
    for text in given:
        reference, colon, condition = text.rpartition(":")
        if not colon:
            reference, condition = text, CONDITIONS[0]
        elif condition not in CONDITIONS:
            if reference.isdecimal():
                raise BadRequest(f"--after {text}: {condition!r} is neither ok nor any")
            reference, condition = text, CONDITIONS[0]  # a name may have a colon
        for job_id in numbers_of(reference):
            if job_id in found and found[job_id]["condition"] != condition:
                raise BadRequest(f"--after {text}: job {job_id} is named twice, as ok and as any")
            found[job_id] = {"job": job_id, "condition": condition}
    return list(found.values())

"""The choices of the user: a job, an order, a filter, a page. The module has only
immutable values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zerotools.cli.job_views.describe_job import (
    Job,
    queue_order,
    remaining_seconds,
    shown_state,
    user_of,
)

JOBS, JOB, HELP, LOG = "jobs", "job", "help", "log"


ORDERS: tuple[tuple[str, Callable[[Job], Any]], ...] = (
    ("state", queue_order),
    ("id", lambda job: job["id"]),
    ("owner", lambda job: (user_of(job), job["id"])),
    ("name", lambda job: (str(job["name"] or "").casefold(), job["id"])),
    ("time left", lambda job: (_remaining_seconds(job), job["id"])),
)


def _remaining_seconds(job: Job) -> float:
    left = remaining_seconds(job)
    return float("inf") if left is None else left


def passing(only: str) -> Callable[[str], bool]:
    """Return a function that returns whether a text passes the filter `only`.

    The text must contain every word of the filter, and no word that begins with `-` in the filter.
    A word is a regular expression, or plain text if it is not a valid one. Case is ignored.
    """
    words = [word for word in only.split() if word != "-"]
    has = [_finder(word) for word in words if not word.startswith("-")]
    lacks = [_finder(word[1:]) for word in words if word.startswith("-")]

    def passes(text: str) -> bool:
        return all(finds(text) for finds in has) and not any(finds(text) for finds in lacks)

    return passes


def _finder(word: str) -> Callable[[str], bool]:
    plain = word.casefold()
    try:
        expression = re.compile(word, re.IGNORECASE)
    except re.error:
        return lambda text: plain in text.casefold()
    return lambda text: plain in text.casefold() or expression.search(text) is not None


@dataclass(frozen=True)
class ViewState:
    """The choices of the user.

    Attributes:
        chosen: the number of the chosen job.
        order: the index of the order of jobs in `ORDERS`.
        first: the index of the job in the top row of the table.
        only: the filter: only jobs with these words in their number, name, owner or state are
            listed; see `passing`.
        typed: true while the user types the filter, or on the log page the words to find.
        page: the page on the screen.
        back: the page from which a log or the help was opened.
        rank: the rank with the log that the log page shows.
        top: the first line of the log page; None: the page shows the end of the log.
        errors: true if the log page shows only lines with errors and warnings.
        find: the log page shows only lines with these words; see `passing`.
        question: a question that waits for yes or no; empty if no question is shown.
        asked: the number of the job that the question is about.
        wish: the action to take on yes.
        message: a text for the last line, such as the daemon's response, with its meaning.
    """

    chosen: int | None = None
    order: int = 0
    only: str = ""
    typed: bool = False
    first: int = 0
    page: str = JOBS
    back: str = JOBS
    rank: int = 0
    top: int | None = None
    errors: bool = False
    find: str = ""
    question: str = ""
    asked: int | None = None
    wish: str = ""
    message: tuple[str, str] = ("", "")

    def listed(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs that pass the filter, in the chosen order."""
        passes = passing(self.only)
        found = [
            job
            for job in jobs
            if passes(f"{job['id']} {job['name'] or ''} {user_of(job)} {shown_state(job)}")
        ]
        return sorted(found, key=ORDERS[self.order][1])

    def keep_chosen(self, listed: Sequence[Job], before: Sequence[Job]) -> ViewState:
        """Return the state with a chosen job from `listed`.

        If the chosen job is not in `listed`, the job at the position that it had in `before` is
        chosen.
        """
        numbers = [job["id"] for job in listed]
        if self.chosen in numbers:
            return self
        if not numbers:
            return replace(self, chosen=None)
        old = [job["id"] for job in before]
        place = old.index(self.chosen) if self.chosen in old else 0
        return replace(self, chosen=numbers[min(place, len(numbers) - 1)])

    def moved(self, listed: Sequence[Job], by: int) -> ViewState:
        """Return the state after the choice has moved by `by` rows: down, or up if `by` is
        negative.
        """
        if not listed:
            return self
        numbers = [job["id"] for job in listed]
        place = numbers.index(self.chosen) if self.chosen in numbers else 0
        return replace(self, chosen=numbers[min(max(0, place + by), len(numbers) - 1)])

    def scrolled(self, listed: Sequence[Job], rows: int) -> ViewState:
        """Return the state with the table scrolled so that the chosen job is visible in `rows`
        rows.
        """
        numbers = [job["id"] for job in listed]
        place = numbers.index(self.chosen) if self.chosen in numbers else 0
        first = min(max(self.first, place - rows + 1), place, max(0, len(listed) - rows))
        return replace(self, first=max(0, first))

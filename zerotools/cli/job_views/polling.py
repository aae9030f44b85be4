"""Polling the daemon, also while it restarts: jobs continue without it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from zerotools.core.errors import DaemonUnreachable

T = TypeVar("T")

INTERVAL_SECONDS = 0.4
PATIENCE_SECONDS = 60.0


class Poller:
    """Paces a loop of requests. `pause` and `clock` are time.sleep and time.monotonic. `deadline`
    is a reading of `clock` after which no request is made.

    `say` gets the line for a lost daemon; a caller that draws on the terminal replaces it.
    """

    def __init__(
        self,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        deadline: float | None = None,
    ) -> None:
        self._interval = interval_seconds
        self._patience = patience_seconds
        self._pause = pause
        self._clock = clock
        self._deadline = deadline
        self.say: Callable[[str], None] = _to_stderr

    def ask(self, question: Callable[[], T]) -> T:
        """Return the answer; a daemon that answered before may be away for a minute."""
        until: float | None = None
        while True:
            try:
                return question()
            except DaemonUnreachable as error:
                if self.is_late:
                    raise
                if until is None:
                    until = self._clock() + self._patience
                    self.say(f"warning: {error}; trying again for a minute")
                elif self._clock() > until:
                    raise
            self._pause(self._interval)

    @property
    def is_late(self) -> bool:
        """True if the deadline has passed."""
        return self._deadline is not None and self._clock() >= self._deadline

    def rounds(self) -> Iterator[None]:
        """Yield once every interval, without end."""
        while True:
            yield
            self._pause(self._interval)


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")

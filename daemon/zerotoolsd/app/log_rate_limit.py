"""The daemon's log: an error that occurs a thousand times a second is written only a few times."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_SECONDS = 60.0
MOST = 20
"""Warnings and errors of one line of code that are written in a window."""


@dataclass
class _Seen:
    began: float
    count: int = 0


class LogLimit(logging.Filter):
    """Passes `MOST` warnings or errors of each place in the code, and counts the others.

    The first one of the next window reports how many those were.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, int], _Seen] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass or count a record; see logging.Filter."""
        if record.levelno < logging.WARNING:
            return True
        now, key = self._clock(), (record.pathname, record.lineno)
        seen = self._seen.setdefault(key, _Seen(now))
        if now - seen.began >= WINDOW_SECONDS:
            if seen.count > MOST:
                left_out = f"{seen.count - MOST:,} more like this were left out before"
                record.msg, record.args = f"{record.getMessage()} ({left_out})", ()
            self._seen[key] = seen = _Seen(now)
        seen.count += 1
        return seen.count <= MOST


def start_logging(*, debug: bool) -> None:
    """Log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(LogLimit())
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler])

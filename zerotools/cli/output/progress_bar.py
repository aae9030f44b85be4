"""The progress of a conversion: a bar on a terminal, elsewhere a line every half a minute.

The bar appears when the first bytes are written, so that no empty bar precedes an error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from zerotools.cli.output import render
from zerotools.public.progress import ProgressBars, TqdmBar

EVERY_SECONDS = 30.0
"""The time in seconds between two lines if the stream is not a terminal."""


class ProgressLines:
    """Prints `consolidating: 41 %, 3.2 GiB of 7.8 GiB, 40 s left` every half a minute."""

    def __init__(
        self,
        total: int,
        verb: str,
        stream: TextIO,
        *,
        every_seconds: float = EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._verb = verb
        self._stream = stream
        self._every = every_seconds
        self._clock = clock
        self._began = self._last_drawn_at = clock()
        self._done = 0

    def advance(self, count: int) -> None:
        """Add `count` bytes to the bytes that are done."""
        self._done += count
        now = self._clock()
        if now - self._last_drawn_at < self._every or self._done >= self._total:
            return
        self._last_drawn_at = now
        left = (now - self._began) * (self._total - self._done) / self._done
        self._stream.write(
            f"{self._verb}: {100 * self._done // self._total} %, {render.size(self._done)} of "
            f"{render.size(self._total)}, {render.duration(left)} left\n"
        )
        self._stream.flush()

    def close(self) -> None:
        """Do nothing: every line is complete."""


@contextmanager
def shown_progress(stream: TextIO | None = None) -> Iterator[ProgressBars]:
    """Yield a function to pass as the parameter `progress` of a conversion. It shows the progress
    on `stream` (default: stderr).
    """
    stream = stream or sys.stderr

    def make_bar(total: int, stage: str) -> Any:
        if stream.isatty():
            from tqdm import tqdm

            return TqdmBar(total, stage, tqdm, file=stream, dynamic_ncols=True)
        return ProgressLines(total, stage, stream)

    bars = ProgressBars(make_bar)
    try:
        yield bars
    finally:
        bars.close()

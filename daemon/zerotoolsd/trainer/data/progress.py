"""The progress of reading a job's data, for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.jobs.binding.durations import in_words

MEGABYTE = 10**6


@dataclass
class ReadingProgress:
    """Counts the bytes of files that are read; one thread writes, others read."""

    total: int = 0
    clock: Callable[[], float] = time.monotonic
    lost: list[int] = field(default_factory=list)
    """Exit statuses of processes next to the rank that ended before the data was read."""
    others: int = 0
    """Bytes written by another job to the files that this one waits for."""
    _before: int = 0
    _within: int = 0
    _began: float | None = None
    _first: int = field(default=0, repr=False)

    def through(self, paths: Sequence[Path]) -> Iterator[Path]:
        """Yield each of `paths`, and count it as read when the next one is requested."""
        sizes = [_size(path) for path in paths]
        self.total += sum(sizes)
        self._began = self.clock()
        self._first = self._before
        for path, size in zip(paths, sizes, strict=True):
            yield path
            self._within = 0
            self._before += size

    def seen(self, nbytes: int) -> None:
        """Record that so many bytes of the current file are read."""
        self._within = nbytes

    @property
    def done(self) -> int:
        """Bytes that are read."""
        return self._before + self._within

    def words(self) -> str:
        """Return how much of the data is read, the rate, and the remaining time; empty at the
        begin."""
        if self._began is None or not self.done:
            waits = f"another job tokenises it, {self.others / MEGABYTE:.0f} MB are written"
            return waits if self.others else ""
        seconds = self.clock() - self._began
        rate = (self.done - self._first) / seconds if seconds > 0 else 0.0
        found = f"{self.done / MEGABYTE:.0f} of {self.total / MEGABYTE:.0f} MB"
        if not rate:
            return found
        left = max(0, self.total - self.done) / rate
        return f"{found}, {rate / MEGABYTE:.1f} MB/s, {in_words(max(1, round(left)))} left"

    def tell_until(self, is_over: Callable[[], bool], tell: Callable[[str], None]) -> None:
        """Pass `words` to `tell` each time that the reading has got further, until it `is_over`.

        Time alone is not progress: a hanging read must be recognizable.
        """
        before = (0, 0)
        while not is_over():
            if (now := (self.done, self.others)) != before:
                tell(self.words())
                before = now


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # its reader reports the error
        return 0

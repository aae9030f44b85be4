"""A value that is kept for some seconds, because reading it is slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
SPARED = 50.0
"""A reading that took t seconds is repeated after 50 t at the earliest: 2 % of the time at most."""


class CachedValue(Generic[T]):
    """A value that is read again after `seconds`, or later if reading takes long. `clock` returns
    monotonic seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._known: tuple[object, T] | None = None
        self._until = 0.0

    def get(self, read: Callable[[], T], about: object = None) -> T:
        """Return the value. It is read with `read` if it is too old, or was read for another
        `about`.
        """
        begun = self._clock()
        if self._known is None or self._known[0] != about or begun >= self._until:
            self._known = about, read()
            took = self._clock() - begun
            self._until = begun + max(self._seconds, SPARED * took)
        return self._known[1]

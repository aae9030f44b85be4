"""A value that is kept for some seconds, because reading it is slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
SPARED = 50.0
"""If reading a value took t seconds, it is read again after 50 t seconds. So reading takes at most
2 % of the time.
"""


class CachedValue(Generic[T]):
    """A value that is read again after `seconds` seconds. If reading takes long, this pause is
    longer. `clock` returns monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._known: tuple[object, T] | None = None
        self._until = 0.0

    def get(self, read: Callable[[], T], about: object = None) -> T:
        """Return the value. Call `read` if the known value is too old, or is not about `about`, for
        example about another job."""
        begun = self._clock()
        if self._known is None or self._known[0] != about or begun >= self._until:
            self._known = about, read()
            took = self._clock() - begun
            self._until = begun + max(self._seconds, SPARED * took)
        return self._known[1]

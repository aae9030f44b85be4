"""Runs one task at a time concurrently with training, in a separate thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class BackgroundTask(Generic[Value]):
    """A function that runs in a thread; the caller gets its result or error.

    It is a daemon thread, so the end of the process does not wait for it.
    """

    def __init__(self, act: Callable[[], Value]) -> None:
        self._act = act
        self._value: list[Value] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="save", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value.append(self._act())
        except BaseException as error:  # raised again in the thread that asks
            self._error = error

    @property
    def is_over(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        return not self._thread.is_alive()

    def result(self) -> Value:
        """Wait, and return the function's result or raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value[0]

"""A thread for work that may take long, while the screen continues.

The program does not wait for it at the end, because a file system or a driver may block it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
_Task = Callable[[], None]


class Beside:
    """Does one thing after another; what comes of it goes to the event loop that it was made in."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._count = 0
        Thread(target=self._work, name=name, daemon=True).start()

    @property
    def is_idle(self) -> bool:
        """True if no work is in progress."""
        return self._count == 0

    def do(
        self, task: Callable[[], T], then: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Have `task` done; the loop calls `then` with its value, or `failed` with its error."""
        self._count += 1

        def over(value: T | None, error: Exception | None) -> None:
            self._count -= 1
            if error is not None:
                failed(error)
            else:
                then(value)  # type: ignore[arg-type]

        def work() -> None:
            value, problem = None, None
            try:
                value = task()
            except Exception as error:  # reported to the waiting caller
                problem = error
            with suppress(RuntimeError):  # the loop is closed: the screen is gone
                self._loop.call_soon_threadsafe(over, value, problem)

        self._tasks.put(work)

    def close(self) -> None:
        """Let the thread end when it has done its work."""
        self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

"""Signals that end a test, after it has ended all of its processes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def ending_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise SystemExit, as Ctrl-C raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _leave) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore these signals inside: the user may press Ctrl-C twice, and nothing may remain."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    deaf = (signal.SIGINT, *_ENDING)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in deaf}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

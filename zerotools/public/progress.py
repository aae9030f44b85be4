"""Report the progress of a function to a callback of the user, or show a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from zerotools.core.errors import BadRequest


@dataclass(frozen=True, slots=True)
class ProgressUpdate:
    """The progress of a stage such as "consolidate" or "verify": `done` of `total` bytes."""

    stage: str
    done: int
    total: int


Callback = Callable[[ProgressUpdate], None]
ProgressWanted = Callback | bool | None
"""The value of the parameter `progress`: a callback, True for a bar, or None for no progress."""


class ProgressBars:
    """A callback that shows a progress bar for each stage. `make_bar` is called with the total and
    the stage, and returns a bar that has `advance(bytes)` and `close()`.

    A bar appears when the first bytes are reported. So no empty bar is shown before an error.
    """

    def __init__(self, make_bar: Callable[[int, str], Any]) -> None:
        self._make_bar = make_bar
        self._bar: Any = None
        self._shown: ProgressUpdate | None = None

    def __call__(self, now: ProgressUpdate) -> None:
        shown = self._shown
        is_same = shown is not None and (shown.stage, shown.total) == (now.stage, now.total)
        if shown is None or not is_same or now.done < shown.done:
            self.close()
            self._bar = self._make_bar(now.total, now.stage)
            shown = ProgressUpdate(now.stage, 0, now.total)
        self._bar.advance(now.done - shown.done)
        self._shown = now

    def close(self) -> None:
        """Close the last bar. It stays on the screen."""
        if self._bar is not None:
            self._bar.close()
        self._bar = self._shown = None


class TqdmBar:
    """A progress bar of tqdm: a widget in a notebook, text elsewhere. `bar` is the class of tqdm;
    None: tqdm chooses it."""

    def __init__(self, total: int, stage: str, bar: Any = None, **attributes: Any) -> None:
        if bar is None:
            from tqdm.auto import tqdm as bar  # imports asyncio

        self._bar = bar(
            total=total,
            desc=stage,
            unit="iB",  # tqdm puts K, M, G in front
            unit_scale=True,
            unit_divisor=1024,
            **attributes,
        )

    def advance(self, count: int) -> None:
        """Add `count` bytes to the number of finished bytes."""
        self._bar.update(count)

    def close(self) -> None:
        """Close the bar. It stays on the screen, with the cursor below it."""
        self._bar.close()


Meter = Callable[[int, str], AbstractContextManager[Callable[[int], None]]]
"""Called with the total bytes and the name of a stage. Returns a context that yields a function,
which is called with the number of bytes of each step.
"""


@contextmanager
def metering(wanted: ProgressWanted) -> Iterator[Meter]:
    """Return a context with a `Meter`, which reports the progress of every stage to `wanted`.
    `wanted` is a callback of the user, or True for progress bars; None and False report nothing."""
    if wanted is not None and not isinstance(wanted, bool) and not callable(wanted):
        raise BadRequest(f"progress={wanted!r}: must be a callable, True or False")
    bars = ProgressBars(TqdmBar) if wanted is True else None
    callback: Callback | None = bars if isinstance(wanted, bool) else wanted

    @contextmanager
    def meter(total: int, stage: str) -> Iterator[Callable[[int], None]]:
        done, lock = 0, Lock()

        def advance(count: int) -> None:
            nonlocal done
            if callback is None:
                return
            with lock:  # some stages count in several threads
                done += count
                callback(ProgressUpdate(stage, done, total))

        yield advance
        if 0 < done < total:  # bytes that need not be read count as done
            advance(total - done)

    try:
        yield meter
    finally:
        if bars is not None:
            bars.close()

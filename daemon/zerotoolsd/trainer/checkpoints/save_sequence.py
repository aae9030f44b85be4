"""The saves of a run, one after the other, during a pause of training or concurrently."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from zerotools.runs.job_record import JobRecord
from zerotoolsd.trainer.checkpoints.background import BackgroundTask
from zerotoolsd.trainer.checkpoints.saving import Saved, SaveFailed, Saver
from zerotoolsd.trainer.model import rng
from zerotoolsd.trainer.rank.failures import Diverged

Write = Callable[[Path], None]


@dataclass(frozen=True)
class SaveResult:
    """A save that is over: `saved`, or `why` it failed. Training stood still `stall_seconds`."""

    step: int
    stall_seconds: float
    saved: Saved | None
    why: str = ""


@dataclass
class Saves:
    """Runs one save at a time. All ranks call each method in the same order.

    The save of one rank may complete one step before that of another. So errors that end the run
    are raised by `begin` and `settle`, because all ranks wait there.

    `prepare` returns the function that writes this rank's part of the current state. `beside` means
    that this function has a copy of the state, and may be called in another thread while training
    continues; then no other code may use the saver's group.
    """

    saver: Saver
    prepare: Callable[[], Write]
    beside: bool = False
    _task: BackgroundTask[Saved] | None = None
    _step: int = 0
    _began: float = 0.0
    _stall: float = 0.0
    _diverged: Diverged | None = None
    _ended: list[SaveResult] = field(default_factory=list)

    def begin(self, record: JobRecord) -> None:
        """Save the state as the checkpoint of `record.step`, after the current save.

        Raises:
            Diverged: the state, or the one saved before, cannot be continued from.
        """
        began = time.monotonic()
        self.settle()
        self._step, self._began = record.step, began
        save = partial(self.saver.save, record, self.prepare(), rng.capture())
        if not self.beside:
            self._end(save)
            return
        self._task = BackgroundTask(save)
        self._stall = time.monotonic() - began

    def settle(self) -> None:
        """Wait until no save is running. All ranks call it after the same step.

        Raises:
            Diverged: the state cannot be continued from.
        """
        self._wait()
        if self._diverged is not None:
            raise self._diverged

    def over(self) -> list[SaveResult]:
        """Return the completed saves that were not reported yet."""
        if self._task is not None and self._task.is_over:
            self._wait()
        ended, self._ended = self._ended, []
        return ended

    def _wait(self) -> None:
        if self._task is None:
            return
        task, self._task = self._task, None
        try:
            self._end(task.result)
        except Diverged as error:
            self._diverged = error

    def _end(self, result: Callable[[], Saved]) -> None:
        saved, why = None, ""
        try:
            saved = result()
        except SaveFailed as error:
            why = str(error)
        stall = self._stall if self.beside else time.monotonic() - self._began
        self._ended.append(SaveResult(self._step, stall, saved, why))

"""Measure the time per training step, and estimate the time until the last step."""

from __future__ import annotations

WINDOW = 50


class StepTimer:
    """Measures the average time from one training step to the next, in seconds, over about the
    last 50 steps.

    Pauses between two steps, for example for a checkpoint or an evaluation, are included, because
    they will occur again.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._mean: float | None = None
        self._count = 0

    def step_done(self, step: int, now: float) -> float | None:
        """Record that training step `step` ended at the time `now`, which a monotonic clock
        returned, in seconds.

        Return the seconds per step since the step that was recorded last. Return None for the first
        recorded step, or if `step` is not a later step.
        """
        before, self._last = self._last, (step, now)
        if before is None or step <= before[0]:
            return None
        seconds = (now - before[1]) / (step - before[0])
        self._count = min(self._count + 1, WINDOW)
        mean = self._mean or 0.0
        self._mean = mean + (seconds - mean) / self._count
        return seconds

    def seconds_left(self, steps: int) -> float | None:
        """Return the estimated seconds until training step `steps` ends, at the average speed of
        recent steps. Return None if fewer than two steps were timed.
        """
        if self._last is None or self._mean is None:
            return None
        return max(0, steps - self._last[0]) * self._mean

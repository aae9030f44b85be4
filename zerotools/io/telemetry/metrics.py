"""The files of a run's step metrics: `metrics.jsonl`, and TensorBoard's event files.

Standard library only, and no newer syntax than that of Python 3.9: programs of users write with
this too.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from zerotools.io.telemetry.event_file import EventFile
from zerotools.io.telemetry.metrics_jsonl import METRICS, MetricsLog

TENSORBOARD = "tensorboard"
_LARGEST_FLOAT32 = 3.4028235677973366e38
_NO_SCALARS = ("steps", "time")


class Metrics:
    """The metrics files of one run, in its output directory. Training never fails with them."""

    def __init__(self, output_dir: Path, *, jsonl: bool = True, tensorboard: str = "auto") -> None:
        """Take `tensorboard`: `"on"`, `"off"`, or `"auto"` for on if TensorBoard is installed."""
        writes_events = tensorboard == "on" or (
            tensorboard == "auto" and _is_installed(TENSORBOARD)
        )
        self._lines = MetricsLog(output_dir / METRICS) if jsonl else None
        self._directory = output_dir / TENSORBOARD if writes_events else None
        self._events: EventFile | None = None
        self._failed = False

    def append(self, step: int, fields: Mapping[str, Any]) -> str | None:
        """Write `step`; the first time that this fails, why, in one sentence."""
        problem = None
        try:
            if self._lines is not None:
                self._lines.append(step, dict(fields))
            if self._directory is not None:
                self._events = self._events or EventFile(self._directory, step)
                self._events.append(step, scalars_of(fields))
        except OSError as error:
            problem = f"{error.filename or 'metrics'}: {error.strerror}"
        if problem is None or self._failed:
            return None
        self._failed = True
        return problem

    def sync(self) -> None:
        """Flush the written lines to the disk, as far as possible."""
        if self._lines is not None:
            try:
                self._lines.sync()
            except OSError:
                return

    def close(self) -> None:
        """Write no more."""
        if self._lines is not None:
            self._lines.close()
        if self._events is not None:
            self._events.close()
            self._events = None


def scalars_of(fields: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of `fields` that a 32-bit float holds, NaN and infinities too."""
    found = {}
    for name, value in fields.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            fits = abs(value) <= _LARGEST_FLOAT32 or _is_special(value)
            if fits and name not in _NO_SCALARS:
                found[name] = float(value)
    return found


def _is_special(value: float) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_installed(name: str) -> bool:
    try:
        return name in sys.modules or find_spec(name) is not None
    except (ImportError, ValueError):
        return False

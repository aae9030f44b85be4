"""A job's own loop with a look at the clock after each step; ranks take it by `runpy`, because
nothing but the trainer is importable in them, which this sees to."""

from __future__ import annotations

import gc
import runpy
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
entry = runpy.run_path(str(ROOT / "daemon" / "zerotoolsd" / "trainer" / "entry.py"))
entry["make_importable"]()

import torch  # noqa: E402

from zerotoolsd.trainer.engine.engine_interface import StepResult  # noqa: E402
from zerotoolsd.trainer.engine_deepspeed.engine import DeepSpeedEngine  # noqa: E402
from zerotoolsd.trainer.prepare_and_train import prepare_training  # noqa: E402
from zerotoolsd.trainer.rank.notify_supervisor import Notifier  # noqa: E402
from zerotoolsd.trainer.rank.process_group import WorldGroup  # noqa: E402
from zerotoolsd.trainer.rank.rank_settings import read_spec  # noqa: E402
from zerotoolsd.trainer.reporting.mfu import Utilization  # noqa: E402
from zerotoolsd.trainer.reporting.reporter import (  # noqa: E402
    Phases,
    Reporter,
)


class Enough(Exception):
    """All steps were made. What would follow, a checkpoint, is not measured here."""


class Clock(Reporter):
    """A reporter that notes when each step was over, all that belongs to it included, and ends the
    run after the last. The time is that of `look`."""

    def __init__(self, *args: Any, steps: int, look: Callable[[], float], **options: Any) -> None:
        super().__init__(*args, steps=steps, **options)
        self._look = look
        self._last = steps
        self.ends: list[float] = []
        self.tokens = 0
        self.utilization: Utilization | None = None

    def measure_by(self, utilization: Utilization | None) -> None:
        """Keep it, and go on."""
        self.utilization = utilization
        super().measure_by(utilization)

    def stepped(self, step: int, outcome: StepResult, tokens: int, seconds: float) -> None:
        """Report it as ever, then look at the clock."""
        super().stepped(step, outcome, tokens, seconds)
        self.ends.append(self._look())
        self.tokens = tokens
        if step == self._last:
            raise Enough

    def seconds(self) -> list[float]:
        """From the end of each step to that of the next."""
        return [end - begin for begin, end in zip(self.ends, self.ends[1:], strict=False)]


def timed(run_dir: Path, group: WorldGroup, look: Callable[[], float] = time.perf_counter) -> Clock:
    """All steps of the job in `run_dir`; no checkpoint is written, and nothing of it stays."""
    spec = read_spec(run_dir)
    steps = spec.train.total_steps
    clock = Clock(group.rank, Notifier(None, group.rank.index), steps=steps, look=look)
    ready = prepare_training(spec, run_dir, group, clock, Phases(time.monotonic()))
    with suppress(Enough):
        ready.train()
    if isinstance(ready.engine, DeepSpeedEngine):
        ready.engine.engine.destroy()
    del ready
    let_go()
    return clock


def let_go() -> None:
    """Free what nothing refers to any more, on the GPU too."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()

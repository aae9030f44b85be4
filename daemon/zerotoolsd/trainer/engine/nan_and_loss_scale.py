"""The policy that decides when training has diverged, the same for both engines.

A step with finite loss and gradient norm updates the weights. Any other:

    loss scale (fp16)            skipped, because gradients overflow at a scale that is too high;
                                 the scale is lowered. Diverged at the smallest scale, and at a
                                 fixed one after MAX_OVERFLOWS skipped steps in a row
    no loss scale                skipped, up to `train.stop_after_nan` - 1 in a row; then diverged
    the engine has updated       diverged: the step can no longer be skipped. Engine `torch` decides
                                 before it updates; DeepSpeed skips only by its gradients
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from zerotools.jobs.tables.fp16 import Fp16Spec
from zerotools.runs.job_record import LossScaleRecord
from zerotoolsd.trainer.rank.rank_errors import Diverged

MAX_OVERFLOWS = 20
"""Skipped steps in a row that a fixed loss scale may cause. One that follows the gradients is down
from 2 to the power of 16 before."""


@dataclass
class DivergencePolicy:
    """Decides from a step's numbers, the same on all ranks. `skipped_in_a_row` counts the skipped
    steps since the last update of this attempt."""

    stop_after_nan: int = 1
    skipped_in_a_row: int = 0

    def skips(self, step: int, loss: float, grad_norm: float, *, scaled: bool) -> bool:
        """Return whether `step`, counted from 0, must be skipped for a non-finite loss or norm.

        `scaled`: a loss scale exists that can be lowered.

        Raises:
            Diverged: a value is not finite, and the step may not be skipped.
        """
        may_skip = scaled or self.skipped_in_a_row + 1 < self.stop_after_nan
        if may_skip:
            return not (math.isfinite(loss) and math.isfinite(grad_norm))
        self.check(step, loss, grad_norm)
        return False

    def check(self, step: int, loss: float, grad_norm: float) -> None:
        """Check a step, counted from 0, that has updated the weights or cannot be skipped.

        Raises:
            Diverged: its loss or gradient norm is not finite.
        """
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return
        count = self.skipped_in_a_row
        before = f"{count} skipped in a row, and " if count else ""
        raise Diverged(before + _why(step, loss, grad_norm))

    def count(self, skipped: bool, *, fixed_scale: float | None = None) -> None:
        """Count a `skipped` or a taken step; `fixed_scale` is a loss scale that never changes.

        Raises:
            Diverged: too many steps in a row overflowed at that scale.
        """
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        if fixed_scale is not None and self.skipped_in_a_row >= MAX_OVERFLOWS:
            raise Diverged(
                f"gradients overflowed in {MAX_OVERFLOWS} steps in a row at fp16.loss_scale = "
                f"{fixed_scale:g}: lower it, or leave it out"
            )


def overflow_at_smallest(scale: float) -> Diverged:
    """Return the error for gradients that overflow at the smallest loss scale."""
    return Diverged(
        f"gradients overflow at the smallest loss scale, {scale:g}: training has diverged; lower "
        "the learning rate, or train in bf16"
    )


def _why(step: int, loss: float, grad_norm: float) -> str:
    if step == 0 and not math.isfinite(loss):
        return (
            f"the loss of step 1 is {loss}, before any weight was changed: the weights of "
            "model.path have values that are not numbers, or the model overflows in train.precision"
        )
    name, value = ("gradient norm", grad_norm) if math.isfinite(loss) else ("loss", loss)
    return (
        f"the {name} of step {step + 1} is {value}: training has diverged; lower "
        "train.learning_rate or lengthen train.warmup_steps"
    )


FACTOR = 2.0


def initial(spec: Fp16Spec) -> LossScaleRecord:
    """Return the initial state of a run."""
    if spec.loss_scale:
        return LossScaleRecord(cur_scale=spec.loss_scale, dynamic=False)
    return LossScaleRecord(
        cur_scale=FACTOR**spec.initial_scale_power,
        dynamic=True,
        cur_hysteresis=spec.hysteresis,
        scale_window=spec.loss_scale_window,
        min_scale=spec.min_loss_scale,
        delayed_shift=spec.hysteresis,
        consecutive_hysteresis=spec.consecutive_hysteresis,
    )


def resumed(spec: Fp16Spec, saved: LossScaleRecord | None) -> LossScaleRecord:
    """Return the state of a resumed run: scale and counters as saved, rules of the current job
    file."""
    fresh = initial(spec)
    if saved is None or not (saved.dynamic and fresh.dynamic):
        return fresh
    return replace(
        fresh,
        cur_scale=max(saved.cur_scale, fresh.min_scale),
        cur_iter=saved.cur_iter,
        last_overflow_iter=saved.last_overflow_iter,
        cur_hysteresis=min(saved.cur_hysteresis, fresh.delayed_shift),
    )


def after(scale: LossScaleRecord, *, overflow: bool) -> LossScaleRecord:
    """Return the state after a step with finite gradients, or an overflow.

    Raises:
        Diverged: they overflowed at the smallest scale.
    """
    if not scale.dynamic:
        return scale
    found = _lowered(scale) if overflow else _raised(scale)
    return replace(found, cur_iter=scale.cur_iter + 1)


def _lowered(scale: LossScaleRecord) -> LossScaleRecord:
    scale = replace(scale, last_overflow_iter=scale.cur_iter)
    if scale.delayed_shift > 1 and scale.cur_hysteresis > 1:
        return replace(scale, cur_hysteresis=scale.cur_hysteresis - 1)
    if scale.cur_scale == scale.min_scale:
        raise overflow_at_smallest(scale.min_scale)
    return replace(scale, cur_scale=max(scale.cur_scale / FACTOR, scale.min_scale))


def _raised(scale: LossScaleRecord) -> LossScaleRecord:
    if scale.consecutive_hysteresis:
        scale = replace(scale, cur_hysteresis=scale.delayed_shift)
    stable = scale.cur_iter - scale.last_overflow_iter - 1
    if stable <= 0 or stable % scale.scale_window:
        return scale
    return replace(scale, cur_scale=scale.cur_scale * FACTOR, cur_hysteresis=scale.delayed_shift)

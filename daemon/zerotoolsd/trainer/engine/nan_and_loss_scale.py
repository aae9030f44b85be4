"""Handles steps with a loss or gradients that are not finite, and the loss scale of fp16.

A step with a finite loss and gradient norm updates the weights. Any other step:

    with a loss scale (fp16)       is skipped, because gradients overflow if the scale is too high.
                                   A dynamic scale is lowered. Training has diverged if gradients
                                   overflow at the smallest scale, or in MAX_OVERFLOWS steps in a
                                   row at a fixed scale
    without a loss scale           is skipped, up to `train.stop_after_nan` - 1 times in a row
    if the weights were updated    training has diverged. This happens only with DeepSpeed, which
                                   updates the weights before the trainer sees the loss
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from zerotools.jobs.jobfile_tables.fp16 import Fp16Spec
from zerotools.runs.training_record import LossScaleRecord
from zerotoolsd.trainer.rank.rank_errors import Diverged

MAX_OVERFLOWS = 20
"""Largest number of skipped steps in a row at a fixed loss scale.

In this number of steps, a dynamic scale falls from 2**16 to its minimum.
"""


@dataclass
class DivergencePolicy:
    """Decides whether a step is skipped. All ranks decide alike, because they have the same
    numbers.

    `skipped_in_a_row` counts the steps that this attempt has skipped since its last update.
    """

    stop_after_nan: int = 1
    skipped_in_a_row: int = 0

    def skips(self, step: int, loss: float, grad_norm: float, *, scaled: bool) -> bool:
        """Return whether step `step`, counted from 0, must be skipped.

        `scaled` is True if the job has a loss scale (fp16).

        Raises:
            Diverged: the loss or the gradient norm is not finite, and no more steps may be skipped.
        """
        may_skip = scaled or self.skipped_in_a_row + 1 < self.stop_after_nan
        if may_skip:
            return not (math.isfinite(loss) and math.isfinite(grad_norm))
        self.check(step, loss, grad_norm)
        return False

    def check(self, step: int, loss: float, grad_norm: float) -> None:
        """Check the loss and the gradient norm of a step that was not skipped.

        `step` counts from 0.

        Raises:
            Diverged: the loss or the gradient norm is not finite.
        """
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return
        count = self.skipped_in_a_row
        before = f"after {count} skipped steps in a row, " if count else ""
        raise Diverged(before + _why(step, loss, grad_norm))

    def count(self, skipped: bool, *, fixed_scale: float | None = None) -> None:
        """Count a step that was `skipped`, or that updated the weights.

        `fixed_scale` is the loss scale if it never changes; None otherwise.

        Raises:
            Diverged: too many steps in a row overflowed at the fixed scale.
        """
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        if fixed_scale is not None and self.skipped_in_a_row >= MAX_OVERFLOWS:
            raise Diverged(
                f"gradients overflowed in {MAX_OVERFLOWS} steps in a row at fp16.loss_scale = "
                f"{fixed_scale:g}: lower fp16.loss_scale, or remove it"
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


def initial_loss_scale(spec: Fp16Spec) -> LossScaleRecord:
    """Return the loss scale at the start of a run, with its counters.

    The loss scale follows DeepSpeed's `DynamicLossScaler.update_scale`
    (`runtime/fp16/loss_scaler.py`). After `delayed_shift` overflows (the hysteresis), the scale is
    halved. After `scale_window` steps without an overflow, it is doubled and the hysteresis is
    restored. With `consecutive_hysteresis`, every step without an overflow restores the hysteresis.
    """
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


def resumed_loss_scale(spec: Fp16Spec, saved: LossScaleRecord | None) -> LossScaleRecord:
    """Return the loss scale of a resumed run. The settings come from the job file.

    The scale and the counters come from `saved`. They are those of a new run if `saved` is None, or
    if the scale in `saved` or in the job file is fixed.
    """
    fresh = initial_loss_scale(spec)
    if saved is None or not (saved.dynamic and fresh.dynamic):
        return fresh
    return replace(
        fresh,
        cur_scale=max(saved.cur_scale, fresh.min_scale),
        cur_iter=saved.cur_iter,
        last_overflow_iter=saved.last_overflow_iter,
        cur_hysteresis=min(saved.cur_hysteresis, fresh.delayed_shift),
    )


def loss_scale_after(scale: LossScaleRecord, *, overflow: bool) -> LossScaleRecord:
    """Return the loss scale after a step, with or without an `overflow`.

    Raises:
        Diverged: gradients overflowed at the smallest scale.
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

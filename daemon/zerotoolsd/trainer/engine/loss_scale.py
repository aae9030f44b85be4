"""The loss scale of fp16 training: DeepSpeed's DynamicLossScaler, as a pure function of its state.

Source: DeepSpeed `runtime/fp16/loss_scaler.py`, `DynamicLossScaler.update_scale`. After
`delayed_shift` overflows (hysteresis) the scale is halved; `scale_window` steps without one double
it and restore the hysteresis, which `consecutive_hysteresis` does after every such step.
"""

from __future__ import annotations

from dataclasses import replace

from zerotools.jobs.tables.fp16 import Fp16Spec
from zerotools.runs.job_record import LossScaleRecord
from zerotoolsd.trainer.engine.nan_policy import overflow_at_smallest

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

"""The part of a checkpoint's record about DeepSpeed's optimizer and loss scaler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.runs.job_record import LossScaleRecord, OptimizerGroup, OptimizerRecord


def groups_of(
    name: str, groups: Sequence[Mapping[str, Any]], names: Sequence[tuple[str, ...]]
) -> OptimizerRecord:
    """Return the record of the optimizer `name` with its groups.

    DeepSpeed may split them (experts): then they have no names of parameters.
    """
    known = names if len(names) == len(groups) else [()] * len(groups)
    return OptimizerRecord(
        name, tuple(_group(group, params) for group, params in zip(groups, known, strict=True))
    )


def _group(group: Mapping[str, Any], params: tuple[str, ...]) -> OptimizerGroup:
    betas = group.get("betas")
    return OptimizerGroup(
        lr=float(group["lr"]),
        weight_decay=float(group.get("weight_decay", 0.0)),
        betas=None if betas is None else (float(betas[0]), float(betas[1])),
        eps=group.get("eps"),
        momentum=group.get("momentum"),
        params=params,
    )


def loss_scale_of(engine: Any) -> LossScaleRecord:
    """Return the loss scaler of `engine`, which trains in fp16 at stage 1 or above."""
    scaler = engine.optimizer.loss_scaler
    scale = float(engine.optimizer.cur_scale)
    if not scaler.dynamic:
        return LossScaleRecord(cur_scale=scale, dynamic=False)
    return LossScaleRecord(
        cur_scale=scale,
        dynamic=True,
        cur_iter=int(scaler.cur_iter),
        last_overflow_iter=int(scaler.last_overflow_iter),
        cur_hysteresis=int(getattr(scaler, "cur_hysteresis", 1)),
        scale_window=int(scaler.scale_window),
        min_scale=float(scaler.min_scale),
        delayed_shift=int(getattr(scaler, "delayed_shift", 1)),
        consecutive_hysteresis=bool(getattr(scaler, "consecutive_hysteresis", False)),
    )

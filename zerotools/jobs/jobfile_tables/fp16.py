"""`[fp16]`: how fp16 training scales its loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key


@dataclass(frozen=True, kw_only=True)
class Fp16Spec:
    """`[fp16]`: how a `train.precision = "fp16"` job scales its loss. Names and rules are
    DeepSpeed's.

    If gradients overflow, the step is skipped: it counts as a step, but the learning rate's
    schedule does not advance.
    """

    loss_scale: float = key(
        "A fixed scale; 0: a dynamic scale, which the keys below control.",
        default=0.0,
        minimum=0,
        deepspeed="fp16.loss_scale",
    )
    initial_scale_power: int = key(
        "The first scale is 2 to the power of this number.",
        default=16,
        minimum=0,
        maximum=64,
        deepspeed="fp16.initial_scale_power",
    )
    loss_scale_window: int = key(
        "Steps without an overflow after which the scale doubles.",
        default=1000,
        minimum=1,
        deepspeed="fp16.loss_scale_window",
    )
    hysteresis: int = key(
        "With 1, every overflow halves the scale. With N, the first N - 1 overflows do not. The "
        "count restarts when the scale doubles.",
        default=2,
        minimum=1,
        deepspeed="fp16.hysteresis",
    )
    consecutive_hysteresis: bool = key(
        "Whether each step without an overflow restarts the count for `hysteresis`.",
        default=False,
        deepspeed="fp16.consecutive_hysteresis",
    )
    min_loss_scale: float = key(
        "The smallest scale; an overflow at this scale ends the job.",
        default=1.0,
        above=0,
        deepspeed="fp16.min_loss_scale",
    )


def check_fp16(fp16: Fp16Spec) -> Iterator[str]:
    """Yield the problems in `[fp16]` that do not depend on other tables."""
    first = 2.0**fp16.initial_scale_power
    if not fp16.loss_scale and fp16.min_loss_scale > first:
        yield (
            f"fp16.min_loss_scale = {fp16.min_loss_scale:g}: must be at most the first scale, "
            f"which is {first:g} (2 to the power of fp16.initial_scale_power)"
        )

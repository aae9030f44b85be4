"""The compute capability that GPUs need for a job."""

from __future__ import annotations

from zerotools.jobs.tables.spec import JobSpec
from zerotools.sensors.snapshot import BF16_CAPABILITY
from zerotoolsd.queue.scheduling.requests import CapabilityNeed

ATTENTION_CAPABILITIES = {
    "flash_attention_2": (8, 0),
    "flash_attention_3": (9, 0),
    "flex_attention": (7, 0),
}
"""The first GPUs that each runs on: by the README of flash-attention 2 and 3, and of Triton, into
which torch compiles flex_attention."""


def capability_need(spec: JobSpec) -> CapabilityNeed | None:
    """Return the highest requirement of the job on a GPU; None: any GPU works, as far as is
    known."""
    if spec.engine == "script":
        return None
    needs = [need for need in (_of_precision(spec), _of_attention(spec)) if need is not None]
    return max(needs, key=lambda need: need.least, default=None)


def _of_attention(spec: JobSpec) -> CapabilityNeed | None:
    least = ATTENTION_CAPABILITIES.get(spec.model.attention or "")
    if least is None:
        return None
    instead = 'set model.attention = "sdpa", or leave it out'
    return CapabilityNeed(
        least=least, what=f'model.attention = "{spec.model.attention}"', instead=instead
    )


def _of_precision(spec: JobSpec) -> CapabilityNeed | None:
    if spec.train.precision != "bf16":
        return None
    instead = 'set train.precision = "fp16"'
    if spec.engine == "deepspeed":
        instead += ", and fp16.enabled instead of bf16.enabled in deepspeed.config"
    return CapabilityNeed(least=BF16_CAPABILITY, what='train.precision = "bf16"', instead=instead)

"""The rules of `lora.frozen_precision = "nf4"` for the other keys."""

from __future__ import annotations

from collections.abc import Iterator

from zerotools.core.training_memory import NF4
from zerotools.jobs.tables.spec import JobSpec


def check_packed(spec: JobSpec) -> Iterator[str]:
    """Yield the problems if frozen weights are kept in 4 bits."""
    said = f'lora.frozen_precision = "{NF4}"'
    if not spec.lora.packs_frozen:
        if not spec.lora.double_quant and spec.lora.frozen_precision != NF4:
            yield f"lora.double_quant = false: is for {said}; set that, or leave it out"
        return
    if spec.model.path is None:
        yield (
            f"{said}: checkpoints hold only the adapters, so their base model must stay in a "
            "directory; set model.path"
        )
    if spec.offload.params != "none":
        yield (
            f"{said}: weights of 4 bits stay on the GPU that computes with them; leave "
            f'offload.params = "{spec.offload.params}" out'
        )
    if spec.zero.tensor_ranks > 1:
        yield (
            f"{said}: weights of 4 bits cannot be shared by zero.tensor_ranks = "
            f"{spec.zero.tensor_ranks}; leave one of them out"
        )

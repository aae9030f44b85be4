"""Suggests changes to the job file of a job that ran out of GPU memory.

The changes that slow the job down least come first. How much memory a change saves is not computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from zerotools.core.training_memory_layout import DEVICE, LOCAL, MemoryLayout
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
from zerotools.jobs.jobfile_tables.complete_deepspeed_config import offloaded_to
from zerotools.jobs.jobfile_tables.spec import JobSpec

_SHARDED = 'train.accumulate = "sharded"'
_OWN = ("zero.stage", "offload.optimizer", "offload.params")
_DEEPSPEED = (
    "deepspeed.config zero_optimization.stage",
    "deepspeed.config zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_param.device",
)
"""DeepSpeed's keys for the ZeRO stage and for the offload of optimizer and parameters, which
are suggested for engine deepspeed.
"""


def settings_to_try(
    spec: JobSpec, *, mostly_state: bool = False, limit: int = 2, half: str = "bf16"
) -> list[str]:
    """Return at most `limit` settings with which the job needs less GPU memory, as lines of a job
    file.

    `half` is the 16-bit dtype that the GPU supports. `mostly_state` is True if weights and
    optimizer state take most of the memory, so that a smaller batch would not help.
    """
    less_state = partial(_less_state, half=half)
    orders = (less_state, _less_in_flight) if mostly_state else (_less_in_flight, less_state)
    lines = [line for order in (_smaller_sums, *orders) for line in order(spec)]
    return [*lines, *_shared(spec), "a shorter data.sequence_length", "more GPUs"][:limit]


def _shared(spec: JobSpec) -> Iterator[str]:
    """Suggest that more ranks compute each sequence together (`zero.sequence_ranks`), if this
    is possible.
    """
    micro = spec.train.micro_batch_size or spec.train.batch_size // spec.data_ranks
    twice, fixed = 2 * spec.zero.sequence_ranks, spec.size_range is None
    can = spec.engine == "torch" and fixed
    if can and micro == 1 and spec.all_ranks % (twice * spec.zero.tensor_ranks) == 0:
        yield f"zero.sequence_ranks = {twice} (ranks that compute each sequence together)"


def _smaller_sums(spec: JobSpec) -> Iterator[str]:
    """Suggest that each rank accumulates only its shard of the gradients, if it accumulates
    whole gradients now.
    """
    if _sums_whole(memory_layout_of(spec)):
        yield _SHARDED


def _sums_whole(layout: MemoryLayout) -> bool:
    """Return whether each rank accumulates whole gradients on the GPU, although shards would
    take less memory there.
    """
    smaller = layout.has_masters or layout.weight_ranks > 1 or layout.params_tier != DEVICE
    return layout.accumulate == LOCAL and smaller


def _less_in_flight(spec: JobSpec) -> Iterator[str]:
    """Suggest settings that reduce the memory of activations."""
    train = spec.train
    share = train.batch_size // spec.data_ranks
    micro = train.micro_batch_size or share
    if micro > 1:
        smaller = max(size for size in range(1, micro) if share % size == 0)
        after = memory_layout_of(replace(spec, train=replace(train, micro_batch_size=smaller)))
        # To sum whole gradients may take more than the activations of the smaller batch save.
        first = micro == share and _sums_whole(after)
        yield (
            f"train.micro_batch_size = {smaller}{f' with {_SHARDED}' if first else ''} "
            f"(it is {micro} now; batch_size stays)"
        )
    if train.chunked_loss == "off":
        yield 'train.chunked_loss = "auto"'
    if not train.activation_checkpointing:
        yield "train.activation_checkpointing = true"


def _less_state(spec: JobSpec, half: str) -> Iterator[str]:
    """Suggest settings that reduce the number of bytes per parameter: weights, gradients and
    optimizer state.
    """
    if spec.train.precision == "fp32":
        yield f'train.precision = "{half}"'
    stage, optimizer, params = _DEEPSPEED if spec.engine == "deepspeed" else _OWN
    if spec.world_size > 1 and spec.zero.stage < 3:
        yield f"{stage} = {spec.zero.stage + 1} (it is {spec.zero.stage} now)"
    if offloaded_to(spec) == ("none", "none"):
        yield f'{optimizer} = "cpu"'
    if offloaded_to(spec)[1] == "none":
        yield f'{stage} = 3 with {params} = "cpu"'

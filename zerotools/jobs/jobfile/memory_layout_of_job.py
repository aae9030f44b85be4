"""Compute how a job distributes model and optimizer state over memory."""

from __future__ import annotations

from zerotools.core.training_memory_layout import LOCAL, SHARDED, MemoryLayout
from zerotools.jobs.jobfile_tables.complete_deepspeed_config import offloaded_to
from zerotools.jobs.jobfile_tables.spec import JobSpec


def memory_layout_of(spec: JobSpec) -> MemoryLayout:
    """Return the memory layout of the job `spec`: its sharding and offload.

    With engine deepspeed, DeepSpeed's config determines the offload.
    """
    optimizer, params = offloaded_to(spec)
    return MemoryLayout(
        stage=spec.zero.stage,
        world_size=spec.all_ranks,
        precision=spec.train.precision,
        optimizer=spec.train.optimizer,
        has_momentum=spec.train.momentum > 0,
        offload_optimizer=optimizer,
        offload_params=params,
        shard_size=shard_size_of(spec),
        accumulate=_accumulate(spec),
        frozen_precision="fp32" if spec.lora.rank is None else spec.lora.frozen_precision,
        engine=spec.engine,
        tensor_ranks=spec.zero.tensor_ranks,
        double_quant=spec.lora.double_quant,
        has_adapters=spec.lora.rank is not None,
    )


def shard_size_of(spec: JobSpec) -> int | None:
    """Return the number of ranks that share one copy of the weights; None means all ranks.

    With several nodes and several ranks on each node, the ranks of one node share a copy. The
    reason is that weights are gathered twice a step, and the link between nodes is many times
    slower than the links within a node. With a copy on each node, only gradients pass between
    nodes.
    """
    is_spread = spec.fewest_nodes > 1 and spec.world_size > 1 and spec.zero.stage > 1
    is_spread = is_spread and spec.zero.tensor_ranks == 1
    if spec.zero.shard_size is None and is_spread and spec.engine == "torch":
        return spec.world_size
    return spec.zero.shard_size


def _accumulate(spec: JobSpec) -> str | None:
    per_rank = spec.train.batch_size // spec.data_ranks
    if spec.engine != "torch" or (spec.train.micro_batch_size or per_rank) >= per_rank:
        return None
    return spec.train.accumulate or (SHARDED if spec.zero.stage >= 2 else LOCAL)

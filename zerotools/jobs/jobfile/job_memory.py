"""The memory layout that a job file asks for."""

from __future__ import annotations

from zerotools.core.memory_layout import LOCAL, SHARDED, MemoryLayout
from zerotools.jobs.tables.deepspeed_config import offloaded_to
from zerotools.jobs.tables.spec import JobSpec


def memory_layout_of(spec: JobSpec) -> MemoryLayout:
    """The layout of `spec`; what DeepSpeed offloads, its config says."""
    optimizer, params = offloaded_to(spec)
    return MemoryLayout(
        stage=spec.zero.stage,
        world_size=spec.world_size,
        precision=spec.train.precision,
        optimizer=spec.train.optimizer,
        has_momentum=spec.train.momentum > 0,
        offload_optimizer=optimizer,
        offload_params=params,
        shard_size=spec.zero.shard_size,
        accumulate=_accumulate(spec),
        frozen_precision="fp32" if spec.lora.rank is None else spec.lora.frozen_precision,
        engine=spec.engine,
    )


def _accumulate(spec: JobSpec) -> str | None:
    per_rank = spec.train.batch_size // spec.world_size
    if spec.engine != "torch" or (spec.train.micro_batch_size or per_rank) >= per_rank:
        return None
    return spec.train.accumulate or (SHARDED if spec.zero.stage >= 2 else LOCAL)

"""`[zero]` of the job file: how the training state is sharded over the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key


@dataclass(frozen=True, kw_only=True)
class ZeroSpec:
    """`[zero]`: how the training state is sharded over the ranks."""

    stage: int = key(
        "The ZeRO stage. 0: nothing is sharded; 1: the optimizer state; 2: also the gradients; 3: "
        "also the weights.",
        default=3,
        allowed=(0, 1, 2, 3),
        deepspeed="zero_optimization.stage",
        accelerate="fsdp_config.fsdp_sharding_strategy",
    )
    shard_size: int | None = key(
        "How many ranks share one copy of the model at stages 2 and 3; each group of so many "
        "ranks has one copy (HSDP). Default: all ranks share one copy.",
        default=None,
        minimum=1,
        engine="torch",
        deepspeed="zero_optimization.mics_shard_size",
        accelerate="parallelism_config",
    )
    sequence_ranks: int = key(
        "How many ranks compute one sequence together. Each rank computes a part of its "
        "positions, so a sequence may be too long for one GPU.",
        default=1,
        stored_default=1,
        minimum=1,
        engine="torch",
        deepspeed="sequence_parallel_size",
        accelerate="parallelism_config",
    )
    tensor_ranks: int = key(
        "How many ranks compute with one layer's weights together, each with a part of their rows "
        "or columns, according to the model's plan in transformers (`tp_plan`).",
        default=1,
        stored_default=1,
        minimum=1,
        engine="torch",
        deepspeed="tensor_parallel.autotp_size",
        accelerate="parallelism_config",
    )

    @property
    def same_data_ranks(self) -> int:
        """The number of ranks that compute the same sequences together."""
        return self.sequence_ranks * self.tensor_ranks


def check_zero(zero: ZeroSpec, world_size: int) -> Iterator[str]:
    """Yield the problems in `[zero]`, for a job of `world_size` ranks."""
    size, stage = zero.shard_size, zero.stage
    for name in ("sequence_ranks", "tensor_ranks"):
        ranks = getattr(zero, name)
        if world_size >= 1 and world_size % ranks:
            yield f"zero.{name} = {ranks}: must divide the {_ranks(world_size)}"
    together = zero.same_data_ranks
    if zero.sequence_ranks > 1 and zero.tensor_ranks > 1 and world_size % together:
        yield (
            f"zero.sequence_ranks = {zero.sequence_ranks} and zero.tensor_ranks = "
            f"{zero.tensor_ranks}: {together} ranks together compute each sequence, and must "
            f"divide the {_ranks(world_size)}"
        )
    if size is None:
        return
    if stage < 2:
        yield (
            f"zero.shard_size = {size}: needs zero.stage 2 or 3, which shard the weights, but "
            f"zero.stage is {stage}; leave it out"
        )
    elif world_size >= 1 and world_size % size:
        yield f"zero.shard_size = {size}: must divide the {_ranks(world_size)}"


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count > 1)}"

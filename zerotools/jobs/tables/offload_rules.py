"""What `[offload]` and `[zero]` demand of the other keys."""

from __future__ import annotations

from collections.abc import Iterator

from zerotools.jobs.binding.bind import show
from zerotools.jobs.tables.spec import JobSpec


def check_offload(spec: JobSpec) -> Iterator[str]:
    """What is wrong with `[offload]`."""
    offload, stage = spec.offload, spec.zero.stage
    if offload.params == "cpu" and stage != 3:
        yield (
            'offload.params = "cpu": needs zero.stage 3, which gathers parameters block by block, '
            f"and zero.stage is {stage}; set it to 3, or leave offload.params out"
        )
    if offload.optimizer == "disk" and offload.path is None:
        yield 'offload.optimizer = "disk": needs a directory to put it in; set offload.path'
    if offload.optimizer != "disk" and offload.path is not None:
        yield (
            f"offload.path = {show(offload.path)}: has no place beside offload.optimizer = "
            f'"{offload.optimizer}"; leave it out, or set offload.optimizer = "disk"'
        )
    if not offload.pin_memory and (offload.optimizer, offload.params) == ("none", "none"):
        yield "offload.pin_memory = false: nothing is offloaded; leave it out"


def check_sharding(spec: JobSpec) -> Iterator[str]:
    """What is wrong with `[zero]`."""
    size, world, stage = spec.zero.shard_size, spec.world_size, spec.zero.stage
    if size is None:
        return
    if stage < 2:
        yield (
            f"zero.shard_size = {size}: is of stages 2 and 3, which cut the weights, and "
            f"zero.stage is {stage}; leave it out"
        )
    elif world >= 1 and world % size:
        yield f"zero.shard_size = {size}: must divide the {world} ranks"

"""The rules of `zero.tensor_ranks` for the other keys."""

from __future__ import annotations

from collections.abc import Iterator

from zerotools.jobs.tables.spec import JobSpec

_OPTIMIZERS = ("adamw", "adam", "sgd")


def check_tensor_ranks(spec: JobSpec) -> Iterator[str]:
    """Yield the problems if ranks compute with one layer's weights together."""
    zero, train = spec.zero, spec.train
    if zero.tensor_ranks == 1:
        return
    said = f"zero.tensor_ranks = {zero.tensor_ranks}"
    if zero.stage < 2:
        yield (
            f"{said}: needs zero.stage 2 or 3, which shard the weights, and zero.stage is "
            f"{zero.stage}; set it to 3"
        )
    if zero.shard_size is not None:
        yield f"{said}: cannot be used with zero.shard_size = {zero.shard_size}; leave one out"
    if spec.fewest_nodes > 1 and spec.world_size % zero.tensor_ranks:
        yield (
            f"{said}: must divide the {spec.world_size} ranks of a node, because these ranks "
            "exchange values in every layer"
        )
    if train.optimizer not in _OPTIMIZERS:
        yield (
            f'{said}: cannot be used with train.optimizer = "{train.optimizer}", which needs '
            'whole rows or matrices; set train.optimizer = "adamw", or leave one of them out'
        )
    if train.compile:
        yield f"{said}: cannot be used with train.compile = true yet; leave one of them out"

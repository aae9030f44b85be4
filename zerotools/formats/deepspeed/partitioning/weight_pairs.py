"""Masters and the weights that are casts of them, if the files have both.

At stages 1 and 2 and with BF16_Optimizer the masters lie in flat buffers, and the weights in the
model file, in files of layers or in files of experts. Stage 3 has only masters. A tied weight of a
pipeline is paired if it can belong to only one layer of the stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.formats.deepspeed.partitioning.mp_rank import MpShard
from zerotools.formats.deepspeed.partitioning.native import native_of
from zerotools.formats.deepspeed.partitioning.pipeline_layers import TIED, layers_of_ties
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3, first_of

WeightPair = tuple[str, Tensor, Tensor]
"""Name, master and weight."""


def weight_pairs(source: Checkpoint) -> Iterator[WeightPair]:
    """Yield the pairs of all model-parallel ranks, in the shapes of their shards."""
    for number in range(len(native_of(source).mp_shards)):
        yield from pairs_of(source, number)


def pairs_of(source: Checkpoint, mp_rank: int) -> Iterator[WeightPair]:
    """Yield the pairs of one model-parallel rank, in the shapes of its shard."""
    native = native_of(source)
    mp_shard = native.mp_shards[mp_rank]
    present = any(optim is not None for optim in mp_shard.optim_states)
    if not (mp_shard.groups and present and first_of(mp_shard.optim_states).kind != STAGE_3):
        return
    ties = _layers_of_ties(source, mp_rank)
    stacked = dict.fromkeys(name for group in mp_shard.groups for name in group.blocks)
    for name in stacked:  # which no group has whole
        master, weight = mp_shard.tensors.get(Key(name, "param")), mp_shard.uncut.get(name)
        if master is not None and weight is not None and weight.shape == master.shape:
            yield name, master, weight
    for group in mp_shard.groups:
        for name, master in group.tensors("param") if not group.blocks else ():
            weight = mp_shard.uncut.get(name)
            if weight is None and (match := TIED.fullmatch(name)):
                weight = _only(mp_shard, match["name"], master, ties)
            if weight is not None and weight.shape == master.shape:
                yield name, master, weight


def _layers_of_ties(source: Checkpoint, mp_rank: int) -> set[int]:
    native = native_of(source)
    stage, tensor_rank = divmod(mp_rank, native.tensor_ranks)
    stages = native.mp_shards[tensor_rank :: native.tensor_ranks]
    trained = [{name for group in each.groups for name in group.shapes} for each in stages]
    return layers_of_ties(trained, native.mp_shards[mp_rank].uncut)[stage]


def _only(mp_shard: MpShard, name: str, master: Tensor, layers: set[int]) -> Tensor | None:
    """Return the tensor `name` of the only one of `layers` that has it in the shape of its
    master."""
    every = (mp_shard.uncut.get(f"{layer}.{name}") for layer in sorted(layers))
    found = [tensor for tensor in every if tensor is not None and tensor.shape == master.shape]
    return found[0] if len(found) == 1 else None

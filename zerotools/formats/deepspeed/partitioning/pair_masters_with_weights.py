"""Pair each master with the weight that was cast from it, for every model-parallel rank.

At stages 1 and 2 and with BF16_Optimizer, masters are in flat buffers, and weights are in the model
file, in layer files or in expert files. Stage 3 has only masters, so no pairs. A tied weight of a
pipeline is paired if only one layer of the stage can hold it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import MpShard
from zerotools.formats.deepspeed.partitioning.kept_for_writer import native_of
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3, first_of

TIED = re.compile(r"tied_modules\.[^.]+\.(?P<name>.+)")
PLAIN = re.compile(r"(?P<layer>\d+)\..+")


def layers_of_ties(trained: Sequence[Collection[str]], names: Iterable[str]) -> list[set[int]]:
    """Return, for each stage, the numbers of the layers that may hold its tied parameters.

    A parameter is called `LAYER.NAME`. A tied parameter, which several layers share, is called
    `tied_modules.KEY.NAME`, without its layers. A stage has consecutive layers, so its tied layers
    lie between the named layers of the previous stage and the named layers of the next stage:

        stage 0 trains 1.weight, 2.weight and tied_modules.embed.weight: its tied layer is 0
        stage 1 trains 3.weight and tied_modules.embed.weight: its tied layer is 4 or above

    `trained` are the parameters of each stage in order. `names` are the names of all tensors in
    layer files, in the form `LAYER.NAME`. Source: DeepSpeed `runtime/pipe/module.py`: `_build`,
    `save_state_dict`.
    """
    plain = [
        [int(match["layer"]) for name in own if (match := PLAIN.fullmatch(name))] for own in trained
    ]
    numbers = {int(match["layer"]) for name in names if (match := PLAIN.fullmatch(name))}
    found = []
    for stage, own in enumerate(plain):
        low = max((n for earlier in plain[:stage] for n in earlier), default=-1)
        high = min((n for later in plain[stage + 1 :] for n in later), default=None)
        found.append(
            {n for n in numbers if low < n and (high is None or n < high) and n not in own}
        )
    return found


WeightPair = tuple[str, Tensor, Tensor]
"""(name, master, weight): a master, and the weight that is its cast."""


def weight_pairs(source: Checkpoint) -> Iterator[WeightPair]:
    """Yield (name, master, weight) for all model-parallel ranks, in the shapes that the tensors
    have on the rank.
    """
    for number in range(len(native_of(source).mp_shards)):
        yield from pairs_of(source, number)


def pairs_of(source: Checkpoint, mp_rank: int) -> Iterator[WeightPair]:
    """Yield (name, master, weight) for one model-parallel rank, in the shapes that the tensors
    have on the rank.
    """
    native = native_of(source)
    mp_shard = native.mp_shards[mp_rank]
    present = any(optim is not None for optim in mp_shard.optim_states)
    if not (mp_shard.groups and present and first_of(mp_shard.optim_states).kind != STAGE_3):
        return
    ties = _layers_of_ties(source, mp_rank)
    stacked = dict.fromkeys(name for group in mp_shard.groups for name in group.blocks)
    for name in stacked:  # no group has all experts
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
    """Return the tensor `name` of a pipeline layer if exactly one of `layers` has such a tensor
    with the shape of `master`; else None.
    """
    every = (mp_shard.uncut.get(f"{layer}.{name}") for layer in sorted(layers))
    found = [tensor for tensor in every if tensor is not None and tensor.shape == master.shape]
    return found[0] if len(found) == 1 else None

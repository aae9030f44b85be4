"""Values that the DeepSpeed reader stores in `Checkpoint.native` for the DeepSpeed writer.

This module also finds pairs: a master and the weight that was cast from it. At stages 1 and 2 and
with BF16_Optimizer, masters are in flat buffers, and weights are in the model file, in layer files
or in expert files. Stage 3 has only masters, so no pairs. A tied weight of a pipeline is paired if
only one layer of the stage can hold it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import Unsupported
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import MpShard
from zerotools.formats.deepspeed.schema.file_names import name_for_rank
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3, first_of


@dataclass(frozen=True, slots=True)
class DeepSpeedNative:
    """Values that the DeepSpeed reader stores for the DeepSpeed writer.

    `mp_shards` are the model-parallel ranks in order; each pipeline stage consists of
    `tensor_ranks` of them. `frozen` are the names of the parameters that were not trained.
    `is_elastic` means that the saved partitions do not depend on the number of ranks.
    """

    mp_shards: Sequence[MpShard]
    tensor_ranks: int
    frozen: frozenset[str]
    is_elastic: bool


def files_of_all_ranks(source: Checkpoint, name: str) -> Iterator[str]:
    """Yield the name of the file `name`, and of the same file of every other data-parallel rank.

    Files with a problem are left out, because an older save may have written them. In a run without
    model parallelism, the mp rank in a file name is ignored, because it is only the rank's number
    among the ranks that share a sequence.
    """
    mp_rank = 0 if len(native_of(source).mp_shards) == 1 else None
    faulty = {problem.file for problem in source.problems}
    same = name_for_rank(name, 0, mp_rank)
    for other in sorted(source.files):
        if other not in faulty and name_for_rank(other, 0, mp_rank) == same:
            yield other


def refuse_stacked_experts(source: Checkpoint) -> None:
    """Raise an error if `source`, which may be in any of DeepSpeed's formats, has experts of
    AutoEP.

    zerotools can write such experts only from DeepSpeed's rank files to rank files.

    Raises:
        Unsupported: `source` has such experts.
    """
    native = source.native
    shards = native.mp_shards if isinstance(native, DeepSpeedNative) else ()
    model = shards[0].model if shards else getattr(native, "model", None)
    if isinstance(model, ModelStates) and model.stacked_experts.layers:
        raise Unsupported(
            f"{source.origin.path} has experts of AutoEP, and zerotools writes rank files with "
            "such experts only from rank files (zerotools reshard); "
            + (
                "make a universal checkpoint, which DeepSpeed loads on any number of ranks, with "
                "zerotools convert --to universal"
                if shards
                else "DeepSpeed 0.19.8 loads this universal checkpoint on any number of ranks, "
                'with "checkpoint": {"load_universal": true} in its configuration'
            )
        )


def native_of(checkpoint: Checkpoint) -> DeepSpeedNative:
    """Return the values that the DeepSpeed reader stored in a checkpoint that `reading.read`
    returned.
    """
    native = checkpoint.native
    if not isinstance(native, DeepSpeedNative):
        raise TypeError(f"{checkpoint.origin.path} is not a native DeepSpeed checkpoint")
    return native


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

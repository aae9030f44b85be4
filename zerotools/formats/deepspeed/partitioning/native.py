"""The values of a DeepSpeed checkpoint that only writers of this format need."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import Unsupported
from zerotools.formats.deepspeed.partitioning.mp_rank import MpShard
from zerotools.formats.deepspeed.schema.file_names import name_for_rank
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3, first_of


@dataclass(frozen=True, slots=True)
class DeepSpeedNative:
    """`mp_shards` are the model-parallel ranks in order; `tensor_ranks` of them form one pipeline
    stage. `frozen` are the parameters that were not trained. `is_elastic` means that the partitions
    are not tied to a number of ranks."""

    mp_shards: Sequence[MpShard]
    tensor_ranks: int
    frozen: frozenset[str]
    is_elastic: bool


def files_of_all_ranks(source: Checkpoint, name: str) -> Iterator[str]:
    """Yield the file `name` and those of the other data-parallel ranks. Omit files with a problem,
    because they may be of an older save. Without model parallelism, the mp rank in a name is the
    rank among those that share a sequence."""
    mp_rank = 0 if len(native_of(source).mp_shards) == 1 else None
    faulty = {problem.file for problem in source.problems}
    same = name_for_rank(name, 0, mp_rank)
    for other in sorted(source.files):
        if other not in faulty and name_for_rank(other, 0, mp_rank) == same:
            yield other


def refuse_stacked_experts(source: Checkpoint) -> None:
    """Refuse to make files of ranks of AutoEP's experts, but of files of ranks. `source` was read
    from any files of DeepSpeed's.

    Raises:
        Unsupported: it has some.
    """
    native = source.native
    shards = native.mp_shards if isinstance(native, DeepSpeedNative) else ()
    model = shards[0].model if shards else getattr(native, "model", None)
    if isinstance(model, ModelStates) and model.stacked_experts.layers:
        raise Unsupported(
            f"{source.origin.path} has experts of AutoEP, and zerotools writes files of ranks for "
            "them only from files of ranks (zerotools reshard); "
            + (
                "make a universal checkpoint, which DeepSpeed loads on any number of ranks, with "
                "zerotools convert --to universal"
                if shards
                else "DeepSpeed 0.19.8 loads this universal checkpoint on any number of ranks, "
                'with "checkpoint": {"load_universal": true} in its configuration'
            )
        )


def native_of(checkpoint: Checkpoint) -> DeepSpeedNative:
    """Return the native values of a checkpoint that `reading.read` returned."""
    native = checkpoint.native
    if not isinstance(native, DeepSpeedNative):
        raise TypeError(f"{checkpoint.origin.path} is not a native DeepSpeed checkpoint")
    return native


TIED = re.compile(r"tied_modules\.[^.]+\.(?P<name>.+)")
PLAIN = re.compile(r"(?P<layer>\d+)\..+")


def layers_of_ties(trained: Sequence[Collection[str]], names: Iterable[str]) -> list[set[int]]:
    """Return for each stage the numbers of the layers that may hold its tied parameters. `trained`
    are the parameters of each stage in order, `names` everything that layer files hold, by
    `LAYER.NAME`."""
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

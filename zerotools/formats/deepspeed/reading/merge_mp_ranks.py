"""Merge the shards of all model-parallel ranks into whole tensors.

Pipeline stages have different parameters, so the result has the parameters of all stages. The shard
of every stage that uses a tied layer contains this layer; the copy of the first stage is used.
Tensor-parallel ranks have parts of the same parameters, and rules give the positions of these parts
in the whole tensor. Model-parallel ranks are numbered stage by stage (`stage * tensor ranks +
tensor rank`), so the ranks of one stage are consecutive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zerotools.core.checkpoint import Chunk, ChunksOnDemand, Key, Tensor
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import MpShard
from zerotools.formats.deepspeed.schema.tag_file_names import TagListing
from zerotools.io.files.tolerated_damage import is_tolerated, raise_or_record, record_lost_tensor

if TYPE_CHECKING:  # most checkpoints have no tensor-parallel ranks
    from zerotools.core.tensor_parallel_placement import PlacedBlock
    from zerotools.formats.deepspeed.schema.read_tensor_sharding_rules import ShardingRules


@dataclass(frozen=True)
class MergedRanks:
    """The tensors, tied names and names of frozen parameters of the whole model, from all
    model-parallel ranks.
    """

    tensors: Mapping[Key, Tensor]
    aliases: Mapping[str, str]
    frozen: frozenset[str]


def merge_mp_ranks(
    mp_shards: Sequence[MpShard], tensor_ranks: int, rules: ShardingRules | None
) -> MergedRanks:
    """Merge the shards of the model-parallel ranks, which are in the order of the ranks. Each
    pipeline stage has `tensor_ranks` of them.

    Raises:
        Unsupported: there are tensor-parallel shards, but no rule says how they form a tensor.
        BadFile: shards do not fit the rule that the checkpoint records for them.
    """
    tensors: dict[Key, Tensor] = {}
    for first in range(0, len(mp_shards), tensor_ranks):
        for key, tensor in _merge_stage(mp_shards[first : first + tensor_ranks], rules):
            tensors.setdefault(key, tensor)
    aliases = {alias: name for mp_shard in mp_shards for alias, name in mp_shard.aliases.items()}
    frozen = {
        name
        for mp_shard in mp_shards
        for name in mp_shard.frozen
        if Key(name, "param") in tensors
        and (mp_shard.tensors[Key(name, "param")].numel or not tensors[Key(name, "param")].numel)
    }
    return MergedRanks(tensors, aliases, frozenset(frozen))


def _merge_stage(
    stage: Sequence[MpShard], rules: ShardingRules | None
) -> Iterator[tuple[Key, Tensor]]:
    if len(stage) == 1:
        yield from stage[0].tensors.items()
        return
    if rules is None:
        raise Unsupported(
            f"{stage[0].model.file.path} is one of {len(stage)} tensor-parallel ranks, and the "
            "checkpoint does not record how the weights are split among them; pass --layout "
            "rules.toml"
        )
    keys = dict.fromkeys(key for mp_shard in stage for key in mp_shard.tensors)
    for key in keys:
        shards = [_shard(mp_shard, key) for mp_shard in stage]
        present = [shard for shard in shards if shard is not None]
        if len(present) < len(shards):
            path = stage[0].model.file.path
            error = BadFile(
                f"{path}: {key} is on only {len(present)} of {len(shards)} tensor-parallel ranks; "
                "take another checkpoint"
            )
            raise_or_record(path, error)
            record_lost_tensor(path, key.name)
            continue
        if present[0].shape:
            yield key, _joined(key, present, stage, rules)
        else:
            yield key, next((shard for shard in present if shard.chunks), present[0])


def _shard(mp_shard: MpShard, key: Key) -> Tensor | None:
    """Return the part of a tensor that one rank has; None if the rank has no such tensor.

    If there are fewer heads than ranks, some ranks have an empty part. DeepSpeed treats an empty
    part as frozen, so it has no optimizer state. If a rank's files are lost and damage is
    tolerated, the part is a hole in the shape of the rank's weight.
    """
    shard = mp_shard.tensors.get(key)
    weight = mp_shard.tensors.get(Key(key.name, "param"))
    if shard is None and weight is not None and (not weight.numel or is_tolerated()):
        return Tensor(weight.dtype, () if key.role == "step" else weight.shape, ())
    return shard


def _joined(
    key: Key, shards: Sequence[Tensor], stage: Sequence[MpShard], rules: ShardingRules
) -> Tensor:
    from zerotools.core.tensor_parallel_placement import Replicated, shard_placements, whole_shape

    shapes = [shard.shape for shard in shards]
    # Moments are split like their parameter. A buffer is whole on every rank unless a rule says
    # otherwise.
    otherwise = Replicated() if key.role == "buffer" else None
    rule = rules.rule_of(key.name, shapes, otherwise)
    try:
        shape = whole_shape(rule, shapes)
        placed = [shard_placements(rule, shapes, rank) for rank in range(len(shards))]
    except ValueError as error:
        raise BadFile(f"{stage[0].model.file.path}: {key}: {error}") from None
    dtype = next((shard.dtype for shard in shards if any(shard.chunks)), shards[0].dtype)
    return Tensor(dtype, shape, ChunksOnDemand(lambda: _placed(shards, placed)))


def _placed(shards: Sequence[Tensor], placed: Sequence[Sequence[PlacedBlock]]) -> list[Chunk]:
    from zerotools.core.tensor_parallel_placement import place_chunk

    return [
        there
        for shard, blocks in zip(shards, placed, strict=True)
        for chunk in shard.chunks
        for block in blocks
        if (there := place_chunk(chunk, block, shard.dtype)) is not None
    ]


def with_sequence_ranks(listing: TagListing, size: int) -> TagListing:
    """Return the listing of a run of `size` ranks without model parallelism, changed so that all
    files belong to model-parallel rank 0.

    With Ulysses, DeepSpeed 0.18 names the files of a rank after its number among the ranks that
    share a sequence. For example, two ranks share a sequence in a run of four:

        zero_pp_rank_0_mp_rank_00_optim_states.pt    zero_pp_rank_1_mp_rank_01_optim_states.pt
        zero_pp_rank_2_mp_rank_00_optim_states.pt    zero_pp_rank_3_mp_rank_01_optim_states.pt

    All four share the flat buffers, and `mp_world_size` is 1. DeepSpeed 0.19.8 names all of them
    `mp_rank_00`. Files that do not exactly fill the gaps among the ranks stay unchanged, because
    they are from another run.

    Source: DeepSpeed 0.18.9 `runtime/engine.py`: `_get_zero_ckpt_name`, `_get_ckpt_name`;
    `runtime/sequence_parallel/parallel_state_sp.py`.
    """
    optim_files, models = dict(listing.optim_files), dict(listing.models)
    widths = [listing.sequence_ranks]
    for spelling in {spelling for _, _, spelling in optim_files}:
        width = _width({(mp, dp) for mp, dp, spelt in optim_files if spelt == spelling}, size)
        for mp, dp, spelt in [*optim_files]:
            if width and spelt == spelling and mp and dp < size:
                optim_files[0, dp, spelt] = optim_files.pop((mp, dp, spelt))
        widths.append(width)
    width = _width({(mp, dp) for mp, dp in models if dp is not None}, size)
    for key, name in listing.models.items():
        mp, rank = key
        if width and rank is not None and mp and rank < size:
            del models[key]
            models[0, rank] = name
    most = max(*widths, width)
    return replace(listing, optim_files=optim_files, models=models, sequence_ranks=most)


def _width(names: Collection[tuple[int, int]], size: int) -> int:
    """Return the number of ranks that share a sequence. `names` are the (mp rank, dp rank) in the
    file names.

    Return 0 if no ranks share a sequence, or if two files would belong to the same rank.
    """
    own = [(mp, dp) for mp, dp in names if dp < size]
    most = max((mp for mp, _ in own), default=0)
    if not most or len({dp for _, dp in own}) < len(own):
        return 0
    widths = (n for n in range(most + 1, size + 1) if not size % n)
    return next((n for n in widths if all(dp % n == mp for mp, dp in own)), 0)

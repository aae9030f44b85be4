"""Reading the files of one model-parallel rank, and noticing which are missing or left over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from zerotools.core.checkpoint import Problem, Tensor
from zerotools.core.errors import BadFile
from zerotools.formats.deepspeed.column import Column, read_column, whole_tensors
from zerotools.formats.deepspeed.experts import EXPERTS
from zerotools.formats.deepspeed.files import Listing
from zerotools.formats.deepspeed.model import ModelStates, parse_model, tensors_of
from zerotools.formats.deepspeed.shards import STAGE_3, Shard, parse_shard
from zerotools.io.torchzip.torchfile import TorchFile


def load_column(
    directory: Path, listing: Listing, mp: int, whole: Mapping[str, Tensor], problems: list[Problem]
) -> Column:
    """The column of model-parallel rank `mp`; what is missing is added to `problems`.

    `whole` are tensors of layer and expert files, beside those of the model file itself.
    """
    first = parse_model(TorchFile.open(directory, _first_model(listing, mp)))
    shards = _shards(directory, listing, mp, first, problems)
    models = [first]
    if any(shard is not None and shard.kind == STAGE_3 for shard in shards):
        models = stage_3_models(directory, listing, mp, first, len(shards), problems)
    names = {name for group in first.groups or () for name in group}
    mine = {name: tensor for name, tensor in whole.items() if _belongs(name, names, first)}
    return read_column(models, shards, {**mine, **whole_tensors(first)})


def _belongs(name: str, trained: set[str], model: ModelStates) -> bool:
    """Whether a tensor of a layer or expert file is this column's: all are where there is no
    pipeline; in one, a column lists its own parameters."""
    return model.module is not None or EXPERTS in name or name in trained or not trained


def _first_model(listing: Listing, mp: int) -> str:
    for dp in (None, *sorted(dp for rank, dp in listing.models if rank == mp and dp is not None)):
        if (mp, dp) in listing.models:
            return listing.models[mp, dp]
    raise AssertionError(f"model-parallel rank {mp} was listed without a file")


def _shards(
    directory: Path, listing: Listing, mp: int, model: ModelStates, problems: list[Problem]
) -> list[Shard | None]:
    """The optimizer files of every data-parallel rank, in rank order."""
    ranks = sorted(dp for rank, dp in listing.shards if rank == mp)
    if not ranks:
        return []
    names = {rank: listing.shards[mp, rank] for rank in ranks}
    lowest = parse_shard(TorchFile.open(directory, names[ranks[0]]))
    size = _data_parallel_size(model, lowest, ranks)
    shards: dict[int, Shard] = {}
    for rank in ranks:
        if rank >= size:
            problems.append(_left_over(directory, names[rank], size))
        elif rank == ranks[0]:
            shards[rank] = lowest
        else:
            shards[rank] = parse_shard(TorchFile.open(directory, names[rank]))
    for rank in range(size):
        if rank not in names:
            missing = names[ranks[0]].replace(f"pp_rank_{ranks[0]}_", f"pp_rank_{rank}_")
            problems.append(_missing(directory, missing, size))
    return [shards.get(rank) for rank in range(size)]


def _left_over(directory: Path, name: str, size: int) -> Problem:
    return Problem(f"{directory / name} is left over from a run of more than {size} ranks", name)


def _missing(directory: Path, name: str, size: int) -> Problem:
    return Problem(f"{directory / name} is missing; the run had {size} ranks", name)


def _data_parallel_size(model: ModelStates, shard: Shard, ranks: Sequence[int]) -> int:
    """The number of ranks that share the flat vectors, as the files say."""
    count = shard.partition_count
    if isinstance(count, int) and count > 0:
        return count
    sizes = [model.data_parallel_size] if model.data_parallel_size else []
    if isinstance(count, list):
        sizes += [n for n in count if type(n) is int]
    return max(sizes, default=max(ranks) + 1)


def stage_3_models(
    directory: Path,
    listing: Listing,
    mp: int,
    first: ModelStates,
    size: int,
    problems: list[Problem],
) -> list[ModelStates]:
    """One model file per rank. Only frozen parameters make the others worth reading."""
    for (rank, dp), name in listing.models.items():
        if rank == mp and dp is not None and dp >= size:
            problems.append(_left_over(directory, name, size))
    names = {dp: listing.models.get((mp, dp)) for dp in range(size)}
    for dp, there in names.items():
        if there is None:
            missing = f"zero_pp_rank_{dp}_mp_rank_{mp:02d}_model_states.pt"
            problems.append(_missing(directory, missing, size))
    if not first.frozen_shapes:
        return [first]
    if None in names.values():
        raise BadFile(f"{problems[-1].message}; it holds a part of every frozen parameter")
    return [
        first if name == first.file.name else parse_model(TorchFile.open(directory, name))
        for name in names.values()
        if name is not None
    ]


def layer_tensors(directory: Path, listing: Listing, tensor_rank: int) -> dict[str, Tensor]:
    """Tensors of a pipeline's layer files, under the names that the flat vectors use."""
    return {
        f"{layer}.{name}": tensor
        for (layer, rank), file in sorted(listing.layers.items())
        if rank == tensor_rank
        for name, tensor in _state_dict(directory, file)
    }


def expert_tensors(directory: Path, listing: Listing, mp: int) -> dict[str, Tensor]:
    """Tensors of expert files, which name experts by their number over all ranks."""
    return {
        name: tensor
        for (_, _, rank), file in sorted(listing.experts.items())
        if rank == mp
        for name, tensor in _state_dict(directory, file)
    }


def _state_dict(directory: Path, name: str) -> Iterator[tuple[str, Tensor]]:
    file = TorchFile.open(directory, name)
    if not isinstance(file.tree, Mapping):
        raise BadFile(f"{file.path} is no state dict but a {type(file.tree).__name__}")
    for key, stored in tensors_of(file.tree, file.path).items():
        yield key, file.tensor(stored)

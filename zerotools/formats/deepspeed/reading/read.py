"""Read a whole DeepSpeed checkpoint: select the tag, merge the model-parallel ranks, collect the
problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.checkpoint import Checkpoint, Problem
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import MpShard
from zerotools.formats.deepspeed.partitioning.kept_for_writer import DeepSpeedNative
from zerotools.formats.deepspeed.partitioning.read_nvme_swap_files import swap_files
from zerotools.formats.deepspeed.partitioning.stack_experts import stacked_experts
from zerotools.formats.deepspeed.reading.check_same_save import compare_mp_ranks
from zerotools.formats.deepspeed.reading.files_of_save import SaveFiles, save_of, with_lost_models
from zerotools.formats.deepspeed.reading.load_mp_rank import (
    data_parallel_size,
    expert_tensors,
    layer_tensors,
    load_mp_rank,
)
from zerotools.formats.deepspeed.reading.merge_mp_ranks import (
    MergedRanks,
    merge_mp_ranks,
    with_sequence_ranks,
)
from zerotools.formats.deepspeed.reading.missing_layers_and_experts import lost_experts, lost_layers
from zerotools.formats.deepspeed.reading.training_state import origin_of, present_optim_states
from zerotools.formats.deepspeed.schema.find_tag import open_tag
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.schema.state_dict_keys import TENSOR_PARALLEL_INFO
from zerotools.formats.deepspeed.schema.tag_file_names import (
    TagListing,
    has_bf16_prefix,
    model_file,
    optim_file,
)
from zerotools.io.files.source_stamps import record_source_path
from zerotools.io.files.tolerated_damage import is_tolerated, raise_or_record
from zerotools.io.huggingface.model_sidecars import model_sidecars
from zerotools.runs.thinning_record import read_thinned

if TYPE_CHECKING:  # most checkpoints have no tensor-parallel ranks
    from zerotools.formats.deepspeed.schema.read_tensor_sharding_rules import ShardingRules


def read(
    path: Path,
    *,
    tag: str | None = None,
    layout: Path | None = None,
    weights_alone: bool = False,
) -> Checkpoint:
    """Return the checkpoint at `path`: a tag directory, a save directory, or a run's directory.

    The pickles in the files are read, but no tensor data. A missing optimizer file is recorded as a
    problem, and the tensors in it have holes, so that `plan` refuses to copy them. Optimizer files
    are not required with `weights_alone`, or if the checkpoint was thinned to its weights. `layout`
    is a file of rules for tensor-parallel shards, which replace the rules in the checkpoint.

    Raises:
        BadRequest: the path or tag does not exist.
        BadFile: `path` is not a DeepSpeed checkpoint, or the checkpoint is damaged.
        Unsupported: the layout cannot be determined from the files.
    """
    found, listing = open_tag(path, tag)
    directory = found.directory
    thinned = read_thinned(directory)
    if weights_alone:
        listing = replace(listing, optim_files={})
    elif thinned is not None:
        from zerotools.core.thinning_changes import Keep

        weights_alone = thinned.keep == Keep.WEIGHTS
    problems: list[Problem] = []
    expected = with_lost_models(listing) if is_tolerated() else listing
    mp_shards, tensor_ranks = _mp_shards(directory, expected, problems, weights_alone)
    merged = merge_mp_ranks(mp_shards, tensor_ranks, _rules(mp_shards, layout))
    return Checkpoint(
        root=directory,
        tensors=merged.tensors,
        origin=origin_of(path, found, mp_shards),
        native=_native(mp_shards, tensor_ranks, merged),
        aliases=merged.aliases,
        files=_sizes(directory, listing, mp_shards),
        model_sidecars=model_sidecars(directory.parent),
        problems=problems,
    )


def _native(mp_shards: list[MpShard], tensor_ranks: int, merged: MergedRanks) -> DeepSpeedNative:
    present = present_optim_states(mp_shards)
    is_elastic = bool(present) and not present[0].is_rigid
    return DeepSpeedNative(mp_shards, tensor_ranks, frozenset(merged.frozen), is_elastic)


def _mp_shards(
    directory: Path, listing: TagListing, problems: list[Problem], weights_alone: bool
) -> tuple[list[MpShard], int]:
    """Return the tensors of each model-parallel rank, in rank order, and the number of
    tensor-parallel ranks in a pipeline stage.
    """
    if listing.expert_optimizers and not listing.optim_files:
        raise Unsupported(
            f"{directory / listing.expert_optimizers[0]}: this optimizer state of experts was "
            "saved without ZeRO, so it does not name its parameters; load it with DeepSpeed, "
            "or save it from a run with ZeRO stage 1 or 2"
        )
    listing = _joined(directory, listing)
    saves: list[SaveFiles] = []
    for mp_rank in listing.mp_ranks:
        if saves and mp_rank >= (saves[0].model.model_parallel_size or mp_rank + 1):
            problems += _of_larger_run(directory, listing, mp_rank)
        else:
            saves.append(save_of(directory, listing, mp_rank, problems))
    models = [save.model for save in saves]
    _refuse_folded(models)
    listing = _without_leftovers(directory, listing, models[0], problems)
    tensor_ranks = listing.tensor_ranks if listing.layers else len(saves)
    layers = [
        layer_tensors(directory, listing, rank, problems)
        for rank in range(min(tensor_ranks, len(saves)))
    ]
    mp_shards = []
    for mp_rank, save in zip(listing.mp_ranks, saves, strict=False):
        whole = {**(layers[mp_rank % tensor_ranks] if mp_rank % tensor_ranks < len(layers) else {})}
        files = expert_tensors(directory, listing, mp_rank, problems)
        whole |= stacked_experts(save.model.stacked_experts, files)
        mp_shards.append(
            load_mp_rank(
                directory, listing, mp_rank, save, whole, problems, weights_alone=weights_alone
            )
        )
    _check_complete(directory, listing, mp_shards[0])
    if not weights_alone:
        problems += _lost_optimizers(directory, listing, models)
    problems += compare_mp_ranks(models)
    problems += lost_experts(directory, listing, models)
    for rank in range(tensor_ranks if models[0].module is None else 0):
        problems += lost_layers(directory, mp_shards[rank::tensor_ranks], layers[rank])
    return mp_shards, tensor_ranks


def _joined(directory: Path, listing: TagListing) -> TagListing:
    """Return the listing with the files of all sequence-parallel ranks moved to model-parallel
    rank 0.
    """
    others = [mp for mp, *_ in (*listing.models, *listing.optim_files) if mp]
    if not others or 0 not in listing.mp_ranks:
        return listing
    first = save_of(directory, listing, 0, [])
    if first.model.model_parallel_size != 1 or first.lowest is None:
        return listing
    size = data_parallel_size(first.model, first.lowest, [*first.optim_files])
    return with_sequence_ranks(listing, size)


def _refuse_folded(models: Sequence[ModelStates]) -> None:
    """Raise an error if the files of tensor-parallel ranks hold parts of experts.

    Raises:
        Unsupported: a model file has experts that AutoTP also split.
    """
    for model in models:
        if model.is_folded:
            raise Unsupported(
                f"{model.file.path} has experts of AutoEP that AutoTP also split (folding), "
                "which zerotools does not read; save the checkpoint from a run with "
                "tensor_parallel.autotp_size 1"
            )


def _without_leftovers(
    directory: Path, listing: TagListing, model: ModelStates, problems: list[Problem]
) -> TagListing:
    """Return the listing without layer files and expert files that the run cannot have written,
    such as layer files if the run had no pipeline.
    """
    layers, experts = listing.layers, listing.experts
    if model.module is not None:
        layers = {}
    if not model.num_experts:
        experts = {}
    kept = {*layers.values(), *experts.values()}
    for name in (*listing.layers.values(), *listing.experts.values()):
        if name not in kept:
            problems.append(
                Problem(
                    f"{directory / name} belongs to another save under this tag, because "
                    f"{model.file.name} has no such layers; move it elsewhere",
                    name,
                )
            )
    return replace(listing, layers=layers, experts=experts)


def _of_larger_run(directory: Path, listing: TagListing, mp_rank: int) -> Iterator[Problem]:
    """Yield a problem for each file of a model-parallel rank that the run did not have."""
    own = (
        name
        for (rank, *_), name in [*listing.models.items(), *listing.optim_files.items()]
        if rank == mp_rank
    )
    for name in own:
        yield Problem(
            f"{directory / name} belongs to a run with more model-parallel ranks; move it "
            "elsewhere",
            name,
        )


def _lost_optimizers(
    directory: Path, listing: TagListing, models: Sequence[ModelStates]
) -> Iterator[Problem]:
    """Yield a problem for each rank without an optimizer file, if other ranks have one and the
    model files do not list the trained parameters. With this list, the missing masters are already
    reported.
    """
    present = {mp_rank for mp_rank, *_ in listing.optim_files}
    for mp_rank, model in zip(listing.mp_ranks, models, strict=False):
        if present and mp_rank not in present and model.groups is None:
            is_bf16 = has_bf16_prefix(min(listing.optim_files.values()))
            name = optim_file(mp_rank, 0, bf16=is_bf16)
            yield Problem(
                f"{directory / name} is missing, but other ranks have one; copy or download it "
                "again",
                name,
            )


def _check_complete(directory: Path, listing: TagListing, first: MpShard) -> None:
    """Check that the files of all model-parallel ranks exist. Otherwise, one rank's part of a
    tensor would count as the whole tensor.
    """
    size = first.model.model_parallel_size or 1
    for mp_rank in range(size):
        if mp_rank not in listing.mp_ranks:
            raise BadFile(
                f"{directory}: {model_file(mp_rank)} is missing; the run had {size} model-parallel "
                "ranks; copy or download it again"
            )


def _rules(mp_shards: list[MpShard], layout: Path | None) -> ShardingRules | None:
    """Return the user's rules for tensor-parallel weights, else the rules in the files, else
    None.
    """
    if layout is not None:
        from zerotools.formats.deepspeed.schema.read_tensor_sharding_rules import read_layout

        return read_layout(layout)
    saved = [(shard.model.file.path, shard.model.fields) for shard in mp_shards]
    saved += [(optim.file.path, optim.fields) for optim in present_optim_states(mp_shards)]
    found = next((each for each in saved if TENSOR_PARALLEL_INFO in each[1]), None)
    if found is None:
        return None
    from zerotools.formats.deepspeed.schema.read_tensor_sharding_rules import parse_rules

    path, fields = found
    return parse_rules(path, fields.tree[TENSOR_PARALLEL_INFO])


def _sizes(directory: Path, listing: TagListing, mp_shards: list[MpShard]) -> dict[str, int]:
    names = [
        *listing.models.values(),
        *listing.optim_files.values(),
        *listing.layers.values(),
        *listing.experts.values(),
        *(name for optim in present_optim_states(mp_shards) for name in swap_files(optim)),
    ]
    return dict(_noted(directory, names))


def _noted(directory: Path, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    for name in names:
        try:
            yield name, record_source_path(directory / name)
        except OSError as error:
            if not is_tolerated():
                raise
            raise_or_record(
                directory / name,
                BadFile(f"{directory / name} cannot be read ({error}); copy or download it again"),
            )

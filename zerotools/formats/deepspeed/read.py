"""A whole DeepSpeed checkpoint: its tag, its columns put together, its problems."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Problem
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats.deepspeed.column import Column
from zerotools.formats.deepspeed.facts import origin_of, present_shards, state_of
from zerotools.formats.deepspeed.files import Listing, list_files
from zerotools.formats.deepspeed.find import find
from zerotools.formats.deepspeed.load import expert_tensors, layer_tensors, load_column
from zerotools.formats.deepspeed.merge import merge
from zerotools.formats.deepspeed.rules import Rules, parse_rules, read_layout
from zerotools.formats.deepspeed.universal import is_universal, read_universal
from zerotools.io.companions import companions
from zerotools.io.sources import note_source

INFO = "universal_checkpoint_info"


def read(path: Path, *, tag: str | None = None, layout: Path | None = None) -> Checkpoint:
    """The checkpoint that `path` means: a tag directory, a save directory, or a run's directory.

    Reads the pickles of the files, and no tensor data. Missing shards are problems, and become
    holes that `plan` refuses. `layout` is a file of rules for tensor-parallel shards whose
    checkpoint records none.

    Raises:
        BadRequest: there is no such path or tag.
        BadFile: it is no DeepSpeed checkpoint, or a damaged one.
        Unsupported: a layout that the files do not explain.
    """
    if not path.exists():
        raise BadRequest(f"{path} does not exist")
    found = find(path, tag)
    if found is None:
        raise BadFile(f"{path} holds no *_model_states.pt of DeepSpeed")
    directory = found.directory
    listing = list_files(directory)
    if not listing.models:
        raise BadFile(f"{directory} has no *_model_states.pt of DeepSpeed")
    if is_universal(directory):
        return read_universal(path, found, listing)
    problems: list[Problem] = []
    tensor_ranks = listing.tensor_ranks
    columns = _columns(directory, listing, tensor_ranks, problems)
    merged = merge(columns, tensor_ranks, _rules(columns, layout))
    return Checkpoint(
        root=directory,
        tensors=merged.tensors,
        origin=origin_of(path, found, columns, merged),
        aliases=merged.aliases,
        state=state_of(columns),
        files=_sizes(directory, listing),
        companions=companions(directory.parent),
        problems=problems,
    )


def _columns(
    directory: Path, listing: Listing, tensor_ranks: int, problems: list[Problem]
) -> list[Column]:
    """One for each model-parallel rank, in their order."""
    if listing.expert_optimizers and not listing.shards:
        raise Unsupported(
            f"{directory / listing.expert_optimizers[0]}: mixture of experts without ZeRO saves "
            "optimizer state that does not name its parameters; train with ZeRO stage 1 or 2, or "
            "load it with DeepSpeed"
        )
    columns: list[Column] = []
    for mp in listing.mp_ranks:
        whole = layer_tensors(directory, listing, mp % tensor_ranks)
        whole |= expert_tensors(directory, listing, mp)
        columns.append(load_column(directory, listing, mp, whole, problems))
    _check_complete(directory, listing, columns[0])
    return columns


def _check_complete(directory: Path, listing: Listing, first: Column) -> None:
    """A shard must never pass for the whole because its neighbours are gone."""
    size = first.model.fields.maybe("mp_world_size", int) or 1
    for mp in range(size):
        if mp not in listing.mp_ranks:
            raise BadFile(
                f"{directory}: mp_rank_{mp:02d}_model_states.pt is missing; the run had {size} "
                "model-parallel ranks"
            )


def _rules(columns: list[Column], layout: Path | None) -> Rules | None:
    """How tensor-parallel ranks share weights: what the files record, else what the user says."""
    for column in columns:
        if INFO in column.model.fields:
            return parse_rules(column.model.file.path, column.model.fields.tree[INFO])
    for shard in present_shards(columns):
        if INFO in shard.fields:
            return parse_rules(shard.file.path, shard.fields.tree[INFO])
    return read_layout(layout) if layout is not None else None


def _sizes(directory: Path, listing: Listing) -> dict[str, int]:
    names = [
        *listing.models.values(),
        *listing.shards.values(),
        *listing.layers.values(),
        *listing.experts.values(),
    ]
    return {name: note_source(directory / name) for name in names}

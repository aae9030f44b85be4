"""A DeepSpeed checkpoint for another number of ranks or stage, as DeepSpeed itself would save it.

The output is a save directory: the tag with its files, `latest`, and what lay around the tag.
Every model-parallel rank is laid out on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Dropped, Key, Target, Tensor
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats.deepspeed.logical.change_stage import COPY, change_stage
from zerotools.formats.deepspeed.logical.hyperparameters import hyperparameters_of
from zerotools.formats.deepspeed.logical.logical_state import LogicalState, logical_state_of
from zerotools.formats.deepspeed.partitioning.mp_rank import MpRank
from zerotools.formats.deepspeed.schema.ds_config import AS_IS, ZeroSettings
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3, first_of
from zerotools.formats.deepspeed.writing.checks import check_masters, check_supported
from zerotools.formats.deepspeed.writing.notes import notes_on
from zerotools.formats.deepspeed.writing.pt_files import REPEATED, OutputFiles
from zerotools.formats.deepspeed.writing.tag_sidecars import run_sidecars
from zerotools.formats.deepspeed.writing.target_layout import (
    TargetLayout,
    configured,
    target_layout_of,
)
from zerotools.formats.deepspeed.writing.zero3 import lay_out_zero3
from zerotools.formats.deepspeed.writing.zero12 import lay_out_zero12
from zerotools.io.output.plain_files import carried_file

COLUMNS = "columns"


def lay_out(
    source: Checkpoint, destination: Path, *, world_size: int, settings: ZeroSettings = AS_IS
) -> Target:
    """Lay `source`, as the reader of DeepSpeed gave it, out for `world_size` ranks.

    Raises:
        BadRequest: `world_size` is not a multiple of the model- or expert-parallel ranks, or a
            setting that does not fit.
        Unsupported: a checkpoint without ZeRO; stage 3 of model-parallel ranks or of experts; files
            that do not say what is needed.
        BadFile: its files disagree.
    """
    columns: Sequence[MpRank] = source.origin.details[COLUMNS]
    ranks = data_parallel(source, world_size)
    laid = [_lay_out_column(source, mp, settings, ranks) for mp in range(len(columns))]
    tag, first = source.root.name, laid[0]
    same_ranks = ranks == len(columns[0].shards)
    plans, notes = run_sidecars(source, same_ranks=same_ranks)
    for each in laid:
        plans |= each.files.plans
    plans |= {f"{tag}/{name}": carried_file(source.root / name) for name in layer_files(source)}
    checkpoint = replace(
        source,
        root=destination,
        tensors={key: tensor for each in laid for key, tensor in each.files.tensors.items()},
        origin=replace(
            source.origin,
            path=destination,
            world_size=world_size,
            stage=first.wanted.stage,
            notes=(),
            details={},
        ),
        files={name: plan.size for name, plan in plans.items()},
        state={},
        companions={},
        problems=(),
    )
    return Target(
        checkpoint,
        plans,
        notes=(*notes, *notes_on(columns[0], first.source, first.wanted, settings)),
        carried={key: tensor for each in laid for key, tensor in each.files.carried.items()},
        sources={key: tensor for each in laid for key, tensor in each.files.sources.items()},
        dropped=_dropped(source, first.wanted),
        unlisted=unlisted_keys(checkpoint.tensors),
        spelled=_spelled(columns),
        compared=_compared if len(columns) > 1 else None,
    )


@dataclass(frozen=True)
class _Laid:
    """One model-parallel rank: its blueprint as it was read, its layout, and its files."""

    source: LogicalState
    wanted: TargetLayout
    files: OutputFiles


def _lay_out_column(source: Checkpoint, mp: int, settings: ZeroSettings, ranks: int) -> _Laid:
    columns: Sequence[MpRank] = source.origin.details[COLUMNS]
    column, tag = columns[mp], source.root.name
    check_supported(source.root, column, len(columns), settings)
    blueprint = logical_state_of(column, hyperparameters_of(column, settings))
    wanted = target_layout_of(blueprint, settings, ranks, len(column.shards))
    check_masters(source, column)
    made = configured(change_stage(blueprint, wanted.kind, wanted.stage), wanted)
    layers = layer_files(source)
    there = {key: tensor for key, tensor in made.held.items() if _lies_in(tensor, layers)}
    made = replace(made, held={k: t for k, t in made.held.items() if k not in there})
    bf16 = first_of(column.shards).file.name.startswith("bf16_")
    files = lay_out_mp_rank(made, wanted, tag, mp, bf16=bf16)
    carried = {key: _below(tag, tensor) for key, tensor in there.items()}
    files = replace(files, carried={**files.carried, **carried})
    if len(columns) > 1:
        files = _apart(files, mp, column)
    return _Laid(blueprint, wanted, files)


def lay_out_mp_rank(
    blueprint: LogicalState, wanted: TargetLayout, tag: str, mp: int, *, bf16: bool
) -> OutputFiles:
    """The files of one model-parallel rank, in the directory `tag`."""
    models, names = [], []
    for rank in range(wanted.ranks):
        zero = f"zero_pp_rank_{rank}_mp_rank_{mp:02d}"
        models.append(f"{tag}/{zero}_model_states.pt")
        names.append(f"{tag}/{'bf16_' if bf16 else ''}{zero}_optim_states.pt")
    if wanted.kind == STAGE_3:
        return lay_out_zero3(blueprint, wanted, models, names)
    return lay_out_zero12(blueprint, wanted, f"{tag}/mp_rank_{mp:02d}_model_states.pt", names)


def unlisted_keys(tensors: Iterable[Key]) -> frozenset[Key]:
    """Those that the reader does not name, because they repeat others."""
    return frozenset(key for key in tensors if key.role == COPY or REPEATED in key.role)


def data_parallel(source: Checkpoint, world_size: int) -> int:
    """How many of `world_size` ranks share the vectors of each model-parallel rank.

    Raises:
        BadRequest: the model-parallel ranks cannot stay as they are.
    """
    count = len(source.origin.details[COLUMNS])
    if world_size < 1:
        raise BadRequest(f"a checkpoint is laid out for at least 1 rank, not {world_size}")
    if world_size % count:
        raise BadRequest(
            f"{source.root} has {count} model-parallel ranks (pipeline and tensor), which stay as "
            f"they are, and --world-size {world_size} is not a multiple of {count}"
        )
    return world_size // count


def layer_files(source: Checkpoint) -> list[str]:
    """The files of a pipeline's layers and of experts, which no number of ranks changes."""
    return sorted(name for name in source.files if name.startswith("layer_"))


def _lies_in(tensor: Tensor, files: Sequence[str]) -> bool:
    return bool(files) and all(chunk.file in files for chunk in tensor.chunks)


def _below(tag: str, tensor: Tensor) -> Tensor:
    chunks = [replace(chunk, file=f"{tag}/{chunk.file}") for chunk in tensor.chunks]
    return replace(tensor, chunks=chunks)


def _apart(files: OutputFiles, mp: int, column: MpRank) -> OutputFiles:
    """The files of one of several model-parallel ranks, whose tensors have names of their own."""
    sources = {key: files.sources.get(key) or column.tensors[key] for key in files.tensors}
    return OutputFiles(
        files.plans,
        *(
            {_of_rank(mp, key): tensor for key, tensor in tensors.items()}
            for tensors in (files.tensors, files.carried, sources)
        ),
    )


def _spelled(columns: Sequence[MpRank]) -> dict[Key, tuple[Key, ...]]:
    """Each tensor's keys in the output, which keeps several model-parallel ranks apart."""
    found: dict[Key, tuple[Key, ...]] = {}
    for mp, column in enumerate(columns if len(columns) > 1 else ()):
        for key in column.tensors:
            found[key] = (*found.get(key, ()), _of_rank(mp, key))
    return found


def _of_rank(mp: int, key: Key) -> Key:
    return Key(f"mp_rank_{mp:02d}/{key.name}", key.role)


def _compared(found: Checkpoint) -> dict[Key, Tensor]:
    """The tensors of an output of several model-parallel ranks, each rank's apart."""
    return {
        _of_rank(mp, key): tensor
        for mp, column in enumerate(found.origin.details[COLUMNS])
        for key, tensor in column.tensors.items()
    }


def _dropped(source: Checkpoint, wanted: TargetLayout) -> tuple[Dropped, ...]:
    copies = any(key.role == "param16" for key in source.tensors)
    if wanted.kind != STAGE_3 or not copies:
        return ()
    return (Dropped("param16", "stage 3 keeps no 16-bit copies: they are cast from the masters"),)


def is_already_laid_out(source: Checkpoint, world_size: int, settings: ZeroSettings) -> bool:
    """Whether `source` is laid out for `world_size` ranks and with `settings` already.

    Raises:
        BadRequest: settings that contradict one another.
    """
    if source.origin.world_size != world_size or source.origin.details["elastic"]:
        return False
    column: MpRank = source.origin.details[COLUMNS][0]
    if settings == AS_IS:
        return True
    if not column.groups:
        return False
    blueprint = logical_state_of(column, {})
    saved = len(column.shards)
    wanted = target_layout_of(blueprint, settings, saved, saved)
    try:
        return wanted == target_layout_of(blueprint, AS_IS, saved, saved)
    except Unsupported:  # sub-groups that only the settings explain
        return False

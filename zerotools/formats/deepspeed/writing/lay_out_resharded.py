"""Lay out a DeepSpeed checkpoint for another number of ranks or another stage, as DeepSpeed would
save it.

The output is a save directory: the tag with its files, `latest`, and the other files that are next
to the tag. Every model-parallel rank is laid out separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.target import Dropped, FilePlan, Target
from zerotools.formats.deepspeed.change_stage import COPY, change_stage
from zerotools.formats.deepspeed.mp_rank_logical_state import LogicalState, logical_state_of
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import MpShard
from zerotools.formats.deepspeed.partitioning.kept_for_writer import native_of
from zerotools.formats.deepspeed.schema.ds_config import (
    AS_IS,
    ZeroSettings,
    mics_keys,
    zero_optimization,
)
from zerotools.formats.deepspeed.schema.find_tag import run_directory
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3, first_of
from zerotools.formats.deepspeed.schema.tag_file_names import (
    LATEST,
    has_bf16_prefix,
    is_layer_file,
    is_tag_directory,
    model_file,
    optim_file,
)
from zerotools.formats.deepspeed.writing.notes_for_user import notes_on
from zerotools.formats.deepspeed.writing.plan_pt_file import REPEATED, OutputFiles
from zerotools.formats.deepspeed.writing.source_checks import check_masters, check_supported
from zerotools.formats.deepspeed.writing.target_layout import (
    TargetLayout,
    target_layout_of,
    with_config,
)
from zerotools.formats.deepspeed.writing.zero3 import lay_out_zero3
from zerotools.formats.deepspeed.writing.zero12 import lay_out_zero12
from zerotools.io.output.files_without_tensors import carried_file, file_of_bytes, run_sidecars_in
from zerotools.runs.job_checkpoint_file_names import MANIFEST, RECORD


def lay_out(
    source: Checkpoint, destination: Path, *, world_size: int, settings: ZeroSettings = AS_IS
) -> Target:
    """Plan the files of `source`, a result of the DeepSpeed reader, for `world_size` ranks.

    Raises:
        BadRequest: `world_size` is not a multiple of the number of model-parallel or
            expert-parallel ranks, or a setting does not fit the source.
        Unsupported: the checkpoint was saved without ZeRO, stage 3 is combined with model-parallel
            ranks or experts, or the files lack a value that is needed.
        BadFile: the files of the source contradict each other.
    """
    mp_shards = native_of(source).mp_shards
    ranks = data_parallel(source, world_size)
    laid = [_lay_out_one(source, mp_rank, settings, ranks) for mp_rank in range(len(mp_shards))]
    tag, first = source.root.name, laid[0]
    same_ranks = ranks == len(mp_shards[0].optim_states)
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
            stage=first.layout.stage,
            notes=(),
        ),
        files={name: plan.size for name, plan in plans.items()},
        state={},
        model_sidecars={},
        problems=(),
    )
    return Target(
        checkpoint,
        plans,
        notes=(*notes, *notes_on(mp_shards[0], first.source, first.layout, settings)),
        carried={key: tensor for each in laid for key, tensor in each.files.carried.items()},
        sources={key: tensor for each in laid for key, tensor in each.files.sources.items()},
        dropped=_dropped(source, first.layout),
        unlisted=unlisted_keys(checkpoint.tensors),
        target_keys=_target_keys(mp_shards),
        compared=_compared if len(mp_shards) > 1 else None,
    )


@dataclass(frozen=True)
class _Laid:
    """The planned output of one model-parallel rank: the logical state of the source, the layout
    of the target, and the files.
    """

    source: LogicalState
    layout: TargetLayout
    files: OutputFiles


def _lay_out_one(source: Checkpoint, mp_rank: int, settings: ZeroSettings, ranks: int) -> _Laid:
    mp_shards = native_of(source).mp_shards
    mp_shard, tag = mp_shards[mp_rank], source.root.name
    check_supported(source.root, mp_shard, len(mp_shards), settings)
    logical = logical_state_of(mp_shard, _hyperparameters_of(mp_shard, settings))
    layout = target_layout_of(logical, settings, ranks, len(mp_shard.optim_states))
    check_masters(source, mp_rank)
    made = with_config(change_stage(logical, layout.kind, layout.stage), layout)
    layers = layer_files(source)
    there = {key: tensor for key, tensor in made.source_tensors.items() if _lies_in(tensor, layers)}
    made = replace(
        made, source_tensors={k: t for k, t in made.source_tensors.items() if k not in there}
    )
    bf16 = has_bf16_prefix(first_of(mp_shard.optim_states).file.name)
    files = lay_out_mp_rank(made, layout, tag, mp_rank, bf16=bf16)
    carried = {key: _below(tag, tensor) for key, tensor in there.items()}
    files = replace(files, carried={**files.carried, **carried})
    if len(mp_shards) > 1:
        files = _with_rank_in_keys(files, mp_rank, mp_shard)
    return _Laid(logical, layout, files)


def _hyperparameters_of(mp_shard: MpShard, settings: ZeroSettings) -> Mapping[str, Any]:
    """Return the options, from the configuration, for param groups that have no options in their
    files. The result is empty if the files have all options.

    Raises:
        BadRequest: the state is elastic, and no configuration names the optimizer.
    """
    optim = first_of(mp_shard.optim_states)
    if optim.is_rigid:
        return {}
    from zerotools.formats.deepspeed.foreign_param_groups import options_from

    config = settings.ds_config or mp_shard.model.ds_config
    options = options_from(config)
    if options is None:
        raise BadRequest(
            f"{optim.file.path} has elastic optimizer state, which lacks lr, betas and the "
            "like, and its configuration does not have them: pass --ds-config with an Adam, "
            'AdamW or SGD "optimizer" and its "params"'
        )
    return options


def lay_out_mp_rank(
    logical: LogicalState, layout: TargetLayout, tag: str, mp_rank: int, *, bf16: bool
) -> OutputFiles:
    """Return the files of one model-parallel rank, in the directory `tag`."""
    models, names = [], []
    for rank in range(layout.dp_size):
        models.append(f"{tag}/{model_file(mp_rank, rank)}")
        names.append(f"{tag}/{optim_file(mp_rank, rank, bf16=bf16)}")
    if layout.kind == STAGE_3:
        return lay_out_zero3(logical, layout, models, names)
    return lay_out_zero12(logical, layout, f"{tag}/{model_file(mp_rank)}", names)


def unlisted_keys(tensors: Iterable[Key]) -> frozenset[Key]:
    """Return the keys of tensors in the output that the reader does not list, because they repeat
    other tensors.
    """
    return frozenset(key for key in tensors if key.role == COPY or REPEATED in key.role)


def data_parallel(source: Checkpoint, world_size: int) -> int:
    """Return the number of data-parallel ranks among `world_size` ranks. These are the ranks that
    share the flat buffers of one model-parallel rank.

    Raises:
        BadRequest: `world_size` is not a multiple of the number of model-parallel ranks.
    """
    count = len(native_of(source).mp_shards)
    if world_size < 1:
        raise BadRequest(
            f"--world-size is {world_size}, but a checkpoint is written for at least 1 rank; pass "
            "the number of ranks"
        )
    if world_size % count:
        raise BadRequest(
            f"{source.root} has {count} model-parallel ranks (pipeline and tensor), and "
            "zerotools does not change their number: --world-size must be a multiple of "
            f"{count}, not {world_size}"
        )
    return world_size // count


def layer_files(source: Checkpoint) -> list[str]:
    """Return the names of the layer files and expert files, which are the same for every world
    size.
    """
    return sorted(name for name in source.files if is_layer_file(name))


def _lies_in(tensor: Tensor, files: Sequence[str]) -> bool:
    return bool(files) and all(chunk.file in files for chunk in tensor.chunks)


def _below(tag: str, tensor: Tensor) -> Tensor:
    chunks = [replace(chunk, file=f"{tag}/{chunk.file}") for chunk in tensor.chunks]
    return replace(tensor, chunks=chunks)


def _with_rank_in_keys(files: OutputFiles, mp_rank: int, mp_shard: MpShard) -> OutputFiles:
    """Return the files of model-parallel rank `mp_rank`, with the number of this rank added to the
    keys of all tensors.

    Tensors of several model-parallel ranks have the same name, and the output contains all of them.
    """
    sources = {key: files.sources.get(key) or mp_shard.tensors[key] for key in files.tensors}
    return OutputFiles(
        files.plans,
        *(
            {_of_rank(mp_rank, key): tensor for key, tensor in tensors.items()}
            for tensors in (files.tensors, files.carried, sources)
        ),
    )


def _target_keys(mp_shards: Sequence[MpShard]) -> dict[Key, tuple[Key, ...]]:
    """Return, for each tensor of the source, its keys in the output: one key for each
    model-parallel rank that has the tensor.

    The result is empty if there is only one model-parallel rank.
    """
    found: dict[Key, tuple[Key, ...]] = {}
    for mp_rank, mp_shard in enumerate(mp_shards if len(mp_shards) > 1 else ()):
        for key in mp_shard.tensors:
            found[key] = (*found.get(key, ()), _of_rank(mp_rank, key))
    return found


def _of_rank(mp_rank: int, key: Key) -> Key:
    return Key(f"mp_rank_{mp_rank:02d}/{key.name}", key.role)


def _compared(found: Checkpoint) -> dict[Key, Tensor]:
    """Return the tensors that the reader finds in an output of several model-parallel ranks. Each
    key contains the number of the tensor's rank.
    """
    return {
        _of_rank(mp_rank, key): tensor
        for mp_rank, mp_shard in enumerate(native_of(found).mp_shards)
        for key, tensor in mp_shard.tensors.items()
    }


def _dropped(source: Checkpoint, layout: TargetLayout) -> tuple[Dropped, ...]:
    copies = any(key.role == "param16" for key in source.tensors)
    if layout.kind != STAGE_3 or not copies:
        return ()
    return (Dropped("param16", "stage 3 keeps no 16-bit copies: they are cast from the masters"),)


def is_already_laid_out(source: Checkpoint, world_size: int, settings: ZeroSettings) -> bool:
    """Return whether `source` already has the files that `world_size` ranks with `settings` would
    save.

    Raises:
        BadRequest: two settings contradict each other.
    """
    if source.origin.world_size != world_size or native_of(source).is_elastic:
        return False
    mp_shard = native_of(source).mp_shards[0]
    if mics_keys(zero_optimization(mp_shard.model.ds_config)):
        return False
    if settings == AS_IS:
        return True
    if not mp_shard.groups:
        return False
    logical = logical_state_of(mp_shard, {})
    saved = len(mp_shard.optim_states)
    layout = target_layout_of(logical, settings, saved, saved)
    try:
        return layout == target_layout_of(logical, AS_IS, saved, saved)
    except Unsupported:  # the sub-groups match only `settings`
        return False


def as_job(source: Checkpoint, target: Target, world_size: int) -> Target:
    """Return `target` completed with a job record and a manifest, if `source` is the checkpoint of
    a zerotools job; else `target` unchanged.

    The random number states of ranks that do not exist in the output are left out.

    Raises:
        BadFile: the record is damaged.
    """
    if not {RECORD, MANIFEST} <= target.files.keys():
        return target
    # Here, because few checkpoints are of a job.
    from zerotools.runs.find_job_checkpoints import read_record, rng_name
    from zerotools.runs.training_record import record_to_json

    before = read_record(source.root.parent)
    same = before.world_size == world_size
    record = before if same else before.resharded(world_size)
    stage = target.checkpoint.origin.stage
    record = replace(record, stage=record.stage if stage is None else stage)
    gone = {MANIFEST, *(rng_name(rank) for rank in range(before.world_size) if not same)}
    files = {name: plan for name, plan in target.files.items() if name not in gone}
    files[RECORD] = file_of_bytes(record_to_json(record).encode())
    sizes = {name: plan.size for name, plan in files.items()}
    notes = target.notes
    if not same:
        notes = (
            *notes,
            f"the random number state of {count_text(before.world_size, 'rank')} is not carried "
            f"over to {count_text(world_size, 'rank')}: random numbers are seeded again from seed "
            "and step",
        )
    return replace(
        target,
        files=files,
        checkpoint=replace(target.checkpoint, files=sizes),
        notes=notes,
        with_manifest=True,
    )


def run_sidecars(
    source: Checkpoint, *, same_ranks: bool
) -> tuple[dict[str, FilePlan], tuple[str, ...]]:
    """Return the plans for the files next to the tag directory, including a `latest` that names
    the tag, and notes for the user on them.

    The files are copied so that the output can replace the source.
    """

    def is_own(path: Path) -> bool:
        tags = path == source.root or (path.is_dir() and is_tag_directory(path))
        return tags or path.name in LATEST

    directory, tag = run_directory(source), source.root.name
    plans: dict[str, FilePlan] = {}
    notes: tuple[str, ...] = ()
    if directory is not None:
        plans, notes = run_sidecars_in(directory, is_own, same_ranks=same_ranks)
    plans[LATEST[0]] = file_of_bytes(tag.encode())
    return plans, notes

"""Select the files of a tag directory that belong to one save.

A save into an existing tag overwrites files with the same names, but keeps all other files of an
older save:

    new save       files that can remain from an older save
    stage 3        the model file of stage 2
    fp16           the optimizer files of bf16
    without ZeRO   all optimizer files

The optimizer files determine the model file. Optimizer files of stage 3 belong to
`zero_pp_rank_R_mp_rank_DD_model_states.pt`, and optimizer files of other stages belong to
`mp_rank_DD_model_states.pt`. A model file that was saved without ZeRO has no optimizer files.

Source: DeepSpeed `runtime/engine.py`: `_get_ckpt_name`, `_get_zero_ckpt_name`, `save_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from zerotools.core.checkpoint import Problem
from zerotools.core.errors import BadFile, ZerotoolsError
from zerotools.formats.deepspeed.partitioning.flat_groups import is_round_robin
from zerotools.formats.deepspeed.reading.check_same_save import could_be_of, step_of
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.ds_config import STAGE, zero_optimization
from zerotools.formats.deepspeed.schema.find_tag import open_tag
from zerotools.formats.deepspeed.schema.model_states import ModelStates, parse_model
from zerotools.formats.deepspeed.schema.optim_states import (
    BF16_OPTIMIZER,
    STAGE_3,
    OptimStates,
    parse_optim_states,
)
from zerotools.formats.deepspeed.schema.state_dict_keys import numel_of, slice_mappings, start_of
from zerotools.formats.deepspeed.schema.tag_file_names import (
    TagListing,
    has_bf16_prefix,
    is_rank_file,
    model_file,
)
from zerotools.formats.deepspeed.schema.typed_fields import Fields
from zerotools.io.files.tolerated_damage import (
    is_tolerated,
    raise_or_record,
    record_lost_unnamed,
    stand_in,
)
from zerotools.io.torchzip.pt_file import TorchFile


@dataclass(frozen=True)
class SaveFiles:
    """The files of one save on one model-parallel rank.

    Attributes:
        model: the only model file, or, at stage 3, the model file of the lowest data-parallel rank.
        optim_files: data-parallel rank -> name of its optimizer file.
        lowest: the first optimizer file, in rank order, that can be read.
    """

    model: ModelStates
    optim_files: Mapping[int, str] = field(default_factory=dict)
    lowest: OptimStates | None = None

    @property
    def stage(self) -> int:
        """The ZeRO stage of the save; 1 for the files of BF16_Optimizer, which do not record a
        stage.
        """
        if self.lowest is not None:
            return 1 if self.lowest.stage is None else self.lowest.stage
        return 0 if is_without_zero(self.model) else stage_of(self.model)

    def __str__(self) -> str:
        step = self.model.global_steps
        first = (
            self.optim_files[min(self.optim_files)] if self.optim_files else "no optimizer files"
        )
        return f"stage {self.stage} at step {step} ({self.model.file.name}, {first})"


def save_of(
    directory: Path, listing: TagListing, mp_rank: int, problems: list[Problem]
) -> SaveFiles:
    """Return the files of model-parallel rank `mp_rank` that belong to one save.

    Each file of another save is added to `problems`.

    Raises:
        BadFile: the files do not form a save, or they form several saves.
    """
    shared = listing.models.get((mp_rank, None))
    rank_files = {
        dp: name
        for (rank, dp), name in listing.models.items()
        if rank == mp_rank and dp is not None
    }
    families = list(_families(listing, mp_rank))
    found = list(_saves(directory, mp_rank, shared, rank_files, families))
    if len(found) > 1:
        found = [save for save in found if not _contradicts_itself(save)] or found
    if len(found) != 1:
        raise BadFile(_none_or_several(directory, mp_rank, found, families))
    save = found[0]
    own = {save.model.file.name, *save.optim_files.values()}
    if save.model.file.name in rank_files.values():
        own |= set(rank_files.values())
    every = [shared, *rank_files.values(), *(name for names in families for name in names.values())]
    for name in every:
        if name is not None and name not in own:
            problems.append(
                Problem(
                    f"{directory / name} belongs to another save under this tag; zerotools reads "
                    f"the save of stage {save.stage}, with {save.model.file.name}",
                    name,
                )
            )
    return save


def _families(listing: TagListing, mp_rank: int) -> Iterator[dict[int, str]]:
    """Yield {data-parallel rank: optimizer file} for each spelling of the file names, such as with
    and without the prefix of bf16 runs.
    """
    for spelling in sorted({spelling for _, _, spelling in listing.optim_files}):
        names = {
            dp: name
            for (rank, dp, spelt), name in sorted(listing.optim_files.items())
            if (rank, spelt) == (mp_rank, spelling)
        }
        if names:
            yield names


def _saves(
    directory: Path,
    mp_rank: int,
    shared: str | None,
    rank_files: Mapping[int, str],
    families: list[dict[int, str]],
) -> Iterator[SaveFiles]:
    """Yield every possible save in the tag directory: a model file, and optimizer files that may
    belong to it.

    A model file without optimizer files is included if its run did not use ZeRO, or if the tag has
    no optimizer files.
    """
    whole = _shared_model(directory, mp_rank, shared, families) if shared is not None else None
    first = _first_model(directory, rank_files) if rank_files else None
    complete, readable = [], 0
    for names in families:
        optim = _first_readable(directory, names)
        if optim is None:
            continue
        readable += 1
        model = first if optim.kind == STAGE_3 else whole
        if model is not None and _was_trained_with(model, optim):
            complete.append(SaveFiles(model, names, optim))
    if whole is not None and is_without_zero(whole) and all(s.model is not whole for s in complete):
        complete.append(SaveFiles(whole))
    if complete:
        yield from complete
        return
    if not families or (is_tolerated() and not readable):
        yield from (SaveFiles(model) for model in (whole, first) if model is not None)


def _shared_model(
    directory: Path, mp_rank: int, shared: str, families: list[dict[int, str]]
) -> ModelStates | None:
    """Return the model file that all data-parallel ranks share. If it is lost and damage is
    tolerated, return its substitute.

    Return None if the optimizer files cannot belong to such a model file.

    Raises:
        BadFile: the model file is missing or damaged.
    """
    try:
        return parse_model(TorchFile.open(directory, shared))
    except BadFile as error:
        if not is_tolerated():
            raise
        is_there = (directory / shared).exists()
        fault = error if is_there else BadFile(f"{directory / shared} is missing")
        optim = _first_readable(directory, families[0]) if families else None
        if optim is not None and optim.kind == STAGE_3:
            return None
        return substitute_model(directory, shared, mp_rank, optim, fault)


def _first_model(directory: Path, rank_files: Mapping[int, str]) -> ModelStates:
    """Return the model file of the first rank.

    If this file is lost and damage is tolerated, return the file of the next rank, which has the
    same values except for tied names.

    Raises:
        BadFile: the file is damaged and damage is not tolerated, or all files are damaged.
    """
    errors = []
    for rank in sorted(rank_files):
        try:
            return parse_model(TorchFile.open(directory, rank_files[rank]))
        except BadFile as error:
            raise_or_record(directory / rank_files[rank], error)
            errors.append(error)
            if not rank:
                record_lost_unnamed(directory / rank_files[rank])
    raise errors[0]


def _first_readable(directory: Path, names: Mapping[int, str]) -> OptimStates | None:
    """Return the first optimizer file that can be read, in the order of ranks. Damaged files
    before it are reported later.

    Return None if all files are lost and damage is tolerated.

    Raises:
        BadFile: no file can be read; the message says why the first file cannot.
    """
    errors = []
    for rank in sorted(names):
        try:
            return parse_optim_states(TorchFile.open(directory, names[rank]))
        except BadFile as error:
            errors.append(error)
    raise_or_record(directory / names[min(names)], errors[0])
    return None


def is_without_zero(model: ModelStates) -> bool:
    """Return whether the run that saved a model file did not use ZeRO.

    Such a model file lists no parameters of flat buffers. It contains the whole optimizer, or a
    configuration with stage 0.
    """
    if model.groups is not None or is_rank_file(model.file.name):
        return False
    # A file without a configuration is from a version that listed no parameters anywhere.
    return model.optimizer is not None or (model.ds_config is not None and not stage_of(model))


def stage_of(model: ModelStates) -> int:
    """Return the ZeRO stage in the run's configuration, or 0 if the configuration has no stage."""
    stage = zero_optimization(model.ds_config).get(STAGE)
    return stage if isinstance(stage, int) else 0


def _was_trained_with(model: ModelStates, optim: OptimStates) -> bool:
    if model.groups is not None or optim.groups is not None:
        return True
    if optim.kind == BF16_OPTIMIZER:
        # Pipelines without ZeRO, which store the state twice, and old versions have such files.
        return model.module is None or model.optimizer is None
    return not is_without_zero(model)


def _contradicts_itself(save: SaveFiles) -> bool:
    """Return whether the model file and the optimizer files of a save contradict each other in the
    step, the dtype of the weights or the number of ranks.
    """
    if save.lowest is None:
        return False
    if not could_be_of(step_of(save.lowest), save.model):
        return True
    types = {stored.dtype.name for stored in (save.model.module or {}).values()}
    if types and (bf16_optim_states(save) != ("bfloat16" in types)):
        return True
    counts = save.lowest.partition_count
    sizes = [counts] if isinstance(counts, int) else [n for n in counts or () if type(n) is int]
    return bool(sizes) and save.model.data_parallel_size not in (None, max(sizes))


def bf16_optim_states(save: SaveFiles) -> bool:
    """Return whether an optimizer file of the save has the prefix of a bf16 run in its name."""
    return any(has_bf16_prefix(name) for name in save.optim_files.values())


def _none_or_several(
    directory: Path, mp_rank: int, found: list[SaveFiles], families: list[dict[int, str]]
) -> str:
    if found:
        return (
            f"{directory} holds {len(found)} saves of model-parallel rank {mp_rank} under one tag: "
            f"{'; '.join(map(str, found))}; move the files of all but one elsewhere"
        )
    first = directory / families[0][min(families[0])]
    kind = parse_optim_states(TorchFile.open(directory, first.name)).kind
    model = model_file(mp_rank, 0 if kind == STAGE_3 else None)
    return (
        f"{directory / model} is missing, but {first} needs it, and the other model files are from "
        "another save; copy or download it again"
    )


_OF_THE_RUN = (
    state_dict_keys.BUFFER_NAMES, state_dict_keys.PARAM_SHAPES, state_dict_keys.SHARED_PARAMS,
    state_dict_keys.DP_WORLD_SIZE, state_dict_keys.MP_WORLD_SIZE, state_dict_keys.DS_CONFIG,
    state_dict_keys.DS_VERSION, state_dict_keys.NUM_EXPERTS, state_dict_keys.TENSOR_PARALLEL_INFO,
)  # fmt: skip
"""The keys of a model file that have the same value in every checkpoint of a run."""
ADVICE = (
    "only this file has the names and shapes of the parameters: copy or download it again, or "
    "name another checkpoint of the same run with --fill-from"
)


def with_lost_models(listing: TagListing) -> TagListing:
    """Return the listing completed with the names of lost model files. The optimizer files of
    stages 1 and 2 show which model files must exist.
    """
    lost = {mp_rank for mp_rank, _, _ in listing.optim_files} - {rank for rank, _ in listing.models}
    models: dict[tuple[int, int | None], str] = {
        (rank, None): model_file(rank) for rank in sorted(lost)
    }
    return replace(listing, models={**listing.models, **models})


def substitute_model(
    directory: Path, name: str, mp_rank: int, optim: OptimStates | None, error: BadFile
) -> ModelStates:
    """Return a substitute for the model file `name`, which cannot be read because of `error`: the
    model file of another checkpoint of the run.

    The optimizer files of stages 1 and 2 and of BF16_Optimizer have the masters of every parameter
    in flat buffers. Only the model file lists the names and shapes of the parameters
    (`param_shapes`), and these lists are equal in every checkpoint of a run. So if the model file
    is lost and the user names another checkpoint of the run, the lists of that checkpoint are used,
    but none of its tensors. The partitions must have the sizes that the lists predict. If the
    optimizer files have parameter names too (`param_slice_mappings`), these must be in the order of
    the lists. `optim` is one of the optimizer files.

    Raises:
        BadFile: there is no substitute (the message then has the text of `error`), or the
            substitute does not fit the optimizer file.
    """
    other = stand_in()
    model = None if other is None or optim is None else _model_of(other, mp_rank)
    if model is None or optim is None or any(_misplaced(model, optim)):
        raise BadFile(f"{error}; {ADVICE}") from None
    path = directory / name
    said = f"{error}; names and shapes are taken from {model.file.path}"
    raise_or_record(path, BadFile(said))
    size = path.stat().st_size if path.is_file() else 0
    behind = {stored.storage.key: size for stored in (model.module or {}).values()}
    tree = {key: model.fields.tree[key] for key in _OF_THE_RUN if key in model.fields}
    return replace(
        model,
        file=TorchFile(directory, name, size, tree, {}, behind),
        fields=Fields(path, tree),
        fragments={},
        frozen_shapes={},
    )


def _model_of(path: Path, mp_rank: int) -> ModelStates | None:
    """Return the model file of another checkpoint, at `path`; None if that checkpoint has no model
    file that lists parameters.
    """
    try:
        found, listing = open_tag(path, None)
        name = listing.models.get((mp_rank, None))
        model = None if name is None else parse_model(TorchFile.open(found.directory, name))
    except (ZerotoolsError, OSError):
        return None
    return None if model is None or model.groups is None else model


def _misplaced(model: ModelStates, optim: OptimStates) -> Iterator[str]:
    """Yield one parameter name for each group in which the optimizer file contradicts the parameter
    list of `model`, the substitute for a lost model file.

    The names that the optimizer file has for a group must be consecutive in the list of this group.
    With round robin order, DeepSpeed also writes names that are not in the rank's partition. Then
    every name must only occur in the list.
    """
    is_ordered = not is_round_robin(model, optim)
    for number, mapping in enumerate(slice_mappings(optim.fields.tree)):
        groups = model.groups or []
        names = [*groups[number]] if number < len(groups) else []
        filled = [(start_of(at), str(name)) for name, at in mapping.items() if numel_of(at)]
        own = [name for _, name in sorted(filled)]
        first = names.index(own[0]) if own and own[0] in names else 0
        if (names[first : first + len(own)] != own) if is_ordered else set(own) - set(names):
            yield own[0]

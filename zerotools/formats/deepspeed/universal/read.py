"""DeepSpeed universal checkpoints: a directory per parameter, made by `ds_to_universal`.

    X/mp_rank_DD_model_states.pt (or one per rank of stage 3)     copied from the source
    X/zero/<parameter>/{fp32,exp_avg,exp_avg_sq,step}.pt
    X/zero/optimizer_state.pt

From stages 1 and 2, each file is a dict: `param` is the whole tensor in its full shape. From stage
3, it is only the flattened tensor; the model file has its shape, and `step` is in
`optimizer_state.pt`. Buffers, frozen weights and tied names have directories too, with values cast
to fp32: they are read from the model file instead, which keeps their type. `lay_out_universal`
writes the files of both, and those of stages 1 and 2 count.

Source: DeepSpeed `checkpoint/ds_to_universal.py`.
"""

from __future__ import annotations

from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key, Origin, Problem, Tensor
from zerotools.formats.deepspeed.partitioning.mp_rank import MpShard, read_mp_rank, whole_tensors
from zerotools.formats.deepspeed.partitioning.whole_parameters import uses_muon
from zerotools.formats.deepspeed.reading.consistency import misnamed_files
from zerotools.formats.deepspeed.reading.mp_rank_files import stage_3_models
from zerotools.formats.deepspeed.schema.ds_config import computed_type
from zerotools.formats.deepspeed.schema.model_states import ModelStates, Shapes, parse_model
from zerotools.formats.deepspeed.schema.signs import ZERO
from zerotools.formats.deepspeed.schema.tag import TagDirectory, open_tag
from zerotools.formats.deepspeed.universal.native import UniversalNative
from zerotools.formats.deepspeed.universal.optimizer_state import (
    OPTIMIZER_STATE,
    misplaced,
    parse_state,
)
from zerotools.formats.deepspeed.universal.param_files import (
    emptied,
    lost_state,
    states_of,
    unlisted,
)
from zerotools.io.files.sources import note_source
from zerotools.io.huggingface.model_sidecars import model_sidecars
from zerotools.io.torchzip.pt_file import TorchFile


def read(path: Path, *, tag: str | None = None) -> Checkpoint:
    """Return the universal checkpoint at `path`: a tag directory, or a save directory.

    Raises:
        BadRequest: the path or tag does not exist.
        BadFile: a file is damaged, or disagrees with the model file.
    """
    found_tag, listing = open_tag(path, tag)
    directory = found_tag.directory
    problems: list[Problem] = []
    first = min(listing.models, key=lambda ranks: (ranks[0], -1 if ranks[1] is None else ranks[1]))
    model = parse_model(TorchFile.open(directory, listing.models[first]))
    is_stage_3 = first[1] is not None
    models: list[ModelStates | None] = [model]
    if is_stage_3:
        size = model.data_parallel_size or len(listing.models)
        models = stage_3_models(directory, listing, 0, model, size, problems)
    saved = parse_state(directory, model)
    problems += misplaced(saved, model)
    groups = _whole_groups(model)
    rest = _rest(model, models, groups, is_stage_3=is_stage_3)
    shapes = {name: shape for group in groups for name, shape in group.items()}
    found = dict(saved.numbers()) | dict(states_of(directory, model, shapes, problems))
    muons = {name for group in saved.groups if uses_muon(group.options) for name in group.params}
    found |= dict(lost_state(directory, found, groups, problems, muons))
    problems += unlisted(directory, model, shapes)
    problems += emptied(directory, shapes)
    present = [each for each in models if each is not None]
    problems += misnamed_files(each.file for each in present)
    if saved.file is None:
        problems.append(Problem(f"{directory / OPTIMIZER_STATE} is missing", OPTIMIZER_STATE))
    tensors = {key: value for key, value in found.items() if isinstance(value, Tensor)}
    numbers = {key: value for key, value in found.items() if not isinstance(value, Tensor)}
    names = [*(each.file.name for each in present), *_files_of(directory)]
    return Checkpoint(
        root=directory,
        tensors=tensors | rest,
        origin=_origin(path, found_tag, model, is_stage_3=is_stage_3),
        native=UniversalNative(model, saved, numbers),
        aliases={**model.stacked_experts.routers(model.module or {}), **model.shared},
        files={name: note_source(directory / name) for name in names},
        model_sidecars=model_sidecars(directory.parent),
        problems=problems,
    )


def _whole_groups(model: ModelStates) -> list[Shapes]:
    """Return `param_shapes`; of AutoEP's experts it has the shapes on one rank, and files those of
    all."""
    experts = model.stacked_experts
    return [
        {name: experts.whole_shape(name, shape) for name, shape in group.items()}
        for group in model.groups or ()
    ]


def _rest(
    model: ModelStates,
    models: list[ModelStates | None],
    groups: list[Shapes],
    *,
    is_stage_3: bool,
) -> dict[Key, Tensor]:
    """Return buffers and frozen weights, and at stages 1 and 2 the 16-bit copies, from the model
    file."""
    mp_shard: MpShard = read_mp_rank(models, [], whole_tensors(model), is_zero3=is_stage_3)
    trained = {name: shape for group in groups for name, shape in group.items()}
    rest = {}
    for key, tensor in mp_shard.tensors.items():
        if key.name not in trained:
            rest[key] = tensor
        elif tensor.dtype.bits == 16 and tensor.shape == trained[key.name]:
            rest[Key(key.name, "param16")] = tensor
    return rest


def _files_of(directory: Path) -> list[str]:
    zero = directory / ZERO
    return sorted(file.relative_to(directory).as_posix() for file in zero.glob("**/*.pt"))


def _origin(path: Path, tag: TagDirectory, model: ModelStates, *, is_stage_3: bool) -> Origin:
    types = [
        stored.dtype
        for name, stored in (model.module or {}).items()
        if stored.dtype.is_float and name not in (model.buffer_names or ())
    ]
    return Origin(
        "universal",
        path,
        framework_version=model.version,
        world_size=None,
        stage=3 if is_stage_3 else None,
        step=model.global_steps,
        tag=tag.name,
        other_tags=tag.others,
        notes=tag.notes,
        precision=computed_type(types[0] if types else None),
    )

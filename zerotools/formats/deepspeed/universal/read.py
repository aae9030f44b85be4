"""Read a DeepSpeed universal checkpoint: a directory per parameter, made by `ds_to_universal`.

    X/mp_rank_DD_model_states.pt (or one per rank of stage 3)     copied from the source
    X/zero/<parameter>/{fp32,exp_avg,exp_avg_sq,step}.pt
    X/zero/optimizer_state.pt

If the run used stage 1 or 2, each file is a dict, and its `param` is the whole tensor in its full
shape. If the run used stage 3, each file is the flattened tensor alone; the model file has the
shape, and `step` is in `optimizer_state.pt`. Buffers, frozen weights and tied names have
directories too, with values cast to fp32. They are read from the model file instead, because it
keeps their dtype. An output of `lay_out_universal` may have model files for stages 1 and 2 and for
stage 3; then this reader uses the model file of stages 1 and 2.

A lost file becomes a hole, which no output accepts, and a problem that names the file. The model
file lists the trained parameters; if it is lost, they are found by their directories.

Source: DeepSpeed `checkpoint/ds_to_universal.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from math import prod
from pathlib import Path

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Problem, Tensor
from zerotools.core.dtypes import FLOAT32, DType
from zerotools.core.errors import BadFile
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import (
    MpShard,
    read_mp_rank,
    whole_tensors,
)
from zerotools.formats.deepspeed.partitioning.flat_layout import uses_muon
from zerotools.formats.deepspeed.reading.check_same_save import misnamed_files, saved_as
from zerotools.formats.deepspeed.reading.load_mp_rank import stage_3_models
from zerotools.formats.deepspeed.schema.ds_config import computed_type
from zerotools.formats.deepspeed.schema.find_tag import TagDirectory, open_tag
from zerotools.formats.deepspeed.schema.model_states import ModelStates, Shapes, parse_model
from zerotools.formats.deepspeed.schema.tag_file_names import MASTER, ZERO
from zerotools.formats.deepspeed.universal.kept_for_writer import UniversalNative, native_of
from zerotools.formats.deepspeed.universal.optimizer_state import (
    OPTIMIZER_STATE,
    misplaced_values,
    parse_state,
)
from zerotools.io.files.source_stamps import record_source_path
from zerotools.io.files.tolerated_damage import raise_or_record
from zerotools.io.huggingface.model_sidecars import model_sidecars
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tree_tensors import as_tensor


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
    problems += misplaced_values(saved, model)
    groups = _whole_groups(model)
    rest = _rest(model, models, groups, is_stage_3=is_stage_3)
    shapes = {name: shape for group in groups for name, shape in group.items()}
    found = dict(saved.numbers()) | dict(states_of(directory, model, shapes, problems))
    muons = {name for group in saved.groups if uses_muon(group.options) for name in group.params}
    found |= dict(lost_state(directory, found, groups, problems, muons))
    problems += unlisted_directories(directory, model, shapes)
    problems += empty_directories(directory, shapes)
    present = [each for each in models if each is not None]
    problems += misnamed_files(each.file for each in present)
    if saved.file is None:
        problems.append(
            Problem(
                f"{directory / OPTIMIZER_STATE} is missing; copy or download it again",
                OPTIMIZER_STATE,
            )
        )
    tensors = {key: value for key, value in found.items() if isinstance(value, Tensor)}
    numbers = {key: value for key, value in found.items() if not isinstance(value, Tensor)}
    names = [*(each.file.name for each in present), *_files_of(directory)]
    return Checkpoint(
        root=directory,
        tensors=tensors | rest,
        origin=_origin(path, found_tag, model, is_stage_3=is_stage_3),
        native=UniversalNative(model, saved, numbers),
        aliases={**model.stacked_experts.routers(model.module or {}), **model.shared},
        files={name: record_source_path(directory / name) for name in names},
        model_sidecars=model_sidecars(directory.parent),
        problems=problems,
    )


def _whole_groups(model: ModelStates) -> list[Shapes]:
    """Return `param_shapes`. The file has the shape on one rank for AutoEP's experts; they get
    their shape over all ranks.
    """
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
    """Return the tensors that only the model file holds: buffers, frozen weights and, at stages 1
    and 2, the 16-bit copies.
    """
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


_KINDS = ("fp32", "exp_avg", "exp_avg_sq", "step")


def states_of(
    directory: Path, model: ModelStates, shapes: Shapes, problems: list[Problem]
) -> Iterator[tuple[Key, Tensor | int | float]]:
    """Yield (key, value) for each tensor and each plain number in the directories of the
    parameters. A lost master is yielded as a hole.
    """
    # In a tensor-parallel run, the model file has the shapes on one rank, not the whole shapes.
    is_whole = model.model_parallel_size in (None, 1)
    for name, shape in shapes.items():
        folder = directory / ZERO / name
        if not (folder / MASTER).is_file():
            problems.append(
                Problem(
                    f"{folder / MASTER} is missing; copy or download it again",
                    f"{ZERO}/{name}/{MASTER}",
                    name,
                )
            )
            yield Key(name, "param"), Tensor(FLOAT32, shape, ())
        for file in sorted(folder.glob("*.pt")):
            role = "param" if file.name == MASTER else file.stem
            relative = f"{ZERO}/{name}/{file.name}"
            try:
                opened = TorchFile.open(directory, relative)
            except BadFile as error:
                raise_or_record(directory / relative, error)
                if file.name == MASTER:
                    yield Key(name, role), Tensor(FLOAT32, shape, ())
                continue  # `lost_state` finds other lost state
            problems += _swapped(opened)
            value = _value(opened, shape, role)
            if is_whole and role != "step" and isinstance(value, Tensor) and value.shape != shape:
                raise BadFile(
                    f"{opened.path} has the shape {value.shape}, but the model file gives {name} "
                    f"the shape {shape}; take another checkpoint"
                )
            yield Key(name, role), value


def _swapped(file: TorchFile) -> Iterator[Problem]:
    """Yield a problem if a file contains a kind of state that its name contradicts, for example
    `exp_avg` in exp_avg_sq.pt.
    """
    saved = saved_as(file)
    if saved in _KINDS and saved != file.path.stem:
        yield Problem(
            f"{file.path} was saved as {saved}.pt; put the right file there",
            file.name,
            prevents_output=True,
        )


def lost_state(
    directory: Path,
    found: Mapping[Key, Tensor | int | float],
    groups: list[Shapes],
    problems: list[Problem],
    muons: Set[str] = frozenset(),
) -> Iterator[tuple[Key, Tensor]]:
    """Yield (key, hole) for each role of optimizer state that a parameter lacks although other
    parameters have this role.

    If no parameter of a group has any state, the group never made a step, and nothing is lost.
    `muons` are the parameters that Muon updates; their state has other roles.
    """
    of_muon = {key: value for key, value in found.items() if key.name in muons}
    of_others = {key: value for key, value in found.items() if key.name not in muons}
    both = (_kinds(of_others), _kinds(of_muon))
    for group in groups:
        kinds = both[any(name in muons for name in group)]
        if not any(Key(name, role) in found for name in group for role in kinds):
            continue
        for name, shape in group.items():
            for role, dtype in kinds.items():
                if Key(name, role) not in found and 0 not in shape:
                    file = f"{ZERO}/{name}/{role}.pt"
                    problems.append(
                        Problem(
                            f"{directory / file} is missing, but other parameters have this file; "
                            "copy or download it again",
                            file,
                            name,
                        )
                    )
                    yield Key(name, role), Tensor(dtype, () if role == "step" else shape, ())


def _kinds(found: Mapping[Key, Tensor | int | float]) -> dict[str, DType]:
    """Return the dtype of each role of optimizer state that at least one parameter has."""
    kinds: dict[str, DType] = {}
    for key, value in found.items():
        if key.role != "param":
            kinds.setdefault(key.role, value.dtype if isinstance(value, Tensor) else FLOAT32)
    return kinds


def unlisted_directories(directory: Path, model: ModelStates, shapes: Shapes) -> Iterator[Problem]:
    """Yield a problem for each directory of a parameter that the model file does not list as
    trained.
    """
    known = {
        *(model.module or ()),
        *(model.buffer_names or ()),
        *model.frozen_shapes,
        *model.shared,
    }
    for folder in sorted(path for path in (directory / ZERO).iterdir() if path.is_dir()):
        files = {file.stem for file in folder.glob("*.pt")}
        if folder.name in shapes or not files:
            continue
        if folder.name not in known or files - {Path(MASTER).stem}:
            yield Problem(
                f"{folder} has the state of a parameter that {model.file.path} does not list as "
                "trained; take a checkpoint with all files from one save",
                f"{ZERO}/{folder.name}/{MASTER}",
                folder.name,
                prevents_output=True,
            )


def empty_directories(directory: Path, shapes: Shapes) -> Iterator[Problem]:
    """Yield a problem for each empty directory of a parameter that was not trained. Nothing is
    lost, because the model file has the values too."""
    for folder in sorted((directory / ZERO).iterdir()):
        if folder.is_dir() and folder.name not in shapes and not any(folder.iterdir()):
            yield Problem(
                f"{folder / MASTER} is missing; copy or download it again",
                f"{ZERO}/{folder.name}/{MASTER}",
            )


def _value(file: TorchFile, shape: tuple[int, ...], role: str) -> Tensor | int | float:
    """Return the content of one file: a tensor in its full shape, or `step` as a number."""
    value = file.tree.get("param") if isinstance(file.tree, Mapping) else file.tree
    stored, scalar = as_tensor(value), role == "step"
    if stored is None and scalar and isinstance(value, int | float):
        return value
    if stored is None:
        raise BadFile(f"{file.path} holds no tensor; copy or download it again")
    if scalar or len(stored.shape) != 1 or stored.shape == shape:
        return file.tensor(stored)
    return _reshaped(file, stored, shape)


def _reshaped(file: TorchFile, stored: StoredTensor, shape: tuple[int, ...]) -> Tensor:
    if prod(shape) != stored.shape[0]:
        raise BadFile(
            f"{file.path} has {stored.shape[0]} elements, but the model file gives it the shape "
            f"{shape}; take another checkpoint"
        )
    strides = row_major_strides(shape)
    chunk = Chunk(Box.whole(shape), file.name, file.first_byte(stored), strides)
    return Tensor(stored.dtype, shape, [chunk])


def check_weights(source: Checkpoint) -> None:
    """Compare the first elements of every master with the weight that was cast from it.

    Raises:
        Unsupported: a master and its weight disagree, so the files are from two saves.
        BadFile: a file is truncated.
    """
    from zerotools.formats.deepspeed.writing.source_checks import compare_weights

    compare_weights(source, weight_pairs(source))


def weight_pairs(source: Checkpoint) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (name, master, weight) for each weight that has a master. A checkpoint of stage 3 has
    placeholders instead of weights, so it has no pairs.
    """
    model = native_of(source).model
    trained = {name for group in model.groups or () for name in group}
    for name, stored in (model.module or {}).items():
        master = source.tensors.get(Key(name, "param"))
        if name in trained and master is not None and master.shape == stored.shape:
            yield name, master, model.file.tensor(stored)

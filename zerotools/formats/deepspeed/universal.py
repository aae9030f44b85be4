"""DeepSpeed universal checkpoints: a directory per parameter, made by `ds_to_universal`.

    X/mp_rank_DD_model_states.pt (or one per rank of stage 3)     copied from the source
    X/zero/<parameter>/{fp32,exp_avg,exp_avg_sq,step}.pt
    X/zero/optimizer_state.pt

From stages 1 and 2, each file is a dict whose `param` is the whole tensor in its own shape. From
stage 3, it is the flattened tensor alone, whose shape is in the model file, and `step` is in
`optimizer_state.pt`. There are directories for buffers, frozen weights and tied names too, with
values cast to fp32: those are read from the model file instead, where they still have their own
type. What `lay_out_universal` writes has the files of both, and those of stages 1 and 2 count.

Source: DeepSpeed `checkpoint/ds_to_universal.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Problem, Tensor
from zerotools.core.dtypes import FLOAT32, DType
from zerotools.core.errors import BadFile
from zerotools.formats.deepspeed.agreement import misnamed, saved_as
from zerotools.formats.deepspeed.column import Column, read_column, whole_tensors
from zerotools.formats.deepspeed.files import Listing
from zerotools.formats.deepspeed.find import Tag
from zerotools.formats.deepspeed.load import stage_3_models
from zerotools.formats.deepspeed.model import ModelStates, Shapes, parse_model
from zerotools.formats.deepspeed.universal_state import (
    OPTIMIZER_STATE,
    ZERO,
    UniversalState,
    misplaced,
    parse_state,
)
from zerotools.io.companions import companions
from zerotools.io.sources import note_source
from zerotools.io.torchzip.tensors import as_tensor
from zerotools.io.torchzip.torchfile import TorchFile
from zerotools.io.torchzip.values import StoredTensor

MASTER = "fp32.pt"
STATE = "universal_state"
_KINDS = ("fp32", "exp_avg", "exp_avg_sq", "step")


def is_universal(directory: Path) -> bool:
    """Whether a tag directory is a universal checkpoint."""
    zero = directory / ZERO
    return zero.is_dir() and any((entry / MASTER).is_file() for entry in zero.iterdir())


def read_universal(path: Path, tag: Tag, listing: Listing) -> Checkpoint:
    """The checkpoint in `tag`, whose model files are listed.

    Raises:
        BadFile: a file is damaged, or disagrees with the model file.
    """
    directory = tag.directory
    problems: list[Problem] = []
    first = min(listing.models, key=lambda ranks: (ranks[0], -1 if ranks[1] is None else ranks[1]))
    model = parse_model(TorchFile.open(directory, listing.models[first]))
    is_stage_3 = first[1] is not None
    models = [model]
    if is_stage_3:
        size = model.data_parallel_size or len(listing.models)
        models = stage_3_models(directory, listing, 0, model, size, problems)
    rest = _rest(models, is_stage_3=is_stage_3)
    saved = parse_state(directory, model)
    problems += misplaced(saved, model)
    shapes = {name: shape for group in model.groups or () for name, shape in group.items()}
    found = dict(saved.numbers()) | dict(_trained(directory, model, shapes, problems))
    found |= dict(_lost_state(directory, found, model.groups or [], problems))
    problems += _unlisted(directory, model, shapes)
    problems += misnamed(each.file for each in models)
    if saved.file is None:
        problems.append(Problem(f"{directory / OPTIMIZER_STATE} is missing", OPTIMIZER_STATE))
    tensors = {key: value for key, value in found.items() if isinstance(value, Tensor)}
    numbers = {key: value for key, value in found.items() if not isinstance(value, Tensor)}
    names = [listing.models[first], *_files_of(directory)]
    return Checkpoint(
        root=directory,
        tensors=tensors | rest,
        origin=_origin(path, tag, model, saved, numbers, is_stage_3=is_stage_3),
        aliases=model.shared,
        state=_state(model, saved),
        files={name: note_source(directory / name) for name in names},
        companions=companions(directory.parent),
        problems=problems,
    )


def _rest(models: list[ModelStates], *, is_stage_3: bool) -> dict[Key, Tensor]:
    """Buffers and frozen weights, and at stages 1 and 2 the 16-bit copies, from the model file."""
    column: Column = read_column(models, [], whole_tensors(models[0]), sliced=is_stage_3)
    trained = {name: shape for group in models[0].groups or () for name, shape in group.items()}
    rest = {}
    for key, tensor in column.tensors.items():
        if key.name not in trained:
            rest[key] = tensor
        elif tensor.dtype.bits == 16 and tensor.shape == trained[key.name]:
            rest[Key(key.name, "param16")] = tensor
    return rest


def _trained(
    directory: Path, model: ModelStates, shapes: Shapes, problems: list[Problem]
) -> Iterator[tuple[Key, Tensor | int | float]]:
    """Tensors, and numbers that are none, by name and role; a lost master is a hole."""
    # Of a tensor-parallel run the model file has the shapes of one rank.
    is_whole = model.model_parallel_size in (None, 1)
    for name, shape in shapes.items():
        folder = directory / ZERO / name
        if not (folder / MASTER).is_file():
            problems.append(
                Problem(f"{folder / MASTER} is missing", f"{ZERO}/{name}/{MASTER}", name)
            )
            yield Key(name, "param"), Tensor(FLOAT32, shape, ())
        for file in sorted(folder.glob("*.pt")):
            role = "param" if file.name == MASTER else file.stem
            relative = f"{ZERO}/{name}/{file.name}"
            opened = TorchFile.open(directory, relative)
            problems += _swapped(opened)
            value = _value(opened, shape, role)
            if is_whole and role != "step" and isinstance(value, Tensor) and value.shape != shape:
                raise BadFile(
                    f"{opened.path} has the shape {value.shape}, and the model file gives {name} "
                    f"the shape {shape}"
                )
            yield Key(name, role), value


def _swapped(file: TorchFile) -> Iterator[Problem]:
    """A file that was saved as one of another kind of state."""
    saved = saved_as(file)
    if saved in _KINDS and saved != file.path.stem:
        yield Problem(
            f"{file.path} was saved as {saved}.pt; put the right one there", file.name, blocks=True
        )


def _lost_state(
    directory: Path,
    found: Mapping[Key, Tensor | int | float],
    groups: list[Shapes],
    problems: list[Problem],
) -> Iterator[tuple[Key, Tensor]]:
    """Holes for the kinds of state that a parameter lacks and others have. Where no parameter of a
    group has any, it was never stepped."""
    kinds: dict[str, DType] = {}
    for key, value in found.items():
        if key.role != "param" and isinstance(value, Tensor):
            kinds.setdefault(key.role, value.dtype)
        elif key.role != "param":
            kinds.setdefault(key.role, FLOAT32)
    for group in groups:
        if not any(Key(name, role) in found for name in group for role in kinds):
            continue
        for name, shape in group.items():
            for role, dtype in kinds.items():
                if Key(name, role) not in found and 0 not in shape:
                    file = f"{ZERO}/{name}/{role}.pt"
                    problems.append(
                        Problem(
                            f"{directory / file} is missing, which other parameters have",
                            file,
                            name,
                        )
                    )
                    yield Key(name, role), Tensor(dtype, () if role == "step" else shape, ())


def _unlisted(directory: Path, model: ModelStates, shapes: Shapes) -> Iterator[Problem]:
    """Directories of parameters that the model file does not know, or not as trained."""
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
                "trained; take a checkpoint whose files are all of one save",
                f"{ZERO}/{folder.name}/{MASTER}",
                folder.name,
                blocks=True,
            )


def _value(file: TorchFile, shape: tuple[int, ...], role: str) -> Tensor | int | float:
    """The tensor of one file, in its own shape or the model file's; or the number of `step`."""
    value = file.tree.get("param") if isinstance(file.tree, Mapping) else file.tree
    stored, scalar = as_tensor(value), role == "step"
    if stored is None and scalar and isinstance(value, int | float):
        return value
    if stored is None:
        raise BadFile(f"{file.path} holds no tensor")
    if scalar or len(stored.shape) != 1 or stored.shape == shape:
        return file.tensor(stored)
    return _reshaped(file, stored, shape)


def _reshaped(file: TorchFile, stored: StoredTensor, shape: tuple[int, ...]) -> Tensor:
    if prod(shape) != stored.shape[0]:
        raise BadFile(
            f"{file.path} has {stored.shape[0]} elements, and the model file gives it the shape "
            f"{shape}"
        )
    strides = row_major_strides(shape)
    chunk = Chunk(Box.whole(shape), file.name, file.first_byte(stored), strides)
    return Tensor(stored.dtype, shape, [chunk])


def _files_of(directory: Path) -> list[str]:
    zero = directory / ZERO
    return sorted(file.relative_to(directory).as_posix() for file in zero.glob("**/*.pt"))


def _origin(
    path: Path,
    tag: Tag,
    model: ModelStates,
    saved: UniversalState,
    numbers: Mapping[Key, int | float],
    *,
    is_stage_3: bool,
) -> Origin:
    precision = {"float16": "fp16", "bfloat16": "bf16"}
    types = [
        precision.get(stored.dtype.name, "fp32")
        for name, stored in (model.module or {}).items()
        if stored.dtype.is_float and name not in (model.buffer_names or ())
    ]
    return Origin(
        "universal",
        path,
        framework_version=model.version,
        world_size=None,
        stage=3 if is_stage_3 else None,
        step=model.fields.maybe("global_steps", int),
        tag=tag.name,
        other_tags=tag.others,
        notes=tag.notes,
        details={
            "precision": types[0] if types else "fp32",
            "saved_world_size": model.data_parallel_size,
            "model": model,
            "numbers": numbers,
            STATE: saved,
        },
    )


def _state(model: ModelStates, saved: UniversalState) -> dict[str, Any]:
    tree = model.fields.tree
    return {
        "lr_scheduler": tree.get("lr_scheduler"),
        "ds_config": tree.get("ds_config"),
        "skipped_steps": tree.get("skipped_steps"),
        "global_samples": tree.get("global_samples"),
        "client_state": model.client_state,
        "param_groups": [{**group.options, "params": list(group.params)} for group in saved.groups],
    }

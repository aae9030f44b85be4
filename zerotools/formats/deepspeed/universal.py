"""DeepSpeed universal checkpoints: a directory per parameter, made by `ds_to_universal`.

    X/mp_rank_DD_model_states.pt (or one per rank of stage 3)     copied from the source
    X/zero/<parameter>/{fp32,exp_avg,exp_avg_sq,step}.pt
    X/zero/optimizer_state.pt

From stages 1 and 2, each file is a dict whose `param` is the whole tensor in its own shape. From
stage 3, it is the flattened tensor alone, whose shape is in the model file. There are directories
for buffers, frozen weights and tied names too, with values cast to fp32: those are read from the
model file instead, where they still have their own type.

Source: DeepSpeed `checkpoint/ds_to_universal.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Problem, Tensor
from zerotools.core.errors import BadFile
from zerotools.formats.deepspeed.column import Column, read_column, whole_tensors
from zerotools.formats.deepspeed.files import Listing
from zerotools.formats.deepspeed.find import Tag
from zerotools.formats.deepspeed.load import stage_3_models
from zerotools.formats.deepspeed.model import ModelStates, Shapes, parse_model
from zerotools.io.companions import companions
from zerotools.io.torchzip.tensors import as_tensor
from zerotools.io.torchzip.torchfile import TorchFile
from zerotools.io.torchzip.values import StoredTensor

ZERO = "zero"
MASTER = "fp32.pt"
OPTIMIZER_STATE = f"{ZERO}/optimizer_state.pt"


def is_universal(directory: Path) -> bool:
    """Whether a tag directory is a universal checkpoint."""
    zero = directory / ZERO
    return zero.is_dir() and any((entry / MASTER).is_file() for entry in zero.iterdir())


def read_universal(path: Path, found: Tag, listing: Listing) -> Checkpoint:
    """The checkpoint in `found`, whose model files are listed.

    Raises:
        BadFile: a file is damaged, or disagrees with the model file.
    """
    directory = found.directory
    problems: list[Problem] = []
    first_name = min(listing.models.items(), key=lambda item: (item[0][0], item[0][1] or 0))[1]
    model = parse_model(TorchFile.open(directory, first_name))
    is_stage_3 = any(dp is not None for _, dp in listing.models)
    models = [model]
    if is_stage_3:
        models = stage_3_models(directory, listing, 0, model, len(listing.models), problems)
    rest = _rest(models, is_stage_3=is_stage_3)
    shapes = {name: shape for group in model.groups or () for name, shape in group.items()}
    tensors = dict(_trained(directory, shapes, problems)) | rest
    names = [first_name, *_files_of(directory)]
    return Checkpoint(
        root=directory,
        tensors=tensors,
        origin=_origin(path, found, model, is_stage_3=is_stage_3),
        aliases=model.shared,
        state=_state(directory, model),
        files={name: (directory / name).stat().st_size for name in names},
        companions=companions(directory.parent),
        problems=problems,
    )


def _rest(models: list[ModelStates], *, is_stage_3: bool) -> dict[Key, Tensor]:
    """Buffers and frozen weights, and at stages 1 and 2 the 16-bit copies, from the model file."""
    column: Column = read_column(models, [], whole_tensors(models[0]), sliced=is_stage_3)
    trained = {name for group in models[0].groups or () for name in group}
    rest = {}
    for key, tensor in column.tensors.items():
        if key.name not in trained:
            rest[key] = tensor
        elif tensor.dtype.bits == 16 and not is_stage_3:
            rest[Key(key.name, "param16")] = tensor
    return rest


def _trained(
    directory: Path, shapes: Shapes, problems: list[Problem]
) -> Iterator[tuple[Key, Tensor]]:
    for name, shape in shapes.items():
        folder = directory / ZERO / name
        if not (folder / MASTER).is_file():
            problems.append(Problem(f"{folder / MASTER} is missing", f"{ZERO}/{name}/{MASTER}"))
            continue
        for file in sorted(folder.glob("*.pt")):
            role = "param" if file.name == MASTER else file.stem
            relative = f"{ZERO}/{name}/{file.name}"
            tensor = _tensor(TorchFile.open(directory, relative), shape, scalar=role == "step")
            if tensor is not None:
                yield Key(name, role), tensor


def _tensor(file: TorchFile, shape: tuple[int, ...], *, scalar: bool) -> Tensor | None:
    """The tensor of one file, in its own shape or the model file's; None for a bare number."""
    value = file.tree.get("param") if isinstance(file.tree, Mapping) else file.tree
    stored = as_tensor(value)
    if stored is None and scalar:
        return None
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


def _origin(path: Path, found: Tag, model: ModelStates, *, is_stage_3: bool) -> Origin:
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
        tag=found.name,
        other_tags=found.others,
        notes=found.notes,
        details={
            "precision": types[0] if types else "fp32",
            "saved_world_size": model.data_parallel_size,
        },
    )


def _state(directory: Path, model: ModelStates) -> dict[str, Any]:
    tree = model.fields.tree
    state = {
        "lr_scheduler": tree.get("lr_scheduler"),
        "ds_config": tree.get("ds_config"),
        "skipped_steps": tree.get("skipped_steps"),
        "client_state": model.client_state,
    }
    if (directory / OPTIMIZER_STATE).is_file():
        saved = TorchFile.open(directory, OPTIMIZER_STATE).tree
        if isinstance(saved, Mapping) and isinstance(saved.get("param_groups"), list):
            state["param_groups"] = saved["param_groups"]
    return state

"""The files of each parameter in a universal checkpoint, and the lost and misplaced ones.

A lost file is a hole, which every use refuses, and a problem that names the file. The model file
lists the trained parameters; if one is lost there too, its directory shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from math import prod
from pathlib import Path

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Chunk, Key, Problem, Tensor
from zerotools.core.dtypes import FLOAT32, DType
from zerotools.core.errors import BadFile
from zerotools.formats.deepspeed.reading.consistency import saved_as
from zerotools.formats.deepspeed.schema.model_states import ModelStates, Shapes
from zerotools.formats.deepspeed.schema.signs import MASTER, ZERO
from zerotools.io.files.damage import tolerate
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tensors import as_tensor

_KINDS = ("fp32", "exp_avg", "exp_avg_sq", "step")


def states_of(
    directory: Path, model: ModelStates, shapes: Shapes, problems: list[Problem]
) -> Iterator[tuple[Key, Tensor | int | float]]:
    """Yield tensors, and numbers that are not tensors, by name and role; a lost master is a
    hole."""
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
            try:
                opened = TorchFile.open(directory, relative)
            except BadFile as error:
                tolerate(directory / relative, error)
                if file.name == MASTER:
                    yield Key(name, role), Tensor(FLOAT32, shape, ())
                continue  # other state is a hole where other parameters have it
            problems += _swapped(opened)
            value = _value(opened, shape, role)
            if is_whole and role != "step" and isinstance(value, Tensor) and value.shape != shape:
                raise BadFile(
                    f"{opened.path} has the shape {value.shape}, and the model file gives {name} "
                    f"the shape {shape}"
                )
            yield Key(name, role), value


def _swapped(file: TorchFile) -> Iterator[Problem]:
    """Yield a problem for a file that was saved as one of another kind of state."""
    saved = saved_as(file)
    if saved in _KINDS and saved != file.path.stem:
        yield Problem(
            f"{file.path} was saved as {saved}.pt; put the right file there", file.name, blocks=True
        )


def lost_state(
    directory: Path,
    found: Mapping[Key, Tensor | int | float],
    groups: list[Shapes],
    problems: list[Problem],
    muons: Set[str] = frozenset(),
) -> Iterator[tuple[Key, Tensor]]:
    """Yield holes for the kinds of state that a parameter lacks and others have. If no parameter of
    a group has any, it was never stepped. `muons` are the parameters that Muon updates; their state
    is of another kind."""
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
                            f"{directory / file} is missing, but other parameters have one",
                            file,
                            name,
                        )
                    )
                    yield Key(name, role), Tensor(dtype, () if role == "step" else shape, ())


def _kinds(found: Mapping[Key, Tensor | int | float]) -> dict[str, DType]:
    """Return the kinds of state that any parameter has, and their types."""
    kinds: dict[str, DType] = {}
    for key, value in found.items():
        if key.role != "param":
            kinds.setdefault(key.role, value.dtype if isinstance(value, Tensor) else FLOAT32)
    return kinds


def unlisted(directory: Path, model: ModelStates, shapes: Shapes) -> Iterator[Problem]:
    """Yield directories of parameters that the model file does not know, or not as trained."""
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
                blocks=True,
            )


def emptied(directory: Path, shapes: Shapes) -> Iterator[Problem]:
    """Yield a problem for each folder without a file, of untrained parameters; the model file has
    these too."""
    for folder in sorted((directory / ZERO).iterdir()):
        if folder.is_dir() and folder.name not in shapes and not any(folder.iterdir()):
            yield Problem(f"{folder / MASTER} is missing", f"{ZERO}/{folder.name}/{MASTER}")


def _value(file: TorchFile, shape: tuple[int, ...], role: str) -> Tensor | int | float:
    """Return the tensor of one file, in its shape there or in the model file, or the number of
    `step`."""
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

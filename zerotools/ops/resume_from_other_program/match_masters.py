"""Prove which parameter each fp32 master belongs to, if masters have only numbers.

A weight is the cast of its master. So a master gets the name of the only weight that is equal to
the master's cast in shape and in the first COMPARED elements. FP16_Optimizer of DeepSpeed (fp16
without ZeRO, fused optimizer) joins all parameters of a group in one flat tensor,
`fp32_groups_flat`. The same comparison finds the start of each parameter there, and
`split_flat_tensors` splits the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.flat_ranges import ranges_of
from zerotools.core.training_state import ParamGroup, TrainingState, trained_precision
from zerotools.formats.torch_optimizers import Shape
from zerotools.io.files.open_files import OpenFiles

COMPARED = 4096
"""The number of elements at the beginning of each weight that are compared with a master."""


def check_masters(
    checkpoint: Checkpoint,
    training: TrainingState,
    groups: Sequence[Sequence[str]],
    option: str = "--order",
) -> None:
    """Check that each master that has a number in place of a name, after a cast, is equal to the
    weight with the name that `groups` has at its position. The user gave these names with
    `option`.

    Raises:
        BadRequest: a master differs from its weight.
        BadFile: a file is too short to contain a master or a weight.
    """
    fitting = fitting_masters(checkpoint, training)
    weights = weights_of_model(checkpoint, training)
    dtype = trained_precision(weights)
    casts = {key.name for key, tensor in weights.tensors.items() if tensor.dtype == dtype}
    for group, names in zip(training.groups, groups, strict=True):
        for member, name in zip(group.params, names, strict=True):
            if name in casts and name not in fitting.get(member, [name]):
                others = ", ".join(fitting[member][:3])
                hint = f", but to {others}" if others else ""
                raise BadRequest(
                    f"{option} gives the name {name} to number {training.unnamed[member]} of "
                    f"the optimizer in {checkpoint.origin.path}, but the master of this number, "
                    f"after a cast, is not equal to that weight{hint}: leave {option} out, or "
                    "correct it"
                )


def fitting_masters(checkpoint: Checkpoint, training: TrainingState) -> dict[str, list[str]]:
    """Return the weights that are equal to the cast of each master in shape and in the first
    COMPARED elements, keyed by the master's name in the param groups.

    Raises:
        BadFile: a file is too short to contain a master or a weight.
    """
    weights = weights_of_model(checkpoint, training)
    dtype = trained_precision(weights)
    if dtype is None:
        return {}
    by_value: dict[tuple[tuple[int, ...], bytes], list[str]] = {}
    found: dict[str, list[str]] = {}
    with OpenFiles(checkpoint.root) as files:
        for key, tensor in weights.tensors.items():
            if tensor.dtype == dtype:
                values = _values(files, tensor, dtype)
                by_value.setdefault((tensor.shape, values), []).append(key.name)
        for member in training.unnamed:
            master = checkpoint.tensors.get(Key(member, "param"))
            if master is not None:
                values = _values(files, master, dtype)
                found[member] = by_value.get((master.shape, values), [])
    return found


def sections_by_masters(checkpoint: Checkpoint, training: TrainingState) -> list[list[str]] | None:
    """Return the names of the parameters in each group's flat tensor, in the order of their
    positions. Return None if at some position the cast of the flat tensor is equal to no weight or
    to several weights.

    Raises:
        BadFile: a file is too short to contain a master or a weight.
    """
    weights = weights_of_model(checkpoint, training)
    dtype = trained_precision(weights)
    if dtype is None:
        return None
    sections: list[list[str]] = []
    with OpenFiles(checkpoint.root) as files:
        first = {
            key.name: (_values(files, tensor, dtype), tensor.numel)
            for key, tensor in weights.tensors.items()
            if tensor.dtype == dtype and tensor.numel
        }
        for group in training.groups:
            sections.append([])
            for member in group.params:
                master, at = checkpoint.tensors.get(Key(member, "param")), 0
                if master is None:
                    return None
                while at < master.numel:
                    there = _values(files, master, dtype, at)
                    left = master.numel - at
                    fitting = [
                        name
                        for name, (values, numel) in first.items()
                        if numel <= left and there[: len(values)] == values
                    ]
                    if len(fitting) != 1:
                        return None
                    sections[-1].append(fitting[0])
                    at += first.pop(fitting[0])[1]
    return sections


def weights_of_model(checkpoint: Checkpoint, training: TrainingState) -> Checkpoint:
    """Return `checkpoint` with only its weights, without numbered tensors."""
    tensors: Mapping[Key, Tensor] = {
        key: tensor
        for key, tensor in checkpoint.tensors.items()
        if key.role == "param" and key.name not in training.unnamed
    }
    return replace(checkpoint, tensors=tensors)


def _values(files: OpenFiles, tensor: Tensor, dtype: DType, at: int = 0) -> bytes:
    """Return the bytes of at most COMPARED elements, from element `at` on and cast to `dtype`."""
    # Here, as most checkpoints that jobs resume from have names, and need no numpy.
    from zerotools.io.numeric.dtype_casts import cast_bytes

    ranges = [part for part in ranges_of(tensor) or () if part.end > at]
    if not ranges:
        return b""
    begin, end, file, offset = ranges[0]
    size = tensor.dtype.itemsize
    data = bytearray(min(COMPARED, end - at) * size)
    files.read_into(file, offset + (at - begin) * size, memoryview(data))
    return cast_bytes(data, tensor.dtype, dtype)


Sections = Sequence[Sequence[str]]


def split_flat_tensors(
    checkpoint: Checkpoint, training: TrainingState, sections: Sections
) -> tuple[Checkpoint, TrainingState]:
    """Split flat tensors into one tensor for each parameter, with names made from numbers.
    `sections` has the names of the parameters in each group, in order.

    Raises:
        BadRequest: the groups or flat tensors have other sizes than `sections`.
    """
    shapes = {
        key.name: tensor.shape
        for key, tensor in checkpoint.tensors.items()
        if key.role == "param" and key.name not in training.unnamed
    }
    path = checkpoint.origin.path
    if len(sections) != len(training.groups):
        raise BadRequest(
            f"{path} has its optimizer state as {len(training.groups)} flat tensors, one for each "
            f"param group, but --order has {count_text(len(sections), 'group')}: pass --order FILE "
            "with an empty line between the names of two groups"
        )
    tensors = {k: t for k, t in checkpoint.tensors.items() if k.name not in training.unnamed}
    scalars = dict(training.scalars)
    groups, unnamed = list[ParamGroup](), dict[str, int]()
    for group, names in zip(training.groups, sections, strict=True):
        members = {f"optimizer.state.{len(unnamed) + n}": name for n, name in enumerate(names)}
        unnamed |= {member: len(unnamed) + n for n, member in enumerate(members)}
        held = sum(prod(shapes[name]) for name in names)
        for flat in group.params:
            for key in [key for key in checkpoint.tensors if key.name == flat]:
                tensor = checkpoint.tensors[key]
                if tensor.shape and tensor.numel != held:
                    raise BadRequest(
                        f"{path}: group {len(groups)} of the optimizer has {tensor.numel} "
                        f"elements, but --order gives it {count_text(len(names), 'parameter')} "
                        f"with {held} elements in total: correct the order"
                    )
                tensors |= _parts(checkpoint, key, members, shapes)
            for key in [key for key in scalars if key.name == flat]:
                value = scalars.pop(key)
                scalars |= {Key(member, key.role): value for member in members}
        groups.append(replace(group, params=tuple(members)))
    return replace(checkpoint, tensors=tensors), replace(
        training,
        groups=tuple(groups),
        scalars=scalars,
        unnamed=unnamed,
        flattened_parameters=frozenset(),
    )


def _parts(
    checkpoint: Checkpoint, key: Key, members: Mapping[str, str], shapes: Mapping[str, Shape]
) -> dict[Key, Tensor]:
    """Return the tensors of the parameters, which are parts of the flat tensor `key`. A single
    number such as `step` belongs to every parameter."""
    flat = checkpoint.tensors[key]
    if not flat.shape:
        return {Key(member, key.role): flat for member in members}
    ranges = ranges_of(flat) or []
    if len(ranges) != 1:
        raise BadFile(
            f"{checkpoint.origin.path}: the elements of {key} are not contiguous in its file"
        )
    found: dict[Key, Tensor] = {}
    at = ranges[0].offset
    for member, name in members.items():
        chunk = Chunk(Box.whole(shapes[name]), ranges[0].file, at)
        found[Key(member, key.role)] = Tensor(flat.dtype, shapes[name], (chunk,))
        at += prod(shapes[name]) * flat.dtype.itemsize
    return found

"""An optimizer that has its parameters joined, one after another, in one flat tensor per group.

FP16_Optimizer of DeepSpeed     without ZeRO, in fp16 with a fused optimizer: `fp32_groups_flat`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Tensor
from zerotools.core.counts import counted
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.flat_ranges import ranges_of
from zerotools.core.training_state import ParamGroup, TrainingState
from zerotools.formats.torch_optimizers import Shape

Sections = Sequence[Sequence[str]]


def divided(
    checkpoint: Checkpoint, training: TrainingState, sections: Sections
) -> tuple[Checkpoint, TrainingState]:
    """Return `checkpoint` and `training` with a made-up name for each parameter instead of one for
    each flat tensor. `sections` has the names of the parameters of each group.

    Raises:
        BadRequest: the groups have other sizes.
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
            f"param group, but --order has {counted(len(sections), 'group')}: pass --order FILE "
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
                        f"{path} has {tensor.numel} elements in group {len(groups)} of its "
                        f"optimizer, but the {len(names)} parameters that --order gives to it "
                        f"have {held}: correct the order"
                    )
                tensors |= _parts(checkpoint, key, members, shapes)
            for key in [key for key in scalars if key.name == flat]:
                value = scalars.pop(key)
                scalars |= {Key(member, key.role): value for member in members}
        groups.append(replace(group, params=tuple(members)))
    return replace(checkpoint, tensors=tensors), replace(
        training, groups=tuple(groups), scalars=scalars, unnamed=unnamed, flat=frozenset()
    )


def _parts(
    checkpoint: Checkpoint, key: Key, members: Mapping[str, str], shapes: Mapping[str, Shape]
) -> dict[Key, Tensor]:
    """Return the tensor of each member; a number is that of all."""
    flat = checkpoint.tensors[key]
    if not flat.shape:
        return {Key(member, key.role): flat for member in members}
    ranges = ranges_of(flat) or []
    if len(ranges) != 1:
        raise BadFile(f"{checkpoint.origin.path}: {key} does not lie in one piece in its file")
    found: dict[Key, Tensor] = {}
    at = ranges[0].offset
    for member, name in members.items():
        chunk = Chunk(Box.whole(shapes[name]), ranges[0].file, at)
        found[Key(member, key.role)] = Tensor(flat.dtype, shapes[name], (chunk,))
        at += prod(shapes[name]) * flat.dtype.itemsize
    return found

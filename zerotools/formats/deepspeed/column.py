"""The tensors of one model-parallel rank: its model file(s) and its data-parallel ranks' shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from zerotools.core.checkpoint import Key, Problem, Tensor
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.deepspeed.flat import ChunksOnDemand, chunks_of, slice_segments, vector_of
from zerotools.formats.deepspeed.flat_groups import FlatGroup, flat_groups
from zerotools.formats.deepspeed.model import ModelStates, Shapes, tied_in_module
from zerotools.formats.deepspeed.shards import STAGE_3, Shard

SIXTEEN_BIT = ("float16", "bfloat16")


@dataclass(frozen=True)
class Column:
    """Tensors in the shapes of this model-parallel rank, which are the model's own where there is
    only one. `groups` are empty without ZeRO."""

    model: ModelStates
    shards: Sequence[Shard | None]
    groups: Sequence[FlatGroup]
    tensors: Mapping[Key, Tensor]
    aliases: Mapping[str, str]
    frozen: frozenset[str]
    problems: Sequence[Problem] = ()


def read_column(
    models: Sequence[ModelStates], shards: Sequence[Shard | None], more: Shapes | None = None
) -> Column:
    """Put one column together.

    `models` is one file at stages 0 to 2; at stage 3 rank 0's, and all ranks' where frozen
    parameters make them necessary.

    Raises:
        BadFile: the files disagree with one another.
        Unsupported: a layout that cannot be told from the files.
    """
    model = models[0]
    shapes = _group_shapes(model, shards)
    groups = flat_groups(shapes, shards) if shapes is not None else []
    tensors: dict[Key, Tensor] = {}
    for group in groups:
        _check_swapped(group)
        for role in group.roles:
            for name, tensor in group.tensors(role):
                tensors[Key(name, role)] = tensor
    trained = {key.name for key in tensors if key.role == "param"}
    aliases = _aliases(model, trained)
    is_stage_3 = any(shard is not None and shard.kind == STAGE_3 for shard in shards)
    if is_stage_3:
        frozen = dict(_frozen_slices(models))
    else:
        frozen = {
            name: tensor
            for name, tensor in _whole(model)
            if name not in trained and name not in aliases and not _is_buffer(model, name)
        }
        for name, tensor in _whole(model):
            if name in trained and tensor.dtype.name in SIXTEEN_BIT:
                tensors[Key(name, "param16")] = tensor
    for name, tensor in frozen.items():
        tensors[Key(name, "param")] = tensor
    for name, tensor in _whole(model):
        if _is_buffer(model, name):
            tensors[Key(name, "buffer")] = tensor
    return Column(model, shards, groups, tensors, aliases, frozenset(frozen))


def _group_shapes(model: ModelStates, shards: Sequence[Shard | None]) -> list[Shapes] | None:
    """`param_shapes`, from the model file or, before 0.6.0, from the optimizer file."""
    present = [shard for shard in shards if shard is not None]
    if not present:
        return None
    shapes = model.groups if model.groups is not None else present[0].groups
    if shapes is None:
        raise Unsupported(
            f"{model.file.path} has no param_shapes, so nothing says which weights the flat "
            "vectors hold; DeepSpeed before 0.3.14 saved none"
        )
    if len(shapes) == 1 and len(present[0].masters) > 1:
        raise Unsupported(
            f"{present[0].file.path} has {len(present[0].masters)} param groups and one list of "
            "shapes for all of them (DeepSpeed before 0.5.4), which does not say how they lie in "
            "the flat vectors"
        )
    return shapes


def _check_swapped(group: FlatGroup) -> None:
    if not group.shapes or not any(prod(shape) for shape in group.shapes.values()):
        return
    masters = [vector for vector in group.vectors("param") if vector is not None]
    if group.partition is None and masters and all(vector.numel == 0 for vector in masters):
        raise Unsupported(
            f"{masters[0].file}: the masters of sub-group {group.number} were swapped to NVMe and "
            "are not in the checkpoint's .pt files; load it with DeepSpeed, and save it without "
            "NVMe offload"
        )


def _aliases(model: ModelStates, trained: set[str]) -> dict[str, str]:
    """Tied names: those that the file records, else views of the same elements of `module`."""
    aliases = dict(model.shared)
    for alias, name in tied_in_module(model.module or {}).items():
        if alias in aliases or name in aliases or _is_buffer(model, alias):
            continue
        # The name that was trained holds the bytes, whichever comes first in the module.
        if alias in trained and name not in trained:
            alias, name = name, alias
        if alias not in trained:
            aliases[alias] = name
    return aliases


def _is_buffer(model: ModelStates, name: str) -> bool:
    if model.buffer_names is not None:
        return name in model.buffer_names
    tensor = (model.module or {}).get(name)
    return tensor is not None and not tensor.dtype.is_float


def _whole(model: ModelStates) -> Iterator[tuple[str, Tensor]]:
    """The tensors of `module`."""
    for name, stored in (model.module or {}).items():
        yield name, model.file.tensor(stored)


def _frozen_slices(models: Sequence[ModelStates]) -> Iterator[tuple[str, Tensor]]:
    """Stage 3: each rank has a padded slice of every frozen parameter."""
    first, ranks = models[0], len(models)
    for name, shape in first.frozen_shapes.items():
        numel = prod(shape)
        width = -(-numel // ranks)
        stored = [model.fragments.get(name) for model in models]
        vectors = [
            None if part is None else vector_of(model.file, part, f"the fragment of {name}")
            for model, part in zip(models, stored, strict=True)
        ]
        if all(vector is None for vector in vectors):
            raise BadFile(f"{first.file.path} lists the frozen parameter {name} without its values")
        dtype = next(vector.dtype for vector in vectors if vector is not None)
        kept = tuple(vectors)
        yield (
            name,
            Tensor(
                dtype,
                shape,
                ChunksOnDemand(
                    lambda shape=shape, numel=numel, width=width, kept=kept: chunks_of(  # type: ignore[misc]
                        shape, slice_segments(0, numel, width, kept)
                    )
                ),
            ),
        )

"""Assemble the tensors of one model-parallel rank from its model files and optimizer files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.deepspeed.partitioning.flat_groups import FlatGroup, flat_groups
from zerotools.formats.deepspeed.partitioning.flat_layout import FlatLayout
from zerotools.formats.deepspeed.partitioning.read_nvme_swap_files import SWAPPED, original_folder
from zerotools.formats.deepspeed.partitioning.stack_experts import joined_blocks
from zerotools.formats.deepspeed.schema.expert_parallel import ExpertBlock, ExpertNaming
from zerotools.formats.deepspeed.schema.model_states import ModelStates, Shapes, tied_in_module
from zerotools.formats.deepspeed.schema.optim_states import (
    BF16_OPTIMIZER,
    STAGE_3,
    FlatPartition,
    OptimStates,
    flat_partition_of,
)

SIXTEEN_BIT = ("float16", "bfloat16")


@dataclass(frozen=True)
class MpShard:
    """The tensors of one model-parallel rank, in the shapes that they have on this rank. If there
    is only one rank, these are the shapes in the model.

    Attributes:
        groups: the flat groups; empty if the run did not use ZeRO.
        uncut: the weights and buffers that the files store whole, not partitioned, under the names
            in the files. They come from the model file, the expert files, and the layer files of
            all pipeline stages.
    """

    model: ModelStates
    optim_states: Sequence[OptimStates | None]
    groups: Sequence[FlatGroup]
    tensors: Mapping[Key, Tensor]
    aliases: Mapping[str, str]
    frozen: frozenset[str]
    uncut: Mapping[str, Tensor] = field(default_factory=dict)


def read_mp_rank(
    models: Sequence[ModelStates | None],
    optim_states: Sequence[OptimStates | None],
    whole: Mapping[str, Tensor],
    *,
    is_zero3: bool = False,
) -> MpShard:
    """Return the tensors of one model-parallel rank, from its model files and optimizer files.

    Args:
        models: one file at stages 0 to 2. At stage 3 it is rank 0's file, or the files of all ranks
            if frozen parameters require them; a lost file is None.
        whole: the tensors that files store whole: in `module`, in layer files and in expert files.
        is_zero3: True if frozen parameters are partitioned even though there are no optimizer
            files.

    Raises:
        BadFile: the files contradict each other.
        Unsupported: the layout cannot be derived from the files.
    """
    model = next(model for model in models if model is not None)
    shapes = _group_shapes(model, optim_states)
    naming = _naming(model, shapes or (), whole)
    groups = flat_groups(shapes, optim_states, naming) if shapes is not None else []
    tensors = dict(_partitioned(groups))
    trained = {key.name for key in tensors if key.role == "param"}
    aliases = _aliases(model, trained)
    weights = {name: tensor for name, tensor in whole.items() if not _is_buffer(model, name)}
    if is_zero3 or any(optim is not None and optim.kind == STAGE_3 for optim in optim_states):
        frozen = dict(_frozen_partitions(model, models))
    else:
        rest = (name for name in weights if name not in trained and name not in aliases)
        frozen = {name: weights[name] for name in rest}
        for name, tensor in weights.items():
            if name in trained and tensor.dtype.name in SIXTEEN_BIT:
                tensors[Key(name, "param16")] = tensor
    tensors |= {Key(name, "param"): tensor for name, tensor in frozen.items()}
    tensors |= {Key(n, "buffer"): t for n, t in whole.items() if _is_buffer(model, n)}
    return MpShard(model, optim_states, groups, tensors, aliases, frozenset(frozen))


def whole_tensors(model: ModelStates) -> dict[str, Tensor]:
    """Return the tensors in `module` of the model file, keyed by name; empty for a pipeline, where
    `module` has no tensors.
    """
    stored = (model.module or {}).items()
    return {name: model.file.tensor(tensor) for name, tensor in stored}


def _partitioned(groups: Sequence[FlatGroup]) -> Iterator[tuple[Key, Tensor]]:
    stacked: dict[Key, list[tuple[ExpertBlock, Tensor]]] = {}
    for group in groups:
        _check_swapped(group)
        for role in group.roles:
            for name, tensor in group.tensors(role):
                if name in group.blocks:
                    stacked.setdefault(Key(name, role), []).append((group.blocks[name], tensor))
                else:
                    yield Key(name, role), tensor
        for name, role, tensor in group.scalars():
            yield Key(name, role), tensor
    for key, parts in stacked.items():
        yield key, joined_blocks(str(key), parts)


def _group_shapes(
    model: ModelStates, optim_states: Sequence[OptimStates | None]
) -> list[Shapes] | None:
    """Return `param_shapes`, from the model file or, before DeepSpeed 0.6.0, from the optimizer
    file.

    Return None if the run did not use ZeRO, or if it used BF16_Optimizer at stage 0. The files of
    such runs do not record the parameters.
    """
    present = [optim for optim in optim_states if optim is not None]
    if not present:
        return None
    shapes = model.groups if model.groups is not None else present[0].groups
    if shapes is None and present[0].kind == BF16_OPTIMIZER:
        return None
    if shapes is None:
        raise Unsupported(
            f"{model.file.path} has no param_shapes, so the names and shapes of the weights in "
            "the flat buffers are not known (DeepSpeed before 0.3.14 did not save param_shapes); "
            "load it with a newer DeepSpeed and save it again"
        )
    if len(shapes) == 1 and len(present[0].masters) > 1:
        raise Unsupported(
            f"{present[0].file.path} has {len(present[0].masters)} param groups but one list of "
            "shapes for all of them (DeepSpeed before 0.5.4), so their offsets in the flat "
            "buffers are not known; load it with a newer DeepSpeed and save it again"
        )
    return shapes


def _naming(
    model: ModelStates, shapes: Sequence[Shapes], whole: Mapping[str, Tensor]
) -> ExpertNaming:
    names = (name for group in shapes for name in group)
    return ExpertNaming.of(names, whole, model.ds_config, model.stacked_experts)


def _check_swapped(group: FlatGroup) -> None:
    if not any(prod(shape) for shape in group.shapes.values()):
        return
    masters = [partition for partition in group.partitions("param") if partition is not None]
    is_stage_3 = group.geometry.zero12_numel is None
    if is_stage_3 and masters and all(partition.numel == 0 for partition in masters):
        raise Unsupported(
            f"{masters[0].file}: the masters of sub-group {group.number} were swapped to NVMe, "
            f"but {SWAPPED} has no swap files that surely belong to them (DeepSpeed before "
            "0.18.0 saves those of only one rank). If the run has made no step since this "
            f"save, copy {original_folder('N')} of each rank to {SWAPPED}/rankNN in the tag "
            "directory. For files of torch before 1.12, model-parallel ranks or 16-bit masters "
            "this is not enough: load the checkpoint with DeepSpeed, on as many ranks and with "
            "the same configuration, and call save_16bit_model for the weights (with "
            "stage3_gather_16bit_weights_on_model_save true)"
        )


def _aliases(model: ModelStates, trained: set[str]) -> dict[str, str]:
    """Return the tied names as {alias: name}: names that the file records as tied, and names that
    share their elements in `module`.
    """
    aliases = {**model.stacked_experts.routers(model.module or {}), **model.shared}
    for alias, name in tied_in_module(model.module or {}).items():
        if alias in aliases or name in aliases or _is_buffer(model, alias):
            continue
        # The name that was trained is the first name, whatever the order in the module is.
        if alias in trained and name not in trained:
            aliases[name] = alias
        elif alias not in trained:
            aliases[alias] = name
    return aliases


def _is_buffer(model: ModelStates, name: str) -> bool:
    if model.buffer_names is not None:
        return name in model.buffer_names
    tensor = (model.module or {}).get(name)
    return tensor is not None and not tensor.dtype.is_float


def _frozen_partitions(
    first: ModelStates, models: Sequence[ModelStates | None]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the frozen parameters of stage 3. Each is joined from the padded partitions of all
    ranks.
    """
    for name, shape in first.frozen_shapes.items():
        partitions = [None if model is None else _fragment(model, name) for model in models]
        present = [partition for partition in partitions if partition is not None]
        if not present:
            raise BadFile(f"{first.file.path} lists the frozen parameter {name} without its values")
        layout = FlatLayout({name: shape}, (), len(models), None)
        yield from layout.tensors(present[0].dtype, partitions)


def _fragment(model: ModelStates, name: str) -> FlatPartition | None:
    part = model.fragments.get(name)
    return None if part is None else flat_partition_of(model.file, part, f"the fragment of {name}")

"""The parameters of the flat buffers, if the model file does not list them.

DeepSpeed 0.7.4 to 0.18 saves no `param_shapes` and no `ds_config` with a mixture of experts, and no
version saves `param_shapes` at stage 0, where BF16_Optimizer writes optimizer files. These name the
parameters of each rank's partition in `param_slice_mappings`, in the optimizer's order, and the
weights have the shapes. In a pipeline a tied parameter is `tied_modules.KEY.NAME`, and its weight
is `LAYER.NAME` in the file of a layer, perhaps that of another stage.

Source: DeepSpeed 0.18.9 `runtime/engine.py`: `_save_moe_checkpoint`; `runtime/base_optimizer.py`
and `runtime/zero/stage_1_and_2.py`: `_create_param_mapping`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from zerotools.core.checkpoint import Tensor
from zerotools.core.errors import BadFile
from zerotools.formats.deepspeed.partitioning.flat_groups import ranks_of_group
from zerotools.formats.deepspeed.partitioning.parameter_order import flat_order, is_round_robin
from zerotools.formats.deepspeed.partitioning.pipeline_layers import PLAIN, TIED
from zerotools.formats.deepspeed.schema import model_tree
from zerotools.formats.deepspeed.schema.experts import (
    ExpertPlacement,
    experts_of_first_rank,
    is_data_first,
    same_weight,
)
from zerotools.formats.deepspeed.schema.fields import Fields
from zerotools.formats.deepspeed.schema.model_states import ModelStates, Shapes
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3, OptimStates
from zerotools.formats.deepspeed.schema.optimizer_tree import numel_of, slice_mappings


def with_listed_parameters(
    model: ModelStates,
    optim_states: Sequence[OptimStates | None],
    whole: Mapping[str, Tensor],
) -> ModelStates:
    """Return the model file as later versions save it: with the parameters of each flat buffer, and
    with the run's configuration. A file that lists them is returned unchanged, and so is one with
    optimizer files that do not name them. `whole` are the weights of the model file, and those of
    the files of experts and layers.

    Raises:
        BadFile: a file that names some of the parameters, or the weight of one, is missing.
    """
    present = [optim for optim in optim_states if optim is not None]
    if model.groups is not None or not present or present[0].kind == STAGE_3:
        return model
    first = present[0]
    if first.groups is not None or not any(slice_mappings(first.fields.tree)):
        return model
    tree = dict(model.fields.tree)
    for key in (model_tree.DS_CONFIG, model_tree.DS_VERSION):
        tree.setdefault(key, first.file.tree.get(key))
    fields = Fields(model.file.path, tree)
    named = replace(model, fields=fields)
    groups = [
        _shapes(number, named, optim_states, first, whole) for number in range(len(first.masters))
    ]
    tree[model_tree.PARAM_SHAPES] = groups
    return replace(named, groups=groups)


def _shapes(
    number: int,
    model: ModelStates,
    optim_states: Sequence[OptimStates | None],
    first: OptimStates,
    whole: Mapping[str, Tensor],
) -> Shapes:
    """Return the parameters of one group, in the order of its flat buffer."""
    ranks = ranks_of_group(number, optim_states, first)
    sizes: dict[str, int] = {}
    for part, optim in enumerate(_holders(ranks, optim_states, is_data_first(model.ds_config))):
        if optim is None:
            raise BadFile(
                f"{first.file.path.parent}: the optimizer file of partition {part} of group "
                f"{number} is missing, and {model.file.name} does not list its parameters; copy "
                "the file back"
            )
        mappings = slice_mappings(optim.fields.tree)
        for name, place in (mappings[number] if number < len(mappings) else {}).items():
            sizes[str(name)] = sizes.get(str(name), 0) + numel_of(place)
    known: Mapping[str, int] = {name: numel for name, numel in sizes.items() if numel}
    if ranks < len(optim_states):
        known = _with_unnamed_experts(known, number, optim_states, ranks, whole)
    names = flat_order([*known], ranks, round_robin=is_round_robin(model, first))
    return {name: _shape(name, known[name], model, first, whole) for name in names}


def _with_unnamed_experts(
    known: Mapping[str, int],
    number: int,
    optim_states: Sequence[OptimStates | None],
    ranks: int,
    whole: Mapping[str, Tensor],
) -> Mapping[str, int]:
    """Return `known`, or all experts of a rank if `known` are the first of these.

    DeepSpeed up to 0.12 names only the first part of an expert group: it cuts the group over all
    ranks, and not over those that share it. The group has all experts of a rank if their elements
    fill it. It has the model's order, and must begin with `known`; the weights are compared with
    the masters before they are used.
    """
    masters = [optim.masters[number].numel for optim in optim_states if optim is not None]
    longest = max(masters) * ranks
    if sum(known.values()) + 2 * ranks > longest:
        return known
    ep_size = len(optim_states) // ranks
    natural = {name: whole[name].numel for name in experts_of_first_rank(whole, ep_size)}
    is_filled = 0 <= longest - sum(natural.values()) < 2 * ranks
    return natural if is_filled and [*natural][: len(known)] == [*known] else known


def _holders(
    ranks: int, optim_states: Sequence[OptimStates | None], data_first: bool
) -> Iterator[OptimStates | None]:
    """Yield an optimizer file for each partition of a group. All expert-parallel ranks call their
    experts by the same names, so any file of a partition will do."""
    size = len(optim_states)
    placement = ExpertPlacement(size, max(1, size // ranks), data_first)
    for part in range(ranks):
        held = (
            optim_states[placement.ranks_of(expert_rank)[part]]
            for expert_rank in range(placement.ep_size)
        )
        yield next((optim for optim in held if optim is not None), None)


def _shape(
    name: str,
    numel: int,
    model: ModelStates,
    first: OptimStates,
    whole: Mapping[str, Tensor],
) -> tuple[int, ...]:
    found = [whole[name].shape] if name in whole else _shapes_elsewhere(name, numel, whole)
    where = f"{first.file.path.parent}: {first.file.name} has {numel} elements of {name}"
    if not found:
        raise BadFile(
            f"{where}, and no other file has a weight of that name and size; copy the missing "
            "model, layer or expert file back"
        )
    if len(set(found)) > 1 or prod(found[0]) != numel:
        raise BadFile(
            f"{where}, but the weight has shape {' or '.join(map(str, dict.fromkeys(found)))}: "
            "the files do not belong together; take another checkpoint"
        )
    return found[0]


def _shapes_elsewhere(name: str, numel: int, whole: Mapping[str, Tensor]) -> list[tuple[int, ...]]:
    """Return the shapes of tensors that can be the weight: of other experts of the layer, or, for a
    tied parameter, of layers of a pipeline."""
    if tied := TIED.fullmatch(name):
        held = (
            tensor.shape
            for other, tensor in whole.items()
            if PLAIN.fullmatch(other) and other.partition(".")[2] == tied["name"]
        )
        return [shape for shape in held if prod(shape) == numel]
    return [tensor.shape for other, tensor in whole.items() if same_weight(name, other)]

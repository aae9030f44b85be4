"""Read the optimizer state of a run without ZeRO, which identifies parameters only by number.

The key `optimizer` of *_model_states.pt in an fp32 run: the state dict of torch's optimizer.

    state, param_groups

The same key in a bf16 or fp16 run: the state of FP16_UnfusedOptimizer or FP16_Optimizer.

    optimizer_state_dict             the state dict of torch's optimizer, for the fp32 masters
    fp32_groups                      FP16_UnfusedOptimizer: a list of masters for each group
    fp32_groups_flat                 FP16_Optimizer: a flat tensor of masters for each group. The
                                     numbers are then the numbers of the flat tensors
    cur_scale, dynamic_loss_scale    the loss scale, and its other counters

Source: DeepSpeed `runtime/fp16/unfused_optimizer.py`, `fused_optimizer.py`: `state_dict`;
`runtime/engine.py`, `_save_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import Unsupported
from zerotools.core.training_state import (
    LARGEST_SCALE,
    LossScale,
    ParamGroup,
    Scalar,
    TrainingState,
)
from zerotools.formats.deepspeed.partitioning.kept_for_writer import native_of
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.schema.state_dict_keys import (
    DYNAMIC_LOSS_SCALE,
    PARAM_GROUPS,
    STATE,
    STATE_DICT,
    numbers_of,
    options_of,
)
from zerotools.formats.deepspeed.schema.typed_fields import Fields
from zerotools.io.numeric.scalar_tensors import scalars_below
from zerotools.io.torchzip.tree_tensors import as_tensor

MASTERS, FLAT_MASTERS = "fp32_groups", "fp32_groups_flat"
CUR_SCALE = "cur_scale"


def numbered_state(checkpoint: Checkpoint) -> tuple[Checkpoint, TrainingState] | None:
    """Return the tensors of the optimizer state, with masters under the role `param`, and the
    param groups; None if the files have no such state.

    The files have no parameter names, so the tensors and the groups use names that are made from
    the parameters' numbers.

    Raises:
        BadFile: the optimizer's tree in the file is damaged.
        Unsupported: the checkpoint has several model-parallel ranks.
    """
    shards = native_of(checkpoint).mp_shards
    model = shards[0].model
    if not isinstance(model.optimizer, Mapping) or not model.optimizer:
        return None
    path = checkpoint.origin.path
    if len(shards) > 1:
        raise Unsupported(
            f"{path} has optimizer state of {len(shards)} model-parallel ranks without ZeRO: it "
            "has numbers instead of parameter names; convert only the weights (zerotools "
            "convert --weights-only), or save from a run with ZeRO stage 1, which stores the "
            "names"
        )
    outer = Fields(model.file.path, dict(model.optimizer), "its optimizer")
    inner = outer.inside(STATE_DICT) if STATE_DICT in outer else outer
    if STATE not in inner or PARAM_GROUPS not in inner:
        return None
    groups = [dict(group) for group in inner.need(PARAM_GROUPS, list)]
    tensors, plain = _state(model, inner.need(STATE, dict))
    is_flat = FLAT_MASTERS in outer
    tensors |= _masters(model, groups, outer.maybe(FLAT_MASTERS if is_flat else MASTERS, list))
    numbers = {_name(number): number for group in groups for number in numbers_of(group)}
    small = {key: t for key, t in tensors.items() if not t.shape and key.role != "param"}
    training = TrainingState(
        groups=tuple(
            ParamGroup(tuple(map(_name, numbers_of(group))), options_of(group)) for group in groups
        ),
        scalars=scalars_below(checkpoint.root, {**small, **plain}),
        loss_scaler=_loss_scaler(outer.tree),
        unnamed=numbers,
        flattened_parameters=frozenset(numbers) if is_flat else frozenset(),
    )
    state = replace(
        checkpoint, tensors=tensors, files={model.file.name: model.file.size}, aliases={}
    )
    return state, training


def _name(number: int) -> str:
    return f"optimizer.state.{number}"


def _state(
    model: ModelStates, saved: Mapping[Any, Any]
) -> tuple[dict[Key, Tensor], dict[Key, Scalar]]:
    tensors: dict[Key, Tensor] = {}
    plain: dict[Key, Scalar] = {}
    for number, entry in saved.items():
        for role, value in Fields(model.file.path, entry, f"state {number}").tree.items():
            key, stored = Key(_name(int(number)), str(role)), as_tensor(value)
            if stored is not None:
                tensors[key] = model.file.tensor(stored)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                plain[key] = Scalar(value)
    return tensors, plain


def _masters(
    model: ModelStates, groups: list[dict[str, Any]], saved: list[Any] | None
) -> dict[Key, Tensor]:
    tensors: dict[Key, Tensor] = {}
    for group, masters in zip(groups, saved or (), strict=False):
        own = masters if isinstance(masters, list) else [masters]
        for number, value in zip(numbers_of(group), own, strict=False):
            stored = as_tensor(value)
            if stored is not None:
                tensors[Key(_name(number), "param")] = model.file.tensor(stored)
    return tensors


def _loss_scaler(tree: Mapping[str, Any]) -> LossScale | None:
    scale = tree.get(CUR_SCALE)
    if not isinstance(scale, int | float) or not abs(scale) <= LARGEST_SCALE:  # or NaN
        return None
    rules = {n: v for n, v in tree.items() if type(v) is int and n not in (CUR_SCALE, STATE_DICT)}
    return LossScale(float(scale), tree.get(DYNAMIC_LOSS_SCALE) is True, rules)

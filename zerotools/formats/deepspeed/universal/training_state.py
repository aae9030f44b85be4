"""Read the training state of a universal checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Problem, Tensor
from zerotools.core.dtypes import FLOAT32, DType
from zerotools.core.errors import BadFile
from zerotools.core.training_state import ParamGroup, Scalar, TrainingState
from zerotools.formats.deepspeed.partitioning.flat_groups import round_robin_order
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.ds_config import (
    ROUND_ROBIN,
    optimizer_name,
    zero_optimization,
)
from zerotools.formats.deepspeed.schema.loss_scaler import loss_scaler_of
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.schema.tag_file_names import ZERO
from zerotools.formats.deepspeed.schema.typed_fields import integer_of
from zerotools.formats.deepspeed.universal.kept_for_writer import native_of
from zerotools.io.numeric.scalar_tensors import LazyScalars, read_scalar
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tree_tensors import as_tensor

_NOT_STATE = ("param", "param16", "buffer")


def universal_training(checkpoint: Checkpoint) -> TrainingState:
    """Return the training state, from the model file and `optimizer_state.pt`. If a `step` is
    stored as a tensor, its file is read when the value is accessed.

    Raises:
        BadFile: `optimizer_state.pt`, which has the param groups, is missing.
    """
    native = native_of(checkpoint)
    model, saved = native.model, native.saved
    if saved.file is None:
        raise BadFile(
            f"{checkpoint.root / OPTIMIZER_STATE} is missing, but no other file has the param "
            "groups; to write only the weights, use zerotools consolidate"
        )
    tree, trained = model.fields.tree, {name for names in saved.shapes for name in names}
    config = model.ds_config
    return TrainingState(
        groups=saved.groups,
        scalars=_scalars(checkpoint, native.numbers),
        frozen=frozenset(
            key.name
            for key in checkpoint.tensors
            if key.role == "param" and key.name not in trained
        ),
        precision=_precision(checkpoint.origin.precision, config),
        optimizer=optimizer_name(config),
        steps=model.global_steps,
        skipped=model.fields.maybe(state_dict_keys.SKIPPED_STEPS, int),
        samples=model.fields.maybe(state_dict_keys.GLOBAL_SAMPLES, int),
        lr_scheduler=tree.get(state_dict_keys.LR_SCHEDULER),
        loss_scaler=loss_scaler_of(saved.tree),
        ds_config=config if isinstance(config, Mapping) and config else None,
        client=model.client_state,
        is_ordered=saved.tree.get(ORDER) != UNKNOWN,
    )


def _precision(recorded: DType | None, config: Any) -> DType | None:
    """Return the dtype that the run computes in. Return None for fp32 if there is no configuration,
    because then fp32 may be the dtype of the masters alone.
    """
    return recorded if recorded != FLOAT32 or config else None


def _scalars(checkpoint: Checkpoint, numbers: Mapping[Key, int | float]) -> Mapping[Key, Scalar]:
    """Return the numbers of each parameter, such as `step`, which may be stored as 0-d tensors or
    as plain numbers.
    """
    found: dict[Key, Tensor | Scalar] = {
        key: tensor
        for key, tensor in checkpoint.tensors.items()
        if not tensor.shape
        and key.role not in _NOT_STATE
        and not _is_scalar_parameter(checkpoint, key)
    }
    found |= {key: Scalar(value) for key, value in numbers.items()}
    return LazyScalars(found, partial(_number, checkpoint))


def _number(checkpoint: Checkpoint, key: Key, tensor: Tensor) -> Scalar:
    if not len(tensor.chunks):
        file = checkpoint.root / ZERO / key.name / f"{key.role}.pt"
        raise BadFile(
            f"{file} is missing, but other parameters have this file; copy or download it again"
        )
    return read_scalar(checkpoint.root, tensor)


def _is_scalar_parameter(checkpoint: Checkpoint, key: Key) -> bool:
    """Return whether the parameter of `key` is a 0-d tensor, which means that its moments are 0-d
    tensors too."""
    weight = checkpoint.tensors.get(Key(key.name, "param"))
    return key.role != "step" and weight is not None and not weight.shape


# Read `zero/optimizer_state.pt` of a universal checkpoint: param groups, loss scaler, counters.
#
# The file has one of three forms:
#
# - from `ds_to_universal` of stages 1 and 2: group i has the parameters of `param_shapes[i]`;
# - from `ds_to_universal` of stage 3: a copy of rank 0's whole optimizer file, in which a group lists
#   its sub-groups;
# - from `lay_out_universal`: `param_shapes` has the groups, and a key of the file has the order of
#   their parameters.
#
# Source: DeepSpeed `checkpoint/ds_to_universal.py`, `_save_optimizer_state`.

OPTIMIZER_STATE = f"{ZERO}/optimizer_state.pt"
ORDER, OPTIMIZERS, UNKNOWN = "param_shapes_order", "optimizer", "unknown"


@dataclass(frozen=True)
class UniversalState:
    """The content of `zero/optimizer_state.pt`.

    If the file does not exist, `file` is None and `tree` is empty. `shapes` has the parameter names
    from the model file's `param_shapes`, one tuple for each param group or, at stage 3, for each
    sub-group.
    """

    file: TorchFile | None
    tree: Mapping[str, Any]
    groups: tuple[ParamGroup, ...]
    shapes: tuple[tuple[str, ...], ...]

    def numbers(self) -> Iterator[tuple[Key, Tensor | int | float]]:
        """Yield (key, number) for each parameter of a sub-group and each number, such as `step`,
        that a stage-3 file stores for the sub-group.
        """
        inner = self.tree.get(state_dict_keys.STATE_DICT)
        states = inner.get(state_dict_keys.STATE) if isinstance(inner, Mapping) else None
        if self.file is None or not isinstance(states, Mapping) or is_ours(self.tree):
            return
        for number, state in states.items():
            names = self.shapes[number] if number in range(len(self.shapes)) else ()
            for role, value in state.items() if isinstance(state, Mapping) else ():
                stored = as_tensor(value)
                if stored is not None and stored.shape == ():
                    tensor = self.file.tensor(stored)
                    yield from ((Key(name, role), tensor) for name in names)
                elif isinstance(value, int | float):
                    yield from ((Key(name, role), value) for name in names)


def is_ours(tree: Mapping[str, Any]) -> bool:
    """Return whether `lay_out_universal` wrote the file."""
    return tree.get(ORDER) in (OPTIMIZERS, UNKNOWN)


def parse_state(directory: Path, model: ModelStates) -> UniversalState:
    """Return the content of `zero/optimizer_state.pt`, for the parameters that the model file
    lists.

    Raises:
        BadFile: the file is damaged.
    """
    shapes = tuple(tuple(group) for group in model.groups or ())
    if not (directory / OPTIMIZER_STATE).is_file():
        return UniversalState(None, {}, (), shapes)
    file = TorchFile.open(directory, OPTIMIZER_STATE)
    tree = file.tree if isinstance(file.tree, Mapping) else {}
    saved = tree.get(state_dict_keys.PARAM_GROUPS)
    groups = [group for group in saved or () if isinstance(group, Mapping)]
    named = _named(tree, groups, shapes, model)
    return UniversalState(
        file,
        tree,
        tuple(
            ParamGroup(names, state_dict_keys.options_of(group))
            for names, group in zip(named, groups, strict=False)
        ),
        shapes,
    )


def _named(
    tree: Mapping[str, Any],
    groups: list[Mapping[str, Any]],
    shapes: tuple[tuple[str, ...], ...],
    model: ModelStates,
) -> list[tuple[str, ...]]:
    if is_ours(tree):
        return list(shapes)
    if integer_of(tree.get(state_dict_keys.ZERO_STAGE)) == 3:
        return [_joined(group, shapes) for group in groups]
    if not _is_round_robin(tree, model):
        return list(shapes)
    ranks = model.data_parallel_size or 1
    return [
        tuple(
            name
            for _, name in sorted(zip(round_robin_order(len(names), ranks), names, strict=True))
        )
        for names in shapes
    ]


def _joined(group: Mapping[str, Any], shapes: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    members = [
        number for number in state_dict_keys.numbers_of(group) if number in range(len(shapes))
    ]
    return tuple(name for number in members for name in shapes[number])


def _is_round_robin(tree: Mapping[str, Any], model: ModelStates) -> bool:
    """Return whether a run of stage 1 or 2 uses round robin. BF16_Optimizer, which has no
    `zero_stage`, ignores the option."""
    is_flat = integer_of(tree.get(state_dict_keys.ZERO_STAGE)) in (1, 2)
    return is_flat and zero_optimization(model.ds_config).get(ROUND_ROBIN) is True


def misplaced_values(saved: UniversalState, model: ModelStates) -> Iterator[Problem]:
    """Yield a problem for each parameter with values that `ds_to_universal` may have stored under
    the name of another parameter.

    If the run used round robin, `ds_to_universal` wrongly assumes the optimizer's order. But with
    aligned parameters, DeepSpeed records their real positions, so the names are right.
    """
    aligned = saved.tree.get(state_dict_keys.ALIGNMENT_PADDINGS)
    if is_ours(saved.tree) or not _is_round_robin(saved.tree, model):
        return
    if isinstance(aligned, list) and any(isinstance(part, list) and any(part) for part in aligned):
        return
    ranks = model.data_parallel_size or 1
    for names in saved.shapes:
        if round_robin_order(len(names), ranks) == list(range(len(names))):
            continue
        for name in names:
            yield Problem(
                f"{model.file.root / ZERO / name} was made by ds_to_universal from a run with "
                f"{ROUND_ROBIN}, but ds_to_universal swaps the weights of such runs; convert the "
                "original checkpoint",
                f"{ZERO}/{name}/fp32.pt",
                name,
            )

"""Read the training state of a universal checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import FLOAT32, DType
from zerotools.core.errors import BadFile
from zerotools.core.training_state import Scalar, TrainingState
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.ds_config import optimizer_name
from zerotools.formats.deepspeed.schema.loss_scaler import loss_scaler_of
from zerotools.formats.deepspeed.schema.tag_file_names import ZERO
from zerotools.formats.deepspeed.universal.kept_for_writer import native_of
from zerotools.formats.deepspeed.universal.optimizer_state import (
    OPTIMIZER_STATE,
    ORDER,
    UNKNOWN,
)
from zerotools.io.numeric.scalar_tensors import LazyScalars, read_scalar

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

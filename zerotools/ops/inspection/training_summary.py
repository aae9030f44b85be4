"""A summary of a checkpoint: the training state of its run, and the parameters, dtypes and bytes of
its tensors. A value is None if the files do not record it. No tensor data is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import count
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Opaque, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.target import optimizer_roles
from zerotools.core.training_state import LossScale, ParamGroup, TrainingState

_DEEPEST = 8
_MOST_TREES = 10_000


@dataclass(frozen=True)
class CheckpointSummary:
    """The training state of a checkpoint, and the sizes of its tensors.

    Attributes:
        parameters, trainable, frozen: numbers of elements. Tied weights are counted once.
        shared: the number of elements with more than one name (tied weights).
        states: the kinds of optimizer tensors, such as exp_avg.
        group_elements: the number of elements in each param group; None if unknown.
    """

    training: TrainingState
    parameters: int
    trainable: int | None
    frozen: int | None
    shared: int
    weights_dtype: str | None
    masters_dtype: str | None
    states: tuple[str, ...]
    group_elements: tuple[int | None, ...]

    @property
    def has_optimizer(self) -> bool:
        """True if the checkpoint records anything about an optimizer."""
        return bool(self.states or self.training.optimizer or self.training.optimizer_wrapper)


def summarize(checkpoint: Checkpoint, training: TrainingState) -> CheckpointSummary:
    """Return the summary of a checkpoint with the training state `training`."""
    weights = _weights(checkpoint)
    parameters = {name: t for name, t in weights.items() if name not in training.buffers}
    trained = _trained(parameters, training) or None
    frozen = _frozen(parameters, training)
    states = tuple(sorted(optimizer_roles(checkpoint)))
    copies = _most(checkpoint, "param16", None)
    stored = _most(checkpoint, "param", trained)
    computes = training.precision or copies or stored
    is_updated = bool(states or training.optimizer or training.optimizer_wrapper or copies)
    return CheckpointSummary(
        training,
        parameters=_elements(parameters, parameters),
        trainable=None if trained is None else _elements(parameters, trained),
        frozen=None if frozen is None else _elements(parameters, frozen),
        shared=_elements(weights, checkpoint.aliases.values()),
        weights_dtype=computes.name if computes else None,
        masters_dtype=stored.name if stored and is_updated else None,
        states=states,
        group_elements=tuple(_of_group(parameters, training, g) for g in training.groups),
    )


def _weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return every weight keyed by name: its fp32 master, or its 16-bit copy if it has no
    master."""
    found: dict[str, Tensor] = {}
    for role in ("param16", "param"):
        found |= {key.name: t for key, t in checkpoint.tensors.items() if key.role == role}
    return found


def frozen_weights(checkpoint: Checkpoint, training: TrainingState) -> set[str] | None:
    """Return the names of the parameters that the run did not train. Return None if the checkpoint
    does not record which were trained.
    """
    return _frozen(_weights(checkpoint).keys() - training.buffers, training)


def _trained(parameters: Iterable[str], training: TrainingState) -> set[str]:
    grouped = {name for group in training.groups for name in group.params}
    return grouped.intersection(parameters)


def _frozen(parameters: Iterable[str], training: TrainingState) -> set[str] | None:
    trained = _trained(parameters, training)
    others = set(parameters) - trained
    return others if trained and (training.knows_frozen or not others) else None


def _elements(weights: Mapping[str, Tensor], names: Iterable[str]) -> int:
    return sum(weights[name].numel for name in names if name in weights)


def _of_group(
    parameters: Mapping[str, Tensor], training: TrainingState, group: ParamGroup
) -> int | None:
    is_named = not any(name in training.unnamed for name in group.params)
    return _elements(parameters, set(group.params)) if is_named else None


def _most(checkpoint: Checkpoint, role: str, names: Set[str] | None) -> DType | None:
    """Return the floating-point dtype with the most bytes among the tensors of a role, or None.
    `names` restricts the tensors."""
    sizes: dict[DType, int] = {}
    for key, tensor in checkpoint.tensors.items():
        if key.role == role and tensor.dtype.is_float and (names is None or key.name in names):
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    return max(sizes, key=sizes.__getitem__, default=None)


def training_to_json(run: CheckpointSummary) -> dict[str, Any]:
    """Return the part of the output of `zerotools inspect --json` that describes the training."""
    training = run.training
    return {
        "trainable_parameters": run.trainable,
        "frozen_parameters": run.frozen,
        "shared_parameters": run.shared,
        "weights_dtype": run.weights_dtype,
        "masters_dtype": run.masters_dtype,
        "optimizer": {
            "name": training.optimizer,
            "class": training.optimizer_wrapper,
            "states": list(run.states),
        }
        if run.has_optimizer
        else None,
        "param_groups": [
            {
                "params": [training.unnamed.get(name, name) for name in group.params],
                "elements": elements,
                "hyperparameters": json_value(group.options),
            }
            for group, elements in zip(training.groups, run.group_elements, strict=True)
        ]
        or None,
        "lr_scheduler": json_value(training.lr_scheduler),
        "loss_scaler": scaler_to_json(training.loss_scaler),
        "skipped_steps": training.skipped,
    }


def scaler_to_json(scaler: LossScale | None) -> dict[str, Any] | None:
    """Return the loss scaler's numbers, keyed by name; None if `scaler` is None."""
    if scaler is None:
        return None
    saved_as = {} if scaler.saved_as is None else {"class": scaler.saved_as}
    numbers = {"cur_scale": scaler.scale, "dynamic": scaler.dynamic, **scaler.options}
    return saved_as | {str(name): json_value(value) for name, value in numbers.items()}


def json_value(value: Any) -> Any:
    """Return `value` in a form that JSON can hold. Values without such a form become a description
    in angle brackets. So do deeply nested values and all values after a maximum number, because a
    small pickle can contain one object very many times."""
    return _plain(value, 0, count())


def _plain(value: Any, depth: int, parts: Iterator[int]) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Opaque):
        return f"<{value.module}.{value.name}>"
    if depth < _DEEPEST and isinstance(value, Mapping | list | tuple) and next(parts) < _MOST_TREES:
        if isinstance(value, Mapping):
            return {str(key): _plain(part, depth + 1, parts) for key, part in value.items()}
        return [_plain(part, depth + 1, parts) for part in value]
    return f"<{type(value).__name__}>"

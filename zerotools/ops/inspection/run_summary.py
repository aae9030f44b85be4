"""What a checkpoint says about the training around its tensors: what was trained, in which type,
by which optimizer. None means that the files do not say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zerotools.core.checkpoint import Checkpoint, Opaque, Tensor
from zerotools.core.dtypes import DType

if TYPE_CHECKING:
    from zerotools.runs.record import JobRecord

WEIGHT_ROLES = ("param", "param16", "buffer")
_PRECISIONS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
_NOT_HYPERPARAMETERS = ("params", "param_names", "state")
_DEEPEST = 8


@dataclass(frozen=True)
class ParamGroupSummary:
    """`params` are names, or torch's numbers where the file has no names. `elements` counts the
    named ones."""

    params: tuple[str | int, ...]
    elements: int | None
    hyperparameters: Mapping[str, Any]


@dataclass(frozen=True)
class OptimizerSummary:
    """`name` is the optimizer itself, `wrapper` the class of the framework around it. `states` are
    the roles of its tensors."""

    name: str | None
    wrapper: str | None
    states: tuple[str, ...]


@dataclass(frozen=True)
class TrainingSummary:
    """Counts are elements, tied weights counted once; `shared` are the elements of tied names that
    are not counted again."""

    trainable: int | None
    frozen: int | None
    shared: int
    weights_dtype: str | None
    masters_dtype: str | None
    param_groups: tuple[ParamGroupSummary, ...] | None
    optimizer: OptimizerSummary | None
    loss_scaler: Mapping[str, Any] | None
    skipped_steps: int | None


def parameters_of(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Every parameter once: its master, or its 16-bit weight where there is no master."""
    found: dict[str, Tensor] = {}
    for role in ("param16", "param"):
        found |= {key.name: t for key, t in checkpoint.tensors.items() if key.role == role}
    return found


def training_of(checkpoint: Checkpoint) -> TrainingSummary:
    """Put together what the readers found. No tensor data is read."""
    parameters = parameters_of(checkpoint)
    groups = _groups(checkpoint, parameters)
    trained = _trained(checkpoint, parameters, groups)
    optimizer = _optimizer(checkpoint)
    weights, masters = _dtypes(checkpoint, trained, has_optimizer=optimizer is not None)
    return TrainingSummary(
        trainable=None if trained is None else _elements(parameters, trained),
        frozen=None if trained is None else _elements(parameters, parameters.keys() - trained),
        shared=sum(
            parameters[name].numel for name in checkpoint.aliases.values() if name in parameters
        ),
        weights_dtype=weights,
        masters_dtype=masters,
        param_groups=groups,
        optimizer=optimizer,
        loss_scaler=_loss_scaler(checkpoint),
        skipped_steps=_skipped_steps(checkpoint),
    )


def _elements(parameters: Mapping[str, Tensor], names: Set[str]) -> int:
    return sum(parameters[name].numel for name in names if name in parameters)


def _state(checkpoint: Checkpoint, name: str) -> Any:
    """A value beside the tensors. The values of a DCP are files of their own: they stay closed."""
    return checkpoint.state.get(name) if isinstance(checkpoint.state, dict) else None


def _job(checkpoint: Checkpoint) -> JobRecord | None:
    record = checkpoint.origin.details.get("job")
    if record is None:
        return None
    from zerotools.runs.record import JobRecord  # only for a job's DCP

    return record if isinstance(record, JobRecord) else None


def _loss_scaler(checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    record = _job(checkpoint)
    if record is None:
        return _table(_state(checkpoint, "loss_scaler"))
    saved = record.loss_scale
    if saved is None:
        return None
    return {"cur_scale": saved.cur_scale, "dynamic": saved.dynamic, **saved.options()}


def _skipped_steps(checkpoint: Checkpoint) -> int | None:
    record = _job(checkpoint)
    saved = _state(checkpoint, "skipped_steps") if record is None else record.skipped_steps
    return _count(saved)


def _groups(
    checkpoint: Checkpoint, parameters: Mapping[str, Tensor]
) -> tuple[ParamGroupSummary, ...] | None:
    record = _job(checkpoint)
    if record is not None:
        return tuple(
            ParamGroupSummary(
                group.params,
                _elements(parameters, set(group.params)),
                plain(group.options()),
            )
            for group in record.optimizer.groups
        )
    saved = _state(checkpoint, "param_groups")
    if not isinstance(saved, list):
        return None
    return tuple(_group(group, parameters) for group in saved if isinstance(group, Mapping))


def _group(saved: Mapping[Any, Any], parameters: Mapping[str, Tensor]) -> ParamGroupSummary:
    lists = (saved.get(key) for key in ("param_names", "params"))
    names: list[Any] = next((each for each in lists if isinstance(each, list)), [])
    members = tuple(name for name in names if isinstance(name, str | int))
    named = {name for name in members if isinstance(name, str)}
    return ParamGroupSummary(
        members,
        _elements(parameters, named) if len(named) == len(members) else None,
        {str(k): plain(v) for k, v in saved.items() if k not in _NOT_HYPERPARAMETERS},
    )


def _trained(
    checkpoint: Checkpoint,
    parameters: Mapping[str, Tensor],
    groups: Sequence[ParamGroupSummary] | None,
) -> Set[str] | None:
    """The parameters that an optimizer had, by the groups' names or by DCP's flat keys."""
    named = {name for group in groups or () for name in group.params if isinstance(name, str)}
    if not named and not isinstance(checkpoint.state, dict):
        named = set(_names_in_keys(checkpoint.state))
    named = {checkpoint.aliases.get(name, name) for name in named}
    return named & parameters.keys() or None


def _names_in_keys(keys: Mapping[str, Any]) -> Iterator[str]:
    """DCP flattens param groups to `optimizer.param_groups.<name>.<hyperparameter>`."""
    for key in keys:
        _, found, rest = key.partition("param_groups.")
        if found:
            yield rest.rpartition(".")[0]


def _optimizer(checkpoint: Checkpoint) -> OptimizerSummary | None:
    states = dict.fromkeys(key.role for key in checkpoint.tensors if key.role not in WEIGHT_ROLES)
    record = _job(checkpoint)
    wrapper = checkpoint.origin.details.get("optimizer_class")
    name = record.optimizer.name if record is not None else _configured(checkpoint)
    if not states and wrapper is None and name is None:
        return None
    return OptimizerSummary(name, wrapper, tuple(sorted(states)))


def _configured(checkpoint: Checkpoint) -> str | None:
    """The type in a DeepSpeed configuration; a client's own optimizer is not in it."""
    config = _state(checkpoint, "ds_config")
    section = config.get("optimizer") if isinstance(config, Mapping) else None
    kind = section.get("type") if isinstance(section, Mapping) else None
    return kind if isinstance(kind, str) else None


def _dtypes(
    checkpoint: Checkpoint, trained: Set[str] | None, *, has_optimizer: bool
) -> tuple[str | None, str | None]:
    """The types of the weights that the model computes with, and of what the optimizer updates."""
    stored = _most(checkpoint, "param", trained)
    copies = _most(checkpoint, "param16", None)
    precision = _PRECISIONS.get(str(checkpoint.origin.details.get("precision")))
    weights = copies.name if copies is not None else precision
    if weights is None and stored is not None:
        weights = stored.name
    masters = stored.name if stored is not None and (has_optimizer or copies is not None) else None
    return weights, masters


def _most(checkpoint: Checkpoint, role: str, names: Set[str] | None) -> DType | None:
    """The floating-point type that most bytes of a role are in."""
    sizes: dict[DType, int] = {}
    for key, tensor in checkpoint.tensors.items():
        if key.role == role and tensor.dtype.is_float and (names is None or key.name in names):
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    return max(sizes, key=sizes.__getitem__, default=None)


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def _table(value: Any) -> Mapping[str, Any] | None:
    return plain(value) if isinstance(value, Mapping) else None


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON can hold it; what is not a plain value is described in angle brackets."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Opaque):
        return f"<{value.module}.{value.name}>"
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {str(key): plain(part, depth + 1) for key, part in value.items()}
    if depth < _DEEPEST and isinstance(value, list | tuple):
        return [plain(part, depth + 1) for part in value]
    return f"<{type(value).__name__}>"

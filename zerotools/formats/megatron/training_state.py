"""Read the training state of a Megatron checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.training_state import LossScale, ParamGroup, Scalar, TrainingState
from zerotools.formats.megatron.training_metadata import (
    Group,
    MegatronNative,
    fitting_groups,
    groups_in,
    native_of,
)
from zerotools.formats.torch_optimizers import STATE_ROLE, WEIGHT_ROLES, optimizer_of, scalars_of
from zerotools.io.numeric.scalar_tensors import read_scalar
from zerotools.io.torchzip.pickle_values import StoredTensor

_OF_RUN = ("args", "checkpoint_version", "content_metadata")


def training_of(checkpoint: Checkpoint) -> TrainingState:
    """Return the param groups, formed according to Megatron's rule
    (`training_metadata.fitting_groups`), the step of each parameter, and the counters.

    Raises:
        BadFile: a number of the optimizer state, such as `step`, is missing from the files.
    """
    native = native_of(checkpoint)
    facts = native.facts
    listed = native.groups()
    groups, steps = (listed, {}) if listed else _groups(checkpoint, native)
    args = facts.args
    client = {name: facts.tree[name] for name in _OF_RUN if name in facts.tree and name != "args"}
    if args:
        client["args"] = dict(args)
    word = args.get("optimizer")
    return TrainingState(
        groups=groups,
        scalars=scalars_of(
            checkpoint, {Key(name, "step"): Scalar(value) for name, value in steps.items()}
        ),
        precision=facts.precision,
        optimizer=optimizer_of(groups) or (word if isinstance(word, str) and groups else None),
        steps=checkpoint.origin.step,
        samples=facts.count("consumed_train_samples"),
        lr_scheduler=facts.tree.get("opt_param_scheduler"),
        loss_scaler=_loss_scaler(native),
        client=client,
        is_ordered=False,
        knows_frozen=False,
    )


def _groups(
    checkpoint: Checkpoint, native: MegatronNative
) -> tuple[tuple[ParamGroup, ...], dict[str, int | float]]:
    """Return the param groups, and the step of each parameter with state."""
    trained = {
        key.name: tensor.shape
        for key, tensor in checkpoint.tensors.items()
        if key.role not in (*WEIGHT_ROLES, STATE_ROLE)
    }
    found = [
        (group, _step(native, optimizer, group))
        for optimizer in native.optimizers
        for group in groups_in(optimizer)
    ]
    members: list[list[str]] = [[] for _ in found]
    groups = [group for group, _ in found]
    for name, shape in trained.items():
        fits = list(fitting_groups(name, shape, groups, native.facts.args))
        if len(fits) != 1:
            return (), _common_step(found, trained)
        members[fits[0]].append(name)
    steps = {
        name: step
        for names, (_, step) in zip(members, found, strict=True)
        for name in names
        if step is not None
    }
    return tuple(
        ParamGroup(tuple(names), {k: v for k, v in group.items() if k not in ("params", "step")})
        for names, group in zip(members, groups, strict=True)
        if names
    ), steps


def _common_step(
    found: Sequence[tuple[Group, int | float | None]], trained: Mapping[str, Any]
) -> dict[str, int | float]:
    """Return {parameter: step} if all param groups have the same step, else an empty dict. Used if
    it is unknown which group a parameter belongs to.
    """
    steps = {step for _, step in found}
    step = steps.pop() if len(steps) == 1 else None
    return {} if step is None else dict.fromkeys(trained, step)


def _step(native: MegatronNative, optimizer: Mapping[Any, Any], group: Group) -> int | float | None:
    step = group.get("step")
    if step is None:
        inner = optimizer.get("optimizer", optimizer)
        state = inner.get("state") if isinstance(inner, Mapping) else None
        step = _step_of(state) if isinstance(state, Mapping) else None
    if isinstance(step, StoredTensor) and native.file is not None:
        step = read_scalar(native.file.root, native.file.tensor(step)).value
    return step if isinstance(step, int | float) and not isinstance(step, bool) else None


def _step_of(state: Mapping[Any, Any]) -> Any:
    """Return the step that an optimizer records: the common step of all parameters or, without it,
    the step of the first parameter.
    """
    if "common_step" in state:
        return state["common_step"]
    first = next((each for number, each in state.items() if type(number) is int), None)
    return first.get("step") if isinstance(first, Mapping) else None


def _loss_scaler(native: MegatronNative) -> LossScale | None:
    saved = next((each["grad_scaler"] for each in native.optimizers if "grad_scaler" in each), None)
    if not isinstance(saved, Mapping) or native.file is None:
        return None
    scale = saved.get("scale")
    if isinstance(scale, StoredTensor):
        scale = read_scalar(native.file.root, native.file.tensor(scale)).value
    if not isinstance(scale, int | float) or isinstance(scale, bool):
        return None
    return LossScale(float(scale), dynamic="growth_tracker" in saved)

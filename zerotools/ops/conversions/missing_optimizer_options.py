"""Add values that an optimizer needs to resume and that a checkpoint may lack: param groups, lr,
betas.

Each value comes from the first of these sources that has it: the param groups of the checkpoint,
the command line, `optimizer.params` of a DeepSpeed configuration. If a checkpoint has no param
groups, all trained parameters become one group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest
from zerotools.core.target import LOOSE, WEIGHTS, optimizer_roles
from zerotools.core.training_state import ParamGroup, TrainingState
from zerotools.formats.format import option_flag

NAMES = ("lr", "betas", "eps", "weight_decay", "momentum")
# Options of torch's optimizers that a DeepSpeed configuration may have.
# The state that every optimizer with the option keeps once it has stepped.
_STATE_OF = {"betas": "exp_avg", "momentum": "momentum_buffer"}
_CONFIGURED = (*NAMES, "dampening", "nesterov", "alpha", "centered", "amsgrad", "lr_decay")


@dataclass(frozen=True)
class RequestedHyperparameters:
    """The hyperparameters that the user or a DeepSpeed configuration gives.

    Attributes:
        flags: the values that were given on the command line.
        options: the values from the command line and the configuration, keyed by name.
        order: the trained parameters in the order of the optimizer.
    """

    flags: Mapping[str, Any]
    options: Mapping[str, Any]
    order: Sequence[str] | None = None

    @classmethod
    def of(
        cls, asked: Mapping[str, Any], config: Any, order: Sequence[str] | None = None
    ) -> RequestedHyperparameters:
        """Return the hyperparameters from the options of the command (`asked`) and from a DeepSpeed
        configuration. An option wins over the configuration.

        Raises:
            BadRequest: a value is not possible, or contradicts a configuration that the user gave
                too.
        """
        flags = {name: asked[name] for name in NAMES if name in asked}
        for name, value in flags.items():
            _check(name, value)
            if "ds_config" in asked and _configured(config).get(name, value) != value:
                raise BadRequest(
                    f"{option_flag(name)} contradicts the configuration, which has "
                    f"{_configured(config)[name]}; leave one of them out"
                )
        return cls(flags, {**_configured(config), **flags}, order)


def _check(name: str, value: Any) -> None:
    """Raise BadRequest for a value that no optimizer takes."""
    parts = value if isinstance(value, tuple) else (value,)
    most = 1.0 if name in ("betas", "momentum") else math.inf
    if not all(0 <= part < most for part in parts):
        said = " ".join(map(str, parts))
        upto = "from 0 to below 1" if most == 1 else "0 or more, and finite"
        raise BadRequest(f"{option_flag(name)} is {said} and must be {upto}")


def with_missing_options(
    source: Checkpoint,
    training: TrainingState,
    given: RequestedHyperparameters,
) -> tuple[TrainingState, list[str]]:
    """Return `training` with the missing options of every param group added, and notes on them.

    Raises:
        BadRequest: the user gave a value that every group already has, an option of another
            optimizer, or an order that does not fit the parameters.
    """
    _refuse_option_of_other_optimizer(source, given)
    if not training.groups:
        return _one_group(source, training, given)
    path = source.origin.path
    if given.order is not None:
        training = _ordered(source, training, given.order)
    for name in given.flags:
        if all(name in group.options for group in training.groups):
            raise BadRequest(
                f"{path} has {name} in its param groups; leave {option_flag(name)} out"
            )
    groups = tuple(
        replace(group, options={**given.options, **group.options}) for group in training.groups
    )
    lacked = {name for group in training.groups for name in given.options.keys() - group.options}
    said = (
        "the checkpoint lacks these options of the param groups, so the command line or the config "
        f"sets them: {', '.join(sorted(lacked))}"
    )
    return replace(training, groups=groups), [said] if lacked else []


def _refuse_option_of_other_optimizer(source: Checkpoint, given: RequestedHyperparameters) -> None:
    roles = optimizer_roles(source)
    for name, role in _STATE_OF.items():
        if roles and name in given.flags and role not in roles:
            raise BadRequest(
                f"the optimizer of {source.origin.path} keeps {', '.join(roles)}, and one with "
                f"{name} would keep {role}; leave {option_flag(name)} out"
            )


def _ordered(source: Checkpoint, training: TrainingState, order: Sequence[str]) -> TrainingState:
    """Return `training` with the parameters of each group in the given order."""
    path = source.origin.path
    if training.is_ordered:
        raise BadRequest(f"{path} already has param groups with an order; leave --order out")
    places = {name: place for place, name in enumerate(_checked(source, order))}
    unplaced = [name for group in training.groups for name in group.params if name not in places]
    if unplaced:
        raise BadRequest(f"--order lacks {unplaced[0]}, which a param group of {path} has; add it")
    groups = (
        replace(group, params=tuple(sorted(group.params, key=places.__getitem__)))
        for group in training.groups
    )
    return replace(training, groups=tuple(groups), is_ordered=True)


def _configured(config: Any) -> dict[str, Any]:
    """Return the hyperparameters in a DeepSpeed configuration, without values "auto"."""
    section = config.get("optimizer") if isinstance(config, Mapping) else None
    params = section.get("params") if isinstance(section, Mapping) else None
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in (params.items() if isinstance(params, Mapping) else ())
        if name in _CONFIGURED and value != "auto"
    }


def _one_group(
    source: Checkpoint,
    training: TrainingState,
    given: RequestedHyperparameters,
) -> tuple[TrainingState, list[str]]:
    """Return `training` with one group of all trained parameters, and a note. Without a known
    learning rate, return `training` unchanged.

    If no order was given, the order counts as unknown, because programs may sort the names in a
    file.
    """
    if "lr" not in given.options:
        return training, []
    names = trained_parameters(source, training)
    ordered = names if given.order is None else _checked(source, given.order)
    group = ParamGroup(tuple(ordered), dict(given.options))
    said = (
        f"all {len(group.params)} trained parameters are one param group, because no file records "
        "their groups"
    )
    return replace(training, groups=(group,), is_ordered=given.order is not None), [said]


def _checked(source: Checkpoint, order: Sequence[str]) -> list[str]:
    """Return the canonical names of the parameters in `order`, without duplicates. Raise BadRequest
    for an unknown name."""
    weights = {key.name for key in source.tensors if key.role == "param"}
    names = [source.aliases.get(name, name) for name in order]
    unknown = [name for name in names if name not in weights]
    if unknown:
        raise BadRequest(
            f"--order has {unknown[0]}, which is not a parameter of {source.origin.path}; remove it"
        )
    return list(dict.fromkeys(names))


def trained_parameters(source: Checkpoint, training: TrainingState) -> list[str]:
    """Return the parameters that the optimizer updates, in the source's order.

    These are the parameters with optimizer state. If none has any, they are all floating-point
    parameters that are not known to be frozen.
    """
    weights = [key.name for key in source.tensors if key.role == "param"]
    stateful = set(_stateful([*source.tensors, *training.scalars]))
    if stateful:
        return [name for name in weights if name in stateful]
    floats = {key.name for key, tensor in source.tensors.items() if tensor.dtype.is_float}
    return [name for name in weights if name in floats and name not in training.frozen]


def _stateful(keys: Iterable[tuple[str, str]]) -> Iterable[str]:
    return (name for name, role in keys if role not in (*WEIGHTS, "param16", LOOSE))

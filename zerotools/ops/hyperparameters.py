"""What an optimizer needs to go on and a checkpoint may not say: lr, betas and the like.

They come from the checkpoint's own param groups; where those lack one, from the command line, else
from the `optimizer.params` of a DeepSpeed configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.dropping import LOOSE, WEIGHTS
from zerotools.core.errors import BadRequest
from zerotools.core.training import Group, TrainingState


def completed(
    source: Checkpoint, training: TrainingState, given: Mapping[str, Any], config: Any
) -> tuple[TrainingState, list[str]]:
    """`training` with every group's lacking options, and what to say about it.

    Without any groups, all trained parameters become one, where the options have a learning rate.
    `given` are the user's, `config` a DeepSpeed configuration.

    Raises:
        BadRequest: a given option that every group has.
    """
    known = {**_configured(config), **given}
    if not training.groups:
        return _one_group(source, training, known) if "lr" in known else (training, [])
    for name in given:
        if all(name in group.options for group in training.groups):
            raise BadRequest(
                f"{source.origin.path} has {name} in its param groups: leave {flag(name)} out"
            )
    groups = tuple(replace(group, options={**known, **group.options}) for group in training.groups)
    return replace(training, groups=groups), []


def flag(name: str) -> str:
    """The option of the command line for a hyperparameter."""
    return f"--{name.replace('_', '-')}"


def _configured(config: Any) -> dict[str, Any]:
    """Hyperparameters in a DeepSpeed configuration; "auto" is none."""
    section = config.get("optimizer") if isinstance(config, Mapping) else None
    params = section.get("params") if isinstance(section, Mapping) else None
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in (params.items() if isinstance(params, Mapping) else ())
        if name in ("lr", "betas", "eps", "weight_decay") and value != "auto"
    }


def _one_group(
    source: Checkpoint, training: TrainingState, options: Mapping[str, Any]
) -> tuple[TrainingState, list[str]]:
    names = trained(source, training)
    group = Group(tuple(names), dict(options))
    said = f"all {len(names)} trained parameters are one param group, as nothing says more"
    return replace(training, groups=(group,)), [said]


def trained(source: Checkpoint, training: TrainingState) -> list[str]:
    """The parameters that an optimizer has, in the source's order: those with state, else all of
    floating point that are not known to be frozen."""
    weights = [key.name for key in source.tensors if key.role == "param"]
    stateful = set(_stateful([*source.tensors, *training.scalars]))
    if stateful:
        return [name for name in weights if name in stateful]
    floats = {key.name for key, tensor in source.tensors.items() if tensor.dtype.is_float}
    return [name for name in weights if name in floats and name not in training.frozen]


def _stateful(keys: Iterable[tuple[str, str]]) -> Iterable[str]:
    return (name for name, role in keys if role not in (*WEIGHTS, "param16", LOOSE))

"""What torch files say of the run beside their tensors: a torch optimizer's groups, above all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import named
from zerotools.core.training import LossScale, ParamGroup, Scalar, TrainingState
from zerotools.formats.torch_optimizers import (
    WEIGHT_ROLES,
    optimizer_of,
    scalars_of,
    trained_precision,
    weights_dtype,
)
from zerotools.formats.torchfile.schema.opened_file import NUMBERED
from zerotools.formats.torchfile.schema.state_dict import STATE_ROLE
from zerotools.formats.torchfile.schema.training_keys import (
    CLIENT,
    FROZEN,
    LOSS_SCALE,
    MARK,
    OPTIMIZER,
    PRECISION,
    SAMPLES,
    SCHEDULER,
    SKIPPED,
    STEPS,
    VERSION,
)

_SCHEDULERS = (SCHEDULER, "lr_schedulers", "scheduler")
_OWN = ("param_groups", "optimizer", *_SCHEDULERS)
_NOT_OPTIONS = ("params", "param_names")


def training_of(checkpoint: Checkpoint) -> TrainingState:
    """Param groups and numbers by the names of the weights; where nothing says which parameter a
    number stands for, it is `optimizer.state.<number>`, as its tensors are called.

    Raises:
        BadFile: a number is in no file.
    """
    state = checkpoint.state
    groups = tuple(_groups(checkpoint))
    trained = any(key.role not in (*WEIGHT_ROLES, STATE_ROLE) for key in checkpoint.tensors)
    found = TrainingState(
        groups=groups,
        scalars={**scalars_of(checkpoint), **_plain_scalars(checkpoint)},
        precision=(trained_precision if trained else weights_dtype)(checkpoint),
        optimizer=optimizer_of(groups),
        lr_scheduler=next((state[name] for name in _SCHEDULERS if name in state), None),
        client={key: value for key, value in state.items() if key not in _OWN},
    )
    return _said(found, state) if state.get(MARK) == VERSION else found


def _said(found: TrainingState, state: Mapping[str, Any]) -> TrainingState:
    """With what `lay_out_training` writes beside model and optimizer."""
    frozen, precision, client = (state.get(key) for key in (FROZEN, PRECISION, CLIENT))
    name = state.get(OPTIMIZER)
    return replace(
        found,
        frozen=frozenset(map(str, frozen)) if isinstance(frozen, list) else frozenset(),
        precision=named(precision) if isinstance(precision, str) else found.precision,
        optimizer=name if isinstance(name, str) else None,
        steps=_count(state.get(STEPS)),
        skipped=_count(state.get(SKIPPED)),
        samples=_count(state.get(SAMPLES)),
        loss_scale=_loss_scale(state.get(LOSS_SCALE)),
        client=client if isinstance(client, Mapping) else {},
    )


def _loss_scale(saved: Any) -> LossScale | None:
    if not isinstance(saved, Mapping):
        return None
    options = {str(key): value for key, value in saved.items()}
    scale, dynamic = options.pop("scale", None), options.pop("dynamic", None)
    if not isinstance(scale, int | float):
        return None
    return LossScale(float(scale), dynamic is True, options)


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def _groups(checkpoint: Checkpoint) -> Iterator[ParamGroup]:
    saved = checkpoint.state.get("param_groups")
    for group in saved if isinstance(saved, list) else ():
        if isinstance(group, Mapping):
            members = group.get("params")
            names = members if isinstance(members, list) else []
            yield ParamGroup(
                tuple(_name(checkpoint, n) for n in names if type(n) in (int, str)),
                {str(k): v for k, v in group.items() if k not in _NOT_OPTIONS},
            )


def _name(checkpoint: Checkpoint, member: int | str) -> str:
    if isinstance(member, str):
        return checkpoint.aliases.get(member, member)
    numbered: Mapping[int, str] = checkpoint.origin.details.get(NUMBERED, {})
    return numbered.get(member, f"optimizer.state.{member}")


def _plain_scalars(checkpoint: Checkpoint) -> dict[Key, Scalar]:
    """The numbers that are not tensors (torch before 1.12 counted steps so)."""
    saved = checkpoint.state.get("optimizer")
    found: dict[Key, Scalar] = {}
    for parameter, entry in (saved if isinstance(saved, Mapping) else {}).items():
        for role, value in (entry if isinstance(entry, Mapping) else {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                member = int(parameter) if str(parameter).isdecimal() else str(parameter)
                found[Key(_name(checkpoint, member), str(role))] = Scalar(value)
    return found

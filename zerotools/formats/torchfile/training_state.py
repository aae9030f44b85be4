"""Read the training state of torch files, mainly the param groups of a torch optimizer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import dtype_named
from zerotools.core.training_state import (
    LARGEST_SCALE,
    LossScale,
    ParamGroup,
    Scalar,
    TrainingState,
    trained_precision,
    weights_dtype,
)
from zerotools.formats.torch_optimizers import WEIGHT_ROLES, optimizer_of, scalars_of
from zerotools.formats.torchfile.open_torch_file import TorchFileNative, numbered_name
from zerotools.formats.torchfile.sort_state_dict import STATE_ROLE

# Keys of the training file `checkpoint.pt`, besides `model` and `optimizer`.
#
# If `MARK` has the value `VERSION`, zerotools wrote the file. Keys without a known value are left
# out. `BUFFER_NAMES` is also a key of DeepSpeed's model files.

BUFFER_NAMES = "buffer_names"
MARK, VERSION = "written_as", "zerotools.training/1"
FROZEN, PRECISION, OPTIMIZER = "frozen_names", "precision", "optimizer_name"
STEPS, SKIPPED, SAMPLES = "steps", "skipped_steps", "samples"
LOSS_SCALE, SCHEDULER, CLIENT = "loss_scale", "lr_scheduler", "client"

_SCHEDULERS = (SCHEDULER, "lr_schedulers", "scheduler")
_OWN = ("param_groups", "optimizer", *_SCHEDULERS)
_NUMBER = re.compile(r"[0-9]{1,9}")
_NOT_OPTIONS = ("params", "param_names")


def training_of(checkpoint: Checkpoint) -> TrainingState:
    """Return the training state.

    Param groups, and numbers such as `step`, use the names of the weights. A parameter with an
    unknown name is called `optimizer.state.<number>`, like the tensors of its state.
    """
    state = checkpoint.state
    groups, unnamed = _groups(checkpoint)
    trained = any(key.role not in (*WEIGHT_ROLES, STATE_ROLE) for key in checkpoint.tensors)
    found = TrainingState(
        groups=groups,
        scalars=scalars_of(checkpoint, _plain_scalars(checkpoint)),
        precision=(trained_precision if trained else weights_dtype)(checkpoint),
        optimizer=optimizer_of(groups),
        lr_scheduler=next((state[name] for name in _SCHEDULERS if name in state), None),
        client={key: value for key, value in state.items() if key not in _OWN},
        unnamed=unnamed,
        knows_frozen=BUFFER_NAMES in state,
    )
    return _with_own_values(found, state) if state.get(MARK) == VERSION else found


def _with_own_values(found: TrainingState, state: Mapping[str, Any]) -> TrainingState:
    """Return the training state `found`, completed with the values that `lay_out_training_file`
    writes next to the model and the optimizer.
    """
    frozen, precision, client = (state.get(key) for key in (FROZEN, PRECISION, CLIENT))
    name = state.get(OPTIMIZER)
    return replace(
        found,
        frozen=frozenset(map(str, frozen)) if isinstance(frozen, list) else frozenset(),
        precision=dtype_named(precision) if isinstance(precision, str) else found.precision,
        optimizer=name if isinstance(name, str) else None,
        steps=_count(state.get(STEPS)),
        skipped=_count(state.get(SKIPPED)),
        samples=_count(state.get(SAMPLES)),
        loss_scaler=_loss_scaler(state.get(LOSS_SCALE)),
        client=client if isinstance(client, Mapping) else {},
    )


def _loss_scaler(saved: Any) -> LossScale | None:
    if not isinstance(saved, Mapping):
        return None
    options = {str(key): value for key, value in saved.items()}
    scale, dynamic = options.pop("scale", None), options.pop("dynamic", None)
    if not isinstance(scale, int | float) or not abs(scale) <= LARGEST_SCALE:  # or NaN
        return None
    return LossScale(float(scale), dynamic is True, options)


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def _groups(checkpoint: Checkpoint) -> tuple[tuple[ParamGroup, ...], dict[str, int]]:
    """Return the param groups, and the numbers of the parameters that have no known name."""
    saved = checkpoint.state.get("param_groups")
    groups: list[ParamGroup] = []
    unnamed: dict[str, int] = {}
    for group in saved if isinstance(saved, list) else ():
        if isinstance(group, Mapping):
            members = group.get("params")
            listed = members if isinstance(members, list) else []
            given = [n for n in listed if type(n) in (int, str)]
            options = {str(k): v for k, v in group.items() if k not in _NOT_OPTIONS}
            groups.append(ParamGroup(tuple(_name(checkpoint, n) for n in given), options))
            numbers = (n for n in given if type(n) is int and n not in _numbered(checkpoint))
            unnamed |= {_name(checkpoint, n): n for n in numbers}
    return tuple(groups), unnamed


def _numbered(checkpoint: Checkpoint) -> Mapping[int, str]:
    native = checkpoint.native
    return native.numbered if isinstance(native, TorchFileNative) else {}


def _name(checkpoint: Checkpoint, member: int | str) -> str:
    if isinstance(member, str):
        return checkpoint.aliases.get(member, member)
    return _numbered(checkpoint).get(member, numbered_name(member))


def _plain_scalars(checkpoint: Checkpoint) -> dict[Key, Scalar]:
    """Return the numbers of the optimizer state that are stored as plain numbers; torch before
    1.12 stored steps in this way.
    """
    saved = checkpoint.state.get("optimizer")
    found: dict[Key, Scalar] = {}
    for parameter, entry in (saved if isinstance(saved, Mapping) else {}).items():
        for role, value in (entry if isinstance(entry, Mapping) else {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                number = _NUMBER.fullmatch(str(parameter))
                member = int(number[0]) if number else str(parameter)
                found[Key(_name(checkpoint, member), str(role))] = Scalar(value)
    return found

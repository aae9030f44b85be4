"""The param groups that torch's optimizer of the same class would have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.target import Dropped
from zerotools.core.training import ParamGroup, TrainingState
from zerotools.formats.torch_optimizers import (
    STATE_ROLE,
    WEIGHT_ROLES,
    OptimizerClass,
    optimizer_class_of,
)

# DeepSpeed's own: its fused kernels and its split of experts need them, or they count again.
_ANOTHERS = frozenset({"bias_correction", "moe", "params", "param_names", "state", "step"})
_LONGEST = 16


@dataclass(frozen=True)
class CompletedGroups:
    """`missing` are the options that the training state lacks, as words for the user; `kind` is
    torch's class, None for an optimizer that is not torch's."""

    kind: OptimizerClass | None
    groups: tuple[ParamGroup, ...]
    missing: tuple[str, ...]
    dropped: tuple[Dropped, ...]


def trained(source: Checkpoint, training: TrainingState) -> dict[str, list[str]]:
    """Return roles of the optimizer's state by parameter, `step` first."""
    found: dict[str, dict[str, None]] = {}
    keys = (key for key in source.tensors if key.role not in (*WEIGHT_ROLES, STATE_ROLE))
    for key in (*training.scalars, *keys):
        found.setdefault(key.name, {})[key.role] = None
    return {name: sorted(roles, key=lambda role: role != "step") for name, roles in found.items()}


def groups_of(training: TrainingState, state: Mapping[str, Collection[str]]) -> CompletedGroups:
    """Complete the groups of a run; `state` has the roles of the optimizer's state by parameter."""
    kind = optimizer_class_of(training, {role for roles in state.values() for role in roles})
    needed = kind.needed if kind is not None else ("lr",)
    missing: dict[str, None] = {}
    for group in training.groups or ([ParamGroup((), {})] if state else []):
        missing |= dict.fromkeys(name for name in needed if not _is_said(group.options.get(name)))
    named = {name for group in training.groups for name in group.params}
    strays = [name for name in state if name not in named] if training.groups else []
    if strays:
        missing[f"the param group of {strays[0]}" + _others(len(strays) - 1)] = None
    return CompletedGroups(
        kind,
        tuple(
            ParamGroup(params, _complete(group.options, kind))
            for params, group in zip(_members(training), training.groups, strict=True)
        ),
        tuple(missing),
        tuple(_dropped(training)),
    )


def _members(training: TrainingState) -> list[tuple[str, ...]]:
    """Return names by group. torch's groups have their frozen parameters too, and loading asks for
    their options; a group that DeepSpeed left none in can only be theirs."""
    members = [group.params for group in training.groups]
    empty = [number for number, params in enumerate(members) if not params]
    if len(empty) == 1:
        members[empty[0]] = tuple(sorted(training.frozen))
    return members


def _others(count: int) -> str:
    return f" and {count} others" if count else ""


def _complete(options: Mapping[str, Any], kind: OptimizerClass | None) -> dict[str, Any]:
    own = {
        name: _as_torch(name, value)
        for name, value in options.items()
        if name not in _ANOTHERS and is_plain(value)
    }
    return {**(kind.defaults if kind is not None else {}), **own}


def _is_said(value: Any) -> bool:
    return value is not None and is_plain(value)


def _as_torch(name: str, value: Any) -> Any:
    """Return `betas` as a tuple, because JSON only has lists."""
    return tuple(value) if name == "betas" and isinstance(value, list) else value


def is_plain(value: Any) -> bool:
    """Return whether any reader of a pickle has the value: no object, no tensor, nothing deep."""
    if isinstance(value, tuple | list):
        return len(value) <= _LONGEST and all(map(_is_single, value))
    return _is_single(value)


def _is_single(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _dropped(training: TrainingState) -> Iterator[Dropped]:
    options = [group.options for group in training.groups]
    if any(each.get("bias_correction") is False for each in options):
        why = "it has bias_correction off, but torch's Adam always corrects"
        yield Dropped("param_groups", why)
    strange = {
        name
        for each in options
        for name, value in each.items()
        if name not in _ANOTHERS and not is_plain(value)
    }
    if strange:
        yield Dropped("param_groups", f"{', '.join(sorted(strange))}: not plain values")

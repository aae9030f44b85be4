"""The contents of a universal checkpoint, checked against what DeepSpeed's loaders accept.

They need a directory per trained parameter. In stages 1 and 2 all parameters of a group need the
same kinds of state, each as long as the parameter, and one `step`.

Source: DeepSpeed `checkpoint/universal_checkpoint.py`, `load_hp_checkpoint_state`;
`utils/tensor_fragment.py`, `map_to_flat_opt_states`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.target import Dropped
from zerotools.core.training import ParamGroup, Scalar, TrainingState
from zerotools.formats.deepspeed.logical.hyperparameters import steps_are_numbers
from zerotools.formats.deepspeed.partitioning.native import DeepSpeedNative
from zerotools.formats.deepspeed.schema.experts import EXPERTS
from zerotools.formats.deepspeed.universal.native import UniversalNative
from zerotools.io.files.filenames import stays_below_root

STEP = "step"
MOMENTS = ("exp_avg", "exp_avg_sq")
_WEIGHTS = ("param16", "buffer", "module")
_LONGEST_NAME = 255 - len(".pt")


@dataclass(frozen=True)
class UniversalContents:
    """The contents of a universal checkpoint. `groups` are names and shapes in the optimizer's
    order.

    `states` are the tensors of trained parameters, with `step` if it is a tensor; `numbers` are the
    steps of all of them. `begun` are states in their first value, zero: of parameters that had no
    gradient yet. `whole` are the tensors of the model file: buffers, frozen weights and 16-bit
    copies.
    """

    groups: Sequence[Mapping[str, tuple[int, ...]]]
    states: Mapping[Key, Tensor]
    numbers: Mapping[str, Scalar]
    begun: Mapping[Key, Tensor]
    whole: Mapping[Key, Tensor]
    dropped: Sequence[Dropped]

    @property
    def roles(self) -> set[str]:
        """The kinds of state besides masters and `step`."""
        return {key.role for key in (*self.states, *self.begun)} - {"param", STEP}

    def steps_of(self, group: Mapping[str, tuple[int, ...]]) -> set[float]:
        return {self.numbers[name].value for name in group if name in self.numbers}


def contents_of(
    source: Checkpoint, training: TrainingState, stage: int | None = None
) -> UniversalContents:
    """Sort the tensors of `source`. At `stage` 3 Adam's state exists also before its first step,
    because DeepSpeed's loader reads it.

    Raises:
        BadRequest: no value lists the trained parameters, or one of them is missing.
        Unsupported: experts, or state that DeepSpeed's loader refuses.
        BadFile: a name cannot be a file name.
    """
    groups = [_shapes(source, group) for group in training.groups]
    trained = {name for group in groups for name in group}
    if not trained:
        raise BadRequest(
            f"{source.origin.path} does not say which parameters were trained (its param groups), "
            "which a universal checkpoint needs: pass --lr and the other options of the optimizer"
        )
    numbers = _numbers(source, training)
    states, refused = {}, dict[str, None]()
    for key, tensor in source.tensors.items():
        if key.name not in trained or key.role in _WEIGHTS:
            continue
        if key.role == STEP:
            if numbers[key.name].dtype == tensor.dtype:
                states[key] = tensor
        elif tensor.shape == source.tensors[Key(key.name, "param")].shape:
            states[key] = tensor
        else:
            refused[key.role] = None
    refused |= dict.fromkeys(
        key.role for key in training.scalars if key.role != STEP and key not in states
    )
    whole = {
        key: tensor
        for key, tensor in source.tensors.items()
        if key.role in ("buffer", "param16") or (key.role == "param" and key.name not in trained)
    }
    begun = dict(_begun(groups, states))
    if stage == 3 and not numbers and (first := _first_step(training)) is not None:
        begun = {
            Key(key.name, role): Tensor(FLOAT32, tensor.shape, ())
            for key, tensor in states.items()
            for role in MOMENTS
        }
        numbers = dict.fromkeys((key.name for key in states), first)
    why = "DeepSpeed loads only the step and state that is as long as its parameter"
    dropped = [Dropped(role, why) for role in sorted(refused)]
    contents = UniversalContents(groups, states, numbers, begun, whole, dropped)
    _check(source, contents)
    return contents


def _numbers(source: Checkpoint, training: TrainingState) -> dict[str, Scalar]:
    """Return steps by name, in the type that the resuming run's optimizer counts them in."""
    found = {key.name: number for key, number in training.scalars.items() if key.role == STEP}
    is_native = isinstance(source.native, DeepSpeedNative | UniversalNative)
    if is_native or not steps_are_numbers(training.ds_config):
        return found
    return {name: Scalar(int(number.value)) for name, number in found.items()}


def _begun(
    groups: Sequence[Mapping[str, tuple[int, ...]]], states: Mapping[Key, Tensor]
) -> Iterator[tuple[Key, Tensor]]:
    """State of parameters that have none in a group that has."""
    for group in groups:
        kinds = {
            key.role: tensor.dtype
            for key, tensor in states.items()
            if key.name in group and key.role not in ("param", STEP)
        }
        have = {key.name for key in states if key.role in kinds}
        for name, shape in group.items():
            if name not in have:
                yield from (
                    (Key(name, role), Tensor(dtype, shape, ())) for role, dtype in kinds.items()
                )


def _first_step(training: TrainingState) -> Scalar | None:
    """Return Adam's first step: torch's is a tensor, DeepSpeed's a number; None for another
    optimizer. Only torch's has the option `capturable`."""
    options = [group.options for group in training.groups if group.params]
    if not options or any("betas" not in each or "eps" not in each for each in options):
        return None
    return Scalar(0.0, FLOAT32) if "capturable" in options[0] else Scalar(0)


def _shapes(source: Checkpoint, group: ParamGroup) -> dict[str, tuple[int, ...]]:
    for name in group.params:
        if Key(name, "param") not in source.tensors:
            raise BadRequest(
                f"{source.origin.path} has no weight {name}, which its param groups list"
            )
        if EXPERTS in name:
            raise Unsupported(
                f"{source.origin.path} has experts ({name}), which DeepSpeed does not load from a "
                "universal checkpoint; make a native one with zerotools reshard"
            )
    return {name: source.tensors[Key(name, "param")].shape for name in group.params}


def _check(source: Checkpoint, contents: UniversalContents) -> None:
    path = source.origin.path
    for name in _names(contents):
        if not stays_below_root(name) or "/" in name or len(os.fsencode(name)) > _LONGEST_NAME:
            raise BadFile(f"{path}: {name!r:.80} cannot be the name of a file")
    if "fp32" in contents.roles or any(key.name == "optimizer_state.pt" for key in contents.states):
        raise BadFile(f"{path} has names that a universal checkpoint reserves for its files")
    roles: dict[str, set[str]] = {}
    for key in (*contents.states, *contents.begun):
        roles.setdefault(key.name, set()).add(key.role)
    for number, group in enumerate(contents.groups):
        filled = [name for name, shape in group.items() if 0 not in shape]
        for name in filled:
            if roles[name] - {STEP} != roles[filled[0]] - {STEP}:
                raise Unsupported(
                    f"{path}: {name} has {_listed(roles[name])} and {filled[0]} of the same param "
                    f"group has {_listed(roles[filled[0]])}; DeepSpeed loads only equal kinds"
                )
        if len(steps := contents.steps_of(group)) > 1:
            raise Unsupported(
                f"{path}: the parameters of group {number} are at steps {sorted(steps)}, and "
                "DeepSpeed keeps one step for a group"
            )


def _listed(roles: set[str]) -> str:
    return ", ".join(sorted(roles - {"param", STEP})) or "no state"


def _names(contents: UniversalContents) -> Iterator[str]:
    for key in (*contents.states, *contents.begun):
        yield key.name
        yield key.role

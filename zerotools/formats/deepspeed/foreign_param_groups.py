"""The param groups of a run that resumes in DeepSpeed, and their optimizer state.

For each group, DeepSpeed stores one flat buffer per kind of state, and one step count. Options that
the source's files do not contain come from a DeepSpeed configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import FLOAT32, DType
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.training_state import ParamGroup, Scalar, TrainingState
from zerotools.formats.deepspeed.change_stage import new_stored_tensor
from zerotools.formats.deepspeed.mp_rank_logical_state import LogicalGroup, StatePart
from zerotools.formats.deepspeed.schema.optim_states import STAGE_1_AND_2, STAGE_3
from zerotools.formats.deepspeed.schema.state_dict_keys import ZERO_STAGE
from zerotools.formats.torch_optimizers import CLASSES
from zerotools.io.numeric.scalar_tensors import scalar_bytes
from zerotools.io.torchzip.pickle_values import StoredTensor

_NOT_STATE = ("param", "param16", "buffer", "state")


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A checkpoint of another format that will be written in DeepSpeed's format.

    `config` is the DeepSpeed configuration that the output will contain.
    """

    source: Checkpoint
    training: TrainingState
    config: Mapping[str, Any]
    precision: DType
    stage: int

    @property
    def kind(self) -> str:
        return STAGE_3 if self.stage == 3 else STAGE_1_AND_2

    @cached_property
    def trained(self) -> set[str]:
        return {name for group in self.training.groups for name in group.params}

    @cached_property
    def frozen(self) -> dict[str, Tensor]:
        """The tensors that may have been frozen parameters of the run, because they have no
        optimizer state."""
        trained, buffers = self.trained, self.training.buffers
        return {
            key.name: tensor
            for key, tensor in self.source.tensors.items()
            if key.role == "param"
            and key.name not in trained
            and key.name not in buffers
            and tensor.dtype.is_float
        }

    @cached_property
    def roles(self) -> list[str]:
        """All roles of optimizer state in the source."""
        return list(dict.fromkeys(k.role for k in self.source.tensors if k.role not in _NOT_STATE))


def group_of(
    foreign: ForeignCheckpoint, number: int, known_storages: dict[str, bytes]
) -> LogicalGroup:
    group, tensors = foreign.training.groups[number], foreign.source.tensors
    shapes = {}
    for name in group.params:
        weight = tensors.get(Key(name, "param"))
        if weight is None:
            raise BadRequest(
                f"{foreign.source.origin.path}: param group {number} lists {name}, but the "
                "checkpoint has no such weight; take another checkpoint"
            )
        shapes[name] = weight.shape
    dtypes, state = _state(foreign, number, group, known_storages)
    where = f"{foreign.source.origin.path}: group {number}"
    part = StatePart(where, shapes, dtypes, state, {})
    options = completed_options(group.options, foreign.config, foreign.source, number)
    return LogicalGroup(shapes, [part] if shapes else [], options)


def _state(
    foreign: ForeignCheckpoint, number: int, group: ParamGroup, known_storages: dict[str, bytes]
) -> tuple[dict[str, DType], dict[str, Any] | None]:
    """Return the dtypes of a param group's flat buffers, keyed by role, and the optimizer state
    that torch stores for the group. The state is None if the optimizer never made a step.
    """
    roles = _roles(foreign, group)
    state: dict[str, Any] = {}
    for role, scalar in _scalars(foreign, group).items():
        state[role] = _number(foreign, f"known-{number}-{role}", role, scalar, known_storages)
    for role in roles:
        state[role] = None
    # Without optimizer state, fp32 masters are made from the weights, whatever their dtype is.
    dtypes = {"param": _type_of(foreign, group, "param") if roles else FLOAT32}
    dtypes |= {role: _type_of(foreign, group, role) for role in roles}
    types = {role: dtype or FLOAT32 for role, dtype in dtypes.items()}
    return types, state or None


def _type_of(foreign: ForeignCheckpoint, group: ParamGroup, role: str) -> DType | None:
    tensors = foreign.source.tensors
    keys = (Key(name, role) for name in group.params)
    found = {tensors[key].dtype for key in keys if key in tensors}
    if len(found) > 1:
        raise Unsupported(
            f"{foreign.source.origin.path}: {role} of one param group has the dtypes "
            f"{', '.join(sorted(map(str, found)))}, but DeepSpeed stores only one dtype for a "
            "group; convert only the weights, with --weights-only"
        )
    return found.pop() if found else None


def _roles(foreign: ForeignCheckpoint, group: ParamGroup) -> list[str]:
    """Return the roles of optimizer state, such as `exp_avg`, that have the shape of their
    parameter.

    Raises:
        Unsupported: a parameter with state lacks a role that another parameter of the group has.
    """
    have = {name: _roles_of(foreign, name) for name in group.params}
    found = list(dict.fromkeys(role for roles in have.values() for role in roles))
    for name, roles in have.items():
        if roles and set(roles) != set(found):
            raise Unsupported(
                f"{foreign.source.origin.path}: {name} has the optimizer state "
                f"{', '.join(roles)}, but others of its param group have {', '.join(found)}; "
                "DeepSpeed stores the same state for all parameters of a group; convert only the "
                "weights, with --weights-only"
            )
    return found


def _roles_of(foreign: ForeignCheckpoint, name: str) -> list[str]:
    tensors, weight = foreign.source.tensors, foreign.source.tensors[Key(name, "param")]
    return [
        role
        for role in foreign.roles
        if (tensor := tensors.get(Key(name, role))) is not None
        and tensor.shape == weight.shape
        and Key(name, role) not in foreign.training.scalars
    ]


def never_stepped(foreign: ForeignCheckpoint) -> list[str]:
    """Return the names of the parameters that have no optimizer state although other parameters of
    their group have state. Such parameters have not had a gradient yet.
    """
    return [
        name
        for group in foreign.training.groups
        if _roles(foreign, group)
        for name in group.params
        if not _roles_of(foreign, name)
    ]


def _scalars(foreign: ForeignCheckpoint, group: ParamGroup) -> dict[str, Scalar]:
    """Return the numbers in a param group's optimizer state, such as `step`, keyed by role.
    DeepSpeed stores one value for all parameters of a group.
    """
    found: dict[str, Scalar] = {}
    names = set(group.params)
    for (name, role), scalar in foreign.training.scalars.items():
        if name not in names:
            continue
        if found.setdefault(role, scalar).value != scalar.value:
            raise Unsupported(
                f"{foreign.source.origin.path}: {name} has {role} {scalar.value}, but others of "
                f"its param group have {found[role].value}; DeepSpeed stores only one number "
                "for a group; convert only the weights, with --weights-only"
            )
    return found


def _number(
    foreign: ForeignCheckpoint,
    key: str,
    role: str,
    scalar: Scalar,
    known_storages: dict[str, bytes],
) -> StoredTensor | int | float:
    """Return a number in the form that the run's optimizer stores: a 0-d tensor or a Python
    number.
    """
    if scalar.dtype is None or (role == "step" and steps_are_numbers(foreign.config)):
        whole = float(scalar.value).is_integer() and role == "step"
        return int(scalar.value) if whole else scalar.value
    known_storages[key] = scalar_bytes(scalar.value, scalar.dtype)
    return new_stored_tensor(key, scalar.dtype, ())


_TORCH_ADAM = "torch_adam"
# Options in the configuration that select the optimizer class. The class does not have them.
_CHOICES = (_TORCH_ADAM, "adam_w_mode", "fp32_optimizer_states", ZERO_STAGE)


def options_from(config: Any) -> dict[str, Any] | None:
    """Return the options (`lr`, ...) of the optimizer in the DeepSpeed configuration, completed
    with the defaults of its class.

    Return None if the configuration has no optimizer, or an unknown one.
    """
    kind, given = _section(config)
    defaults = _defaults(kind, given)
    if not defaults or given is None:
        return None
    options = {**defaults, **{key: value for key, value in given.items() if key not in _CHOICES}}
    if isinstance(options.get("betas"), list):
        options["betas"] = tuple(options["betas"])
    if "auto" in options.values():
        return None
    return options


def _section(config: Any) -> tuple[str, Mapping[str, Any] | None]:
    """Return (type of the optimizer in the configuration, its `params`). The type is in lower case.
    It is "" if the configuration has no optimizer, and `params` is None if it has none.
    """
    section = config.get("optimizer") if isinstance(config, Mapping) else None
    if not isinstance(section, Mapping):
        return "", None
    given = section.get("params")
    return str(section.get("type", "")).lower(), given if isinstance(given, Mapping) else None


def _defaults(kind: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the default options of the configured optimizer, which is a class of torch or a
    kernel of DeepSpeed.

    DeepSpeed's "Adam" applies weight decay like AdamW, unless `adam_w_mode` is off.
    """
    params = given or {}
    if kind == "sgd":
        return dict(CLASSES["SGD"].defaults)
    if kind not in ("adam", "adamw"):
        return {}
    is_adamw = kind == "adamw" or params.get("adam_w_mode", True) is not False
    options = dict(CLASSES["AdamW" if is_adamw else "Adam"].defaults)
    if params.get(_TORCH_ADAM) is not True:
        options |= {"weight_decay": 0.0, "bias_correction": True}
    return options


def steps_are_numbers(config: Any) -> bool:
    """Return whether the configured optimizer stores `step` as a plain number, and not as a tensor.

    DeepSpeed's Adam and Lion use numbers, on GPU and CPU; torch's optimizers use tensors.
    """
    kind, given = _section(config)
    is_torch = given is not None and given.get(_TORCH_ADAM) is True
    return kind in ("adam", "adamw", "lion") and not is_torch


def completed_options(
    options: Mapping[str, Any], config: Any, source: Checkpoint, number: int
) -> dict[str, Any]:
    """Return the options of param group `number`. An option that the group lacks gets the default
    of the optimizer class.

    Elastic state and checkpoints of other formats may lack options. When the run resumes, the
    loaded group replaces the engine's group. So it needs every option that the optimizer reads;
    additional options are harmless.

    Source: torch.optim.AdamW and SGD, DeepSpeed `ops/adam/fused_adam.py` and `cpu_adam.py`:
    `__init__`; `runtime/engine.py`: `_configure_basic_optimizer`.

    Raises:
        BadRequest: the learning rate of the group is unknown.
    """
    if "lr" not in options:
        raise BadRequest(
            f"{source.origin.path}: param group {number} has no lr; pass --lr, or --ds-config with "
            'an "optimizer"'
        )
    return {**_defaults(*_section(config)), **options}

"""Make the optimizer state that Megatron needs to resume: masters, two moments, param groups, one
step.

Megatron groups parameters according to a fixed rule (`training_state.fitting_groups`), whatever
their previous groups were. Tensors with one dimension, and biases, have no weight decay; with
expert parallelism, experts are in separate groups. Megatron identifies its groups by `wd_mult`,
`lr_mult`, `is_expert_parallel` and `is_decoupled_lr`. All groups must have the same step.

Source: `_get_param_groups` of megatron/core/optimizer/__init__.py and `load_state_dict` of
distrib_optimizer.py, 0.16. The options are for torch's Adam and for Transformer Engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import BadRequest
from zerotools.core.training_state import TrainingState
from zerotools.formats.torch_optimizers import (
    CLASSES,
    STATE_ROLE,
    WEIGHT_ROLES,
    optimizer_class_of,
)

MOMENTS = ("exp_avg", "exp_avg_sq")
_NEEDED = ("lr", "betas", "eps", "weight_decay")
_RULE = {"lr_mult": 1.0, "is_decoupled_lr": False, "default_config": True}
_OF_ADAM = {**CLASSES["AdamW"].defaults, "bias_correction": True}
_EXPERT = ".experts.local_experts."


@dataclass(frozen=True)
class WrittenOptimizer:
    """The optimizer state in the output.

    `optimizers` has the param groups of each optimizer. The second optimizer, if there is one, is
    for the experts. `steps` is the number of steps.
    """

    optimizers: tuple[tuple[Mapping[str, Any], ...], ...]
    steps: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DroppedOptimizer:
    """The result if Megatron cannot resume from the optimizer state. `why` is the reason, empty if
    the source has no optimizer.
    """

    why: str = ""


def written_optimizer(
    source: Checkpoint,
    training: TrainingState,
    tensors: Mapping[Key, Tensor],
    names: Mapping[str, Sequence[str]],
    *,
    apart: bool | None = None,
) -> WrittenOptimizer | DroppedOptimizer:
    """Return the optimizer state of `source` in the form that Megatron resumes from.

    `tensors` has one tensor for each weight; `names` is name in `training` -> names of these
    tensors. `apart` says whether experts have a separate optimizer. If `apart` is None, they have
    one unless Megatron saved the source with one optimizer for all weights.

    Raises:
        BadRequest: options of the optimizer are unknown, and the user can pass them.
    """
    roles = {key.role for key in tensors if key.role not in (*WEIGHT_ROLES, STATE_ROLE)}
    if not roles:
        return DroppedOptimizer()
    strange = sorted(roles - {*MOMENTS})
    if strange:
        return DroppedOptimizer(
            f"the optimizer has the state {strange[0]}, but Megatron's Adam has only "
            f"{' and '.join(MOMENTS)}"
        )
    weights = {key.name: t for key, t in tensors.items() if key.role == "param"}
    for role in MOMENTS:
        lacking = [
            n for n, t in weights.items() if t.dtype.is_float and Key(n, role) not in tensors
        ]
        if lacking:
            return DroppedOptimizer(
                f"Megatron resumes from the moments of all weights, but {lacking[0]} has no {role}"
            )
    steps = _steps(training)
    if isinstance(steps, str):
        return DroppedOptimizer(f"Megatron counts one step for all weights, but the step {steps}")
    groups = _groups_by_name(source, training, weights, names)
    of_megatron = _of_megatron(training, weights, steps, apart)
    return of_megatron or _by_rule(training, groups, weights, steps, apart is not False)


def _steps(training: TrainingState) -> int | str:
    """Return the step if all weights have the same step; else a text that says why there is no
    common step.
    """
    found = {scalar.value for key, scalar in training.scalars.items() if key.role == "step"}
    known = sorted(found) or ([] if training.steps is None else [training.steps])
    if not known:
        return "is in no file"
    if len(known) > 1:
        return f"is {known[0]} for some weights and {known[1]} for others"
    return int(known[0]) if float(known[0]).is_integer() else f"is {known[0]}"


def _groups_by_name(
    source: Checkpoint,
    training: TrainingState,
    weights: Mapping[str, Tensor],
    names: Mapping[str, Sequence[str]],
) -> dict[str, Mapping[str, Any]]:
    """Return {name of a weight: options of its param group}."""
    found = {
        new: group.options
        for group in training.groups
        for name in group.params
        for new in names.get(name, (name,))
    }
    missing = dict.fromkeys(
        option
        for options in found.values() or [{}]
        for option in _NEEDED
        if options.get(option) is None
    )
    stray = [name for name, t in weights.items() if t.dtype.is_float and name not in found]
    if found and stray:
        missing[f"the param group of {stray[0]} and {len(stray) - 1} others"] = None
    if missing:
        raise BadRequest(
            f"{source.origin.path} has optimizer state, but not all options that Megatron needs to "
            f"resume; give {', '.join(missing)}"
        )
    return found


def _of_megatron(
    training: TrainingState, weights: Mapping[str, Tensor], steps: int, apart: bool | None
) -> WrittenOptimizer | None:
    """Return the param groups that Megatron saved, or None if another program saved the groups.

    If `apart` is True, experts are moved to a separate optimizer. If it is False, they are moved to
    the optimizer of the other weights.
    """
    options = [{**group.options, "step": steps} for group in training.groups]
    if not all({"wd_mult", "lr_mult", "is_expert_parallel"} <= each.keys() for each in options):
        return None
    experts = [each for each in options if each["is_expert_parallel"] is True]
    others = [each for each in options if each["is_expert_parallel"] is not True]
    if apart is False:
        known = {(each["wd_mult"], each["lr_mult"]) for each in others}
        others += [
            {**each, "is_expert_parallel": False}
            for each in experts
            if (each["wd_mult"], each["lr_mult"]) not in known
        ]
        experts = []
    elif apart and not experts:
        decays = {
            _decays(name, tensor) for name, tensor in weights.items() if is_expert_weight(name)
        }
        experts = [
            {**each, "is_expert_parallel": True}
            for each in others
            if (each["wd_mult"] != 0) in decays and each.get("is_decoupled_lr") is not True
        ]
    return WrittenOptimizer(tuple(tuple(each) for each in (others, experts) if each), steps)


def is_expert_weight(name: str) -> bool:
    """Return whether a weight belongs to one expert. `name` is its name in a model on one rank."""
    return _EXPERT in name


def _decays(name: str, tensor: Tensor) -> bool:
    return len(tensor.shape) > 1 and not name.endswith(".bias")


def _by_rule(
    training: TrainingState,
    groups: Mapping[str, Mapping[str, Any]],
    weights: Mapping[str, Tensor],
    steps: int,
    apart: bool,
) -> WrittenOptimizer | DroppedOptimizer:
    kinds: dict[tuple[bool, bool], list[str]] = {}
    for name in groups:
        if name in weights:
            kind = apart and is_expert_weight(name), _decays(name, weights[name])
            kinds.setdefault(kind, []).append(name)
    for option in ("lr", "betas", "eps"):
        values = _values(groups, groups, option)
        if len(values) > 1:
            return DroppedOptimizer(
                f"Megatron has one {option} for all weights, but the param groups have "
                f"{values[0]} and {values[1]}"
            )
    decayed = [name for (_, decays), each in kinds.items() if decays for name in each]
    decay = _values(groups, decayed, "weight_decay") or [0.0]
    if len(decay) > 1:
        return DroppedOptimizer(
            "Megatron has one weight_decay for all matrices, but the param groups have "
            f"{decay[0]} and {decay[1]}"
        )
    shared = next(iter(groups.values()))
    common = {
        **_OF_ADAM,
        **{name: shared[name] for name in _OF_ADAM if name in shared},
        "betas": tuple(shared["betas"]),
        "weight_decay": decay[0],
    }
    made: list[tuple[Mapping[str, Any], ...]] = []
    for is_expert in (False, True):
        every = [
            {
                **common,
                **_RULE,
                "wd_mult": float(decays),
                "is_expert_parallel": is_expert,
                "step": steps,
            }
            for decays in (True, False)
            if (is_expert, decays) in kinds
        ]
        made += [tuple(every)] if every else []
    notes = tuple(_notes(training, groups, kinds, decay[0]))
    return WrittenOptimizer(tuple(made), steps, notes)


def _values(
    groups: Mapping[str, Mapping[str, Any]], names: Iterable[str], option: str
) -> list[Any]:
    found = (groups[name][option] for name in names)
    return list(dict.fromkeys(tuple(v) if isinstance(v, list) else v for v in found))


def _notes(
    training: TrainingState,
    groups: Mapping[str, Mapping[str, Any]],
    kinds: Mapping[tuple[bool, bool], Sequence[str]],
    decay: float,
) -> Iterator[str]:
    vectors = [name for (_, decays), each in kinds.items() if not decays for name in each]
    other = [name for name in vectors if groups[name]["weight_decay"]]
    if other:
        yield (
            f"Megatron applies no weight decay to norms and biases, but {other[0]} and "
            f"{len(other) - 1} others were trained with a weight decay of "
            f"{groups[other[0]]['weight_decay']}"
        )
    kind = optimizer_class_of(training, MOMENTS)
    if decay and kind is not None and kind.name == "Adam":
        yield "Megatron's Adam applies weight decay like AdamW, but the run used L2 decay"
    if any(is_expert for is_expert, _ in kinds):
        yield (
            "experts have a separate optimizer, which Megatron loads only with several "
            "expert-parallel ranks; for one rank, pass --expert-parallel 1"
        )
    yield (
        "pass --override-opt_param-scheduler: the checkpoint has no schedule in Megatron's form, "
        "so the learning rate follows Megatron's options"
    )

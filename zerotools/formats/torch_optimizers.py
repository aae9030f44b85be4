"""Identify torch's optimizers by their param groups: the class, its options, and the parameter
numbers.

An optimizer numbers its parameters in the order of its groups. The number alone does not show the
name of a parameter, because layers of a model have equal shapes, and programs list them in
different orders.

The default values are from torch 2.13's constructors, in the order of `param_groups`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import Unsupported
from zerotools.core.training_state import ParamGroup, Scalar, TrainingState
from zerotools.io.numeric.scalar_tensors import scalars_below

WEIGHT_ROLES = ("param", "param16", "buffer")
STATE_ROLE = "state"
STEP_ROLE = "step"

_FACTORS = {"row", "col"}

Shape = tuple[int, ...]
NAMED_BY_SHAPE = (
    "the optimizer state has numbers instead of names; the names are known from the shapes, "
    "because each shape fits only one weight"
)
ORDER_UNKNOWN = (
    "the optimizer state has numbers instead of names, and no file has the names; pass them "
    "with zerotools convert --order"
)
NUMBERED_STATE = (
    "without ZeRO, DeepSpeed stores numbers instead of names in its optimizer state: the sizes "
    "shown count only the weights, but zerotools convert reads the optimizer state too"
)


def notes_on_weights(notes: Iterable[str]) -> list[str]:
    """Return the notes of a checkpoint without those on the names and order of the optimizer's
    parameters.
    """
    return [note for note in notes if note not in (NAMED_BY_SHAPE, ORDER_UNKNOWN, NUMBERED_STATE)]


_COMMON = {"maximize": False, "foreach": None, "differentiable": False}
_ADAM = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0,
    "amsgrad": False,
    "maximize": False,
    "foreach": None,
    "capturable": False,
    "differentiable": False,
    "fused": None,
    "decoupled_weight_decay": False,
}


@dataclass(frozen=True, slots=True)
class OptimizerClass:
    """One of torch's optimizer classes and its options.

    `needed` are the options without a usable default value. `defaults` maps all other options to
    their default values.
    """

    name: str
    needed: tuple[str, ...]
    defaults: Mapping[str, Any]


_SGD = {"lr": 1e-3, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False}
_RMSPROP = {
    "lr": 1e-2,
    "momentum": 0,
    "alpha": 0.99,
    "eps": 1e-8,
    "centered": False,
    "weight_decay": 0,
    "capturable": False,
}
_ADAGRAD = {
    "lr": 1e-2,
    "lr_decay": 0,
    "eps": 1e-10,
    "weight_decay": 0,
    "initial_accumulator_value": 0,
}
_ADAM_NEEDS = ("lr", "betas", "eps", "weight_decay")

CLASSES: Mapping[str, OptimizerClass] = {
    kind.name: kind
    for kind in (
        OptimizerClass(
            "AdamW", _ADAM_NEEDS, {**_ADAM, "weight_decay": 1e-2, "decoupled_weight_decay": True}
        ),
        OptimizerClass("Adam", _ADAM_NEEDS, _ADAM),
        OptimizerClass(
            "SGD", ("lr", "momentum", "weight_decay"), {**_SGD, **_COMMON, "fused": None}
        ),
        OptimizerClass(
            "RMSprop", ("lr", "momentum", "alpha", "eps", "weight_decay"), _RMSPROP | _COMMON
        ),
        OptimizerClass(
            "Adagrad", ("lr", "lr_decay", "eps", "weight_decay"), {**_ADAGRAD, **_COMMON}
        ),
    )
}
_BY_WORD = {name.lower(): kind for name, kind in CLASSES.items()}


def names_by_shape(
    numbers: Collection[int], state: Mapping[int, Mapping[str, Shape]], weights: Mapping[str, Shape]
) -> dict[int, str]:
    """Return the parameter name for each of `numbers`. Return an empty dict unless the shapes of
    each parameter's state fit exactly one weight.

    `state` has the shapes of the state tensors, keyed by number and role.
    """
    by_shape: dict[Shape, list[str]] = {}
    for name, shape in weights.items():
        for each in {shape, *_factored(shape)}:
            by_shape.setdefault(each, []).append(name)
    names: dict[int, str] = {}
    for number in numbers:
        shapes = state.get(number, {})
        near = {name for shape in shapes.values() for name in by_shape.get(shape, ())}
        fitting = [name for name in near if state_fits(shapes, weights[name])]
        if len(fitting) != 1:
            return {}
        names[number] = fitting[0]
    return names if len(set(names.values())) == len(names) else {}


def state_fits(state: Mapping[str, Shape], weight: Shape) -> bool:
    """Return whether a weight of shape `weight` can have state tensors of these shapes, which are
    keyed by role.

    Additional tensors, such as the scales of 8-bit state, are allowed.
    """
    moments = {role: shape for role, shape in state.items() if role != STEP_ROLE}
    factors = {shape for role, shape in moments.items() if _FACTORS & set(role.split("_"))}
    if factors:
        return factors <= set(_factored(weight))
    return not moments or weight in moments.values()


def _factored(shape: Shape) -> tuple[Shape, ...]:
    """Return the shapes that Adafactor's row and column statistics may have for a matrix; they
    differ between libraries.
    """
    if len(shape) < 2:
        return ()
    *above, rows, columns = shape
    return (*above, rows), (*above, columns), (*above, rows, 1), (*above, 1, columns)


def optimizer_of(groups: Iterable[ParamGroup]) -> str | None:
    """Return the name of the torch class that has the options of these param groups (`AdamW`,
    `Adam` or `SGD`), or None if the options do not identify a class.
    """
    return _class_name(next((group.options for group in groups if group.options), {}))


def refuse_several_classes(path: Path, groups: Iterable[ParamGroup]) -> None:
    """Raise Unsupported if the param groups of the checkpoint `path` belong to optimizers of
    different torch classes. No single optimizer can load them.

    One Adam may have groups with and without decoupled weight decay.
    """
    names = {_class_name(group.options) for group in groups}
    if "SGD" in names and names & {"Adam", "AdamW"}:
        found = " and ".join(sorted(name for name in names if name is not None))
        raise Unsupported(
            f"{path} has the state of several optimizers ({found}), and an output has one: pass "
            "--weights-only to convert only the weights"
        )


def _class_name(options: Mapping[str, Any]) -> str | None:
    decoupled = options.get("decoupled_weight_decay")
    if {"betas", "amsgrad"} <= options.keys() and type(decoupled) is bool:
        return "AdamW" if decoupled else "Adam"
    return "SGD" if {"momentum", "dampening", "nesterov"} <= options.keys() else None


def optimizer_class_of(training: TrainingState, roles: Collection[str]) -> OptimizerClass | None:
    """Return the torch optimizer class that can resume from this run's optimizer state, which has
    the roles `roles`; None if no class is known.

    DeepSpeed's "Adam" applies weight decay like AdamW, unless `adam_w_mode` is off.
    """
    word = (optimizer_of(training.groups) or training.optimizer or "").lower()
    if word == "adam" and training.ds_config is not None and not optimizer_of(training.groups):
        word = "adamw" if _adam_w_mode(training.ds_config) else "adam"
    if not word and {"exp_avg", "exp_avg_sq"} <= set(roles):
        word = "adamw"
    return _BY_WORD.get(word)


def _adam_w_mode(config: Mapping[str, Any]) -> bool:
    section = config.get("optimizer")
    params = section.get("params") if isinstance(section, Mapping) else None
    return not isinstance(params, Mapping) or params.get("adam_w_mode", True) is not False


def scalars_of(checkpoint: Checkpoint, plain: Mapping[Key, Scalar]) -> Mapping[Key, Scalar]:
    """Return the numbers of the optimizer state: `plain`, and those stored as 0-d tensors, which
    are read when they are accessed.

    The 0-d state of a 0-d parameter does not count as a number, except `step`.

    Raises:
        BadFile: on access to a number, if it is missing from the files, or its file is truncated.
    """
    found: dict[Key, Tensor | Scalar] = {}
    for key, tensor in checkpoint.tensors.items():
        if tensor.shape or key.role in (*WEIGHT_ROLES, STATE_ROLE):
            continue
        weight = checkpoint.tensors.get(Key(key.name, "param"))
        if key.role == "step" or weight is None or weight.shape:
            found[key] = tensor
    return scalars_below(checkpoint.root, {**found, **plain})

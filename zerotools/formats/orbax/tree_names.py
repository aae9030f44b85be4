"""Determine the tensor name and the role of each array in a saved tree.

Flax's `TrainState` has the trees `params` and `opt_state`. The weights of a module are in `params`,
or in a second `params` below it if the module's variables were saved as a whole. Each field of
optax's state has the same tree as the weights. So the path of an array in the state ends with the
path of its weight::

    params.params.decoder.norm.scale                   decoder.norm.scale
    opt_state.1.0.mu.params.decoder.norm.scale         decoder.norm.scale (exp_avg)
    opt_state.1.0.count                                the step of all weights of `opt_state.1.0`

MaxText stores other variables of the module, which no optimizer updates, and the state of its
random generators in `nnx_aux`. These variables keep their paths as names::

    nnx_aux.model.decoder.moe_layers.gate.bias         buffer
    nnx_aux.model.decoder.rngs.params.key              state
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from zerotools.core.checkpoint import Key
from zerotools.core.target import LOOSE

_PARAMS = "params"
_MODEL = "model"
_STATES = ("opt_state", "optimizer", "optimizer_state")
_BUFFERS = "batch_stats"
_AUXILIARY = ("nnx_aux", "model")
_STEP, _COUNT = "step", "count"
_VALUE = "value"
"""The last key of every path in a tree of Flax's NNX."""
_MOMENTS = {"mu": "exp_avg", "nu": "exp_avg_sq", "trace": "momentum_buffer"}
"""torch's names for the fields of optax's states; other fields keep their names."""

Words = tuple[str, ...]


@dataclass(frozen=True)
class TreeNames:
    """The names of the arrays in a saved tree.

    Attributes:
        keys: path of an array -> its key.
        counts: name of a weight that an optimizer updates -> the path of its step counter, or None
            if it has none.
        step: the path of the run's step counter, or None if there is none.
    """

    keys: Mapping[Words, Key]
    counts: Mapping[str, Words | None]
    step: Words | None


def name_arrays(paths: Iterable[Words]) -> TreeNames:
    """Return the keys of the arrays at `paths`.

    A tree without `params` and without an optimizer is a tree of weights. An array that is neither
    a weight, a buffer nor the state of a weight gets the role `state`.
    """
    every = dict.fromkeys(paths)
    weights = _weights(every)
    tails = {_without_markers(path): name for path, name in weights.items()}
    fields = {
        path: at
        for path in every
        if path not in weights and (at := _field_of(path, tails)) is not None
    }
    states = {path[: at + 1] for path, at in fields.items()}
    keys: dict[Words, Key] = {}
    counts: dict[str, Words | None] = {}
    taken: set[Key] = set()
    for path in every:
        if path in weights:
            key = Key(weights[path], "param")
        elif path in fields:
            before, name = path[: fields[path]], tails[_without_markers(path[fields[path] + 1 :])]
            key = Key(name, _role(path[fields[path]], before, states))
            counts[name] = counts.get(name) or _path_that_exists((*before, _COUNT), every)
        elif path[0] == _BUFFERS:
            key = Key(".".join(_without_markers(path[1:])), "buffer")
        elif _is_auxiliary_variable(path):
            key = Key(".".join(_without_markers(path)), "buffer")
        else:
            key = Key(".".join(path), LOOSE)
        if key in taken:
            key = Key(".".join(path), LOOSE)
        taken.add(key)
        keys[path] = key
    return TreeNames(keys, counts, _path_that_exists((_STEP,), every))


def _weights(paths: Collection[Words]) -> dict[Words, str]:
    """Return the names of the weights, keyed by path. Two weights never get the same name."""
    roots = {path[0] for path in paths}
    if _PARAMS in roots:
        found = {path: ".".join(_without_markers(path)) for path in paths if path[0] == _PARAMS}
    elif not roots & {*_STATES}:
        found = {path: ".".join(_without_markers(path)) for path in paths}
    else:
        found = {path: ".".join(_without_markers(path[1:])) for path in paths if path[0] == _MODEL}
    if len({*found.values()}) < len(found):
        found = {path: ".".join(path) for path in found}
    return found


def _without_markers(path: Words) -> Words:
    """Return the path of a weight without keys such as `params`, which only mark it as a weight."""
    begin = next((at for at, word in enumerate(path) if word != _PARAMS), len(path) - 1)
    return path[begin : -1 if path[-1] == _VALUE and len(path) - begin > 1 else None]


def _is_auxiliary_variable(path: Words) -> bool:
    """Return whether an array is in MaxText's `nnx_aux`, and is no state of random generators."""
    return path[: len(_AUXILIARY)] == _AUXILIARY and not any(
        word == "dropout" or word.endswith("rngs") for word in path
    )


def _field_of(path: Words, tails: Mapping[Words, str]) -> int | None:
    """Return the index in `path` of the optimizer's field that is followed by the path of a weight;
    None if `path` does not end with such a path.
    """
    ends = (at for at in range(len(path) - 1) if _without_markers(path[at + 1 :]) in tails)
    return next((at for at in ends if path[at] != _PARAMS), None)


def _role(field: str, before: Words, states: Collection[Words]) -> str:
    if field == "nu" and (*before, "mu") not in states:  # RMSprop
        return "square_avg"
    return _MOMENTS.get(field, field)


def _path_that_exists(path: Words, paths: Collection[Words]) -> Words | None:
    return next((each for each in (path, (*path, _VALUE)) if each in paths), None)

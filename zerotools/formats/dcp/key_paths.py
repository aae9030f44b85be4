"""The path of each value of a DCP in the saved state dict, and the words in a path that tell
optimizers, models and other state apart.

planner_data records the path: `("app", "model", "net.0.weight")` for the flat key
`app.model.net.0.weight`. If the state dict was already flat when it was saved, the recorded path is
only the flat key, and the parts of the path are unknown: `optim` in `optim.net.0.weight.exp_avg`
may be a section that the program put in front of its keys, or a submodule of the model. `optim`
counts as a section only if other keys prove it: `optim` contains the param groups of an optimizer,
or state of parameters with names that occur in other keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from zerotools.core.errors import BadFile
from zerotools.io.distcp.metadata import Metadata, SavedTensor

Path = tuple[str | int, ...]
# No known program nests deeper. Very long paths in a crafted file would need too much memory.
DEEPEST = 32
# The maximum number of words in a section name at the beginning of a flat key.
_MAX_WORDS = 8
_GROUPS = "param_groups."


class FlatValue(NamedTuple):
    """One value of the saved state dict: its flat key, its path, and its tensor (None if the value
    is not a tensor).
    """

    flat: str
    path: Path
    tensor: SavedTensor | None


def text_of(path: Iterable[str | int]) -> str:
    """Return the flat key for a path: the parts of the path, joined as torch joins them."""
    return ".".join(map(str, path))


def name_below(value: FlatValue, depth: int) -> str:
    """Return the part of a flat key that follows the first `depth` parts of its path."""
    return text_of(value.path[depth:])


def values_of(metadata: Metadata) -> list[FlatValue]:
    """Return all values of the DCP with their paths, in the order of the saved state dict if this
    order is recorded.

    Raises:
        BadFile: a path is longer than in any known program.
    """
    known = metadata.paths or {}
    there = dict.fromkeys((*metadata.tensors, *metadata.blobs))
    ordered = dict.fromkeys((*(flat for flat in known if flat in there), *there))
    found = [
        FlatValue(flat, _whole(flat, known.get(flat)), metadata.tensors.get(flat))
        for flat in ordered
    ]
    return _split(found, has_paths=bool(known))


def _whole(flat: str, path: Path | None) -> Path:
    """Return the recorded path of a flat key, or the flat key alone if the path does not match the
    key.
    """
    if path is not None and len(path) > DEEPEST:
        raise BadFile(
            f"the key {flat:.80}... has {len(path)} levels, but zerotools reads at most {DEEPEST}"
        )
    return path if path and text_of(path) == flat else (flat,)


def _split(values: list[FlatValue], *, has_paths: bool) -> list[FlatValue]:
    """Replace the flat keys of a flat state dict by paths: a key is cut after the name of the
    section that the program put in front of it, if any.
    """
    flat = [value for value in values if len(value.path) == 1]
    sections = _optimizers(flat)
    if sections:
        sections |= _models(flat, sections)
    elif not has_paths and _first(flat) == {"model"} and len(flat) == len(values):
        sections = {"model"}
    return [_below(value, sections) for value in values]


def _below(value: FlatValue, sections: set[str]) -> FlatValue:
    section = _section_of(value.flat, sections)
    if section is None or len(value.path) > 1:
        return value
    return value._replace(path=(section, value.flat[len(section) + 1 :]))


def _section_of(flat: str, sections: set[str]) -> str | None:
    parts = flat.split(".", _MAX_WORDS)
    before = (".".join(parts[:count]) for count in range(1, len(parts)))
    return next((text for text in before if text in sections), None)


def _first(values: Iterable[FlatValue]) -> set[str]:
    return {value.flat.partition(".")[0] for value in values}


def _optimizers(values: list[FlatValue]) -> set[str]:
    found: set[str] = set()
    modules: set[str] = set()
    for value in values:
        before, groups, _ = value.flat.partition(f".{_GROUPS}")
        if groups and before and _GROUPS not in before:
            (found if is_option(value) else modules).add(before)
    found -= modules
    tensors = {value.flat for value in values if value.tensor is not None}
    for word in filter(is_optimizer_word, _first(values) - found):
        below = [flat[len(word) + 1 :] for flat in tensors if flat.startswith(f"{word}.")]
        others = {flat for flat in tensors if not flat.startswith(f"{word}.")}
        endings = others | {flat.partition(".")[2] for flat in others}
        if below and all(_is_state(name, endings) for name in below):
            found.add(word)
    return found


def _is_state(name: str, weights: set[str]) -> bool:
    weight, _, role = name.removeprefix("state.").rpartition(".")
    weights_own, _, _ = name.rpartition(".")
    return not names_a_weight(role) and (weight in weights or weights_own in weights)


def is_option(value: FlatValue) -> bool:
    """Return whether a value can be an option of a param group: it is not a tensor, or it is a 0-d
    tensor."""
    return value.tensor is None or not value.tensor.shape


def _models(values: list[FlatValue], optimizers: set[str]) -> set[str]:
    names = set(_trained(values, optimizers))
    known = {value.flat for value in values if value.tensor is not None}
    if any(name in known for name in names):
        return set()
    return {
        section
        for section in _first(values) - optimizers
        if any(f"{section}.{name}" in known for name in names)
    }


def _trained(values: list[FlatValue], optimizers: set[str]) -> Iterator[str]:
    for value in values:
        section = _section_of(value.flat, optimizers)
        if section is not None and value.tensor is not None:
            name = value.flat[len(section) + 1 :].rpartition(".")[0]
            yield name
            yield name.removeprefix("state.")


def tensors_of(values: Iterable[FlatValue]) -> Mapping[str, SavedTensor]:
    """Return the tensors among the values, keyed by flat key."""
    return {value.flat: value.tensor for value in values if value.tensor is not None}


_OPTIMIZER = frozenset({"optim", "optims", "optimizer", "optimizers", "opt", "opts"})
_MODEL = frozenset({"model", "module", "net", "network", "weights", "params", "state_dict"})
_COPY = frozenset({"ema", "swa", "averaged", "average", "avg", "shadow", "lagged"})
_STATE = frozenset((
    "args", "callbacks", "config", "counters", "dataloader", "dataset", "epoch", "hparams",
    "loops", "lr", "metrics", "progress", "random", "rng", "sampler", "scaler", "scalers",
    "scheduler", "schedulers", "step", "timers", "trainer",
))  # fmt: skip
_COUNTERS = frozenset((
    "best_loss", "cuda_rng_state", "epoch", "global_step", "iter", "iteration", "loss",
    "rng", "rng_state", "rng_states", "step", "steps", "tokens",
))  # fmt: skip
_WEIGHTS = frozenset({"weight", "bias", "running_mean", "running_var"})
_SUFFIX = re.compile(r"(_?(state_?dicts?|states?))?(_?\d{1,4})?")


def _without_suffix(word: str | int) -> str:
    """Return the word without a suffix or number: `optimizer` for `optimizer_state_dict`,
    `optimizer_states` and `optimizer_0`.
    """
    text = str(word)[:64].lower().replace("-", "_").strip("_")
    for at in range(1, len(text)):
        if _SUFFIX.fullmatch(text, at):
            return text[:at]
    return text


def _tokens(word: str | int) -> frozenset[str]:
    return frozenset(_without_suffix(word).split("_"))


def is_optimizer_word(word: str | int) -> bool:
    """Return whether a dict with this name holds an optimizer: `optim`, `optimizer_0`,
    `g_optimizer_state_dict`.
    """
    return bool(_tokens(word) & _OPTIMIZER)


def is_plain_optimizer_word(word: str | int) -> bool:
    """Return whether a dict's name says that it holds an optimizer but not which optimizer: True
    for `optimizer` and `optim_state_dict`, False for `optimizer_d`.
    """
    return _without_suffix(word) in _OPTIMIZER


def is_model_word(word: str | int) -> bool:
    """Return whether programs that train one model use this name for its dict: `model`,
    `state_dict`, `model_state_dict`.

    A name alone never decides what is a weight and what is state. It only selects one of several
    possible models if their keys and shapes do not.
    """
    return str(word).lower() == "state_dict" or _without_suffix(word) in _MODEL


def is_copy_word(word: str | int) -> bool:
    """Return whether a dict with this name holds averages of another model's weights: `ema`,
    `model_ema`, `swa_state_dict`.
    """
    return bool(_tokens(word) & _COPY)


def is_state_word(word: str | int) -> bool:
    """Return whether a dict with this name holds state of the run and no weights: `lr_scheduler`,
    `train_state`, `rng_states`.
    """
    return bool(_tokens(word) & _STATE)


def is_counter(name: str) -> bool:
    """Return whether programs use this name for a value of the run that they save in the same dict
    as the weights: `step`, `rng_state`.
    """
    return name.lower() in _COUNTERS


def names_a_weight(word: str) -> bool:
    """Return whether modules use this name for a parameter or a buffer, and optimizers never use
    it.
    """
    return word in _WEIGHTS

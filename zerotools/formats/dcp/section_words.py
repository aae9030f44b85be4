"""Words in the names of a state dict that tell optimizers, models and other state apart."""

from __future__ import annotations

import re

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

"""The options of param groups where the files do not have them, from a DeepSpeed configuration.

Elastic state and the checkpoints of other formats may lack them. A loaded group replaces the
engine's own, so it needs every option that the optimizer reads; more do no harm.

Source: torch.optim.AdamW and SGD, DeepSpeed `ops/adam/fused_adam.py` and `cpu_adam.py`:
`__init__`; `runtime/engine.py`: `_configure_basic_optimizer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest
from zerotools.formats.deepspeed.column import Column
from zerotools.formats.deepspeed.settings import Settings
from zerotools.formats.deepspeed.shards import first_of

_ALL = {"maximize": False, "foreach": None, "differentiable": False, "fused": None}
_ADAM = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "bias_correction": True,
    "amsgrad": False,
    "capturable": False,
    **_ALL,
}
_SGD = {
    "lr": 1e-3,
    "momentum": 0.0,
    "dampening": 0.0,
    "weight_decay": 0.0,
    "nesterov": False,
    **_ALL,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "adam": {**_ADAM, "decoupled_weight_decay": False},
    "adamw": {**_ADAM, "decoupled_weight_decay": True},
    "sgd": _SGD,
}
# Options of DeepSpeed's that choose the class, and are no option of it.
_CHOICES = ("torch_adam", "adam_w_mode", "fp32_optimizer_states", "zero_stage")


def options_from(config: Any) -> dict[str, Any] | None:
    """The options of the configured optimizer, with its class's defaults; None where the
    configuration has none, or one that is not known here."""
    section = config.get("optimizer") if isinstance(config, Mapping) else None
    if not isinstance(section, Mapping):
        return None
    kind = str(section.get("type", "")).lower()
    given = section.get("params")
    if kind not in _DEFAULTS or not isinstance(given, Mapping):
        return None
    options = dict(_DEFAULTS[kind])
    if kind == "adamw" and given.get("torch_adam") is True:
        options["weight_decay"] = 0.01
    options |= {key: value for key, value in given.items() if key not in _CHOICES}
    if isinstance(options.get("betas"), list):
        options["betas"] = tuple(options["betas"])
    if "auto" in options.values():
        return None
    return options


def steps_are_numbers(config: Any) -> bool:
    """Whether the configured optimizer counts its steps in plain numbers: DeepSpeed's own Adam and
    Lion do, on GPU and CPU; torch's have tensors."""
    section = config.get("optimizer") if isinstance(config, Mapping) else None
    if not isinstance(section, Mapping):
        return False
    given = section.get("params")
    torch_adam = isinstance(given, Mapping) and given.get("torch_adam") is True
    return str(section.get("type", "")).lower() in ("adam", "adamw", "lion") and not torch_adam


def completed_options(
    options: Mapping[str, Any], config: Any, source: Checkpoint, number: int
) -> dict[str, Any]:
    """The options of param group `number` with those that its class has by default.

    Raises:
        BadRequest: it has no learning rate.
    """
    section = config.get("optimizer") if isinstance(config, Mapping) else None
    kind = str(section.get("type", "")).lower() if isinstance(section, Mapping) else ""
    if "lr" not in options:
        raise BadRequest(
            f"{source.origin.path}: param group {number} has no lr; pass --lr, or --ds-config with "
            'an "optimizer"'
        )
    return {**_DEFAULTS.get(kind, {}), **options}


def hyperparameters_of(column: Column, settings: Settings) -> Mapping[str, Any]:
    """Options for groups that the files have none for; empty where all have.

    Raises:
        BadRequest: elastic state, and no configuration says what its optimizer was.
    """
    shard = first_of(column.shards)
    if shard.is_rigid:
        return {}
    config = settings.ds_config or column.model.fields.tree.get("ds_config")
    options = options_from(config)
    if options is None:
        raise BadRequest(
            f"{shard.file.path} has elastic optimizer state, which lacks lr, betas and the like, "
            "and its configuration does not name them: pass --ds-config with an Adam, AdamW or SGD "
            '"optimizer" and its "params"'
        )
    return options

"""The options of param groups, from a DeepSpeed configuration if the files lack them.

Elastic state and checkpoints of other formats may lack them. A loaded group replaces the engine's,
so it needs every option that the optimizer reads; more options are harmless.

Source: torch.optim.AdamW and SGD, DeepSpeed `ops/adam/fused_adam.py` and `cpu_adam.py`:
`__init__`; `runtime/engine.py`: `_configure_basic_optimizer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest
from zerotools.formats.deepspeed.partitioning.mp_rank import MpShard
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings
from zerotools.formats.deepspeed.schema.optim_states import first_of
from zerotools.formats.deepspeed.schema.optimizer_tree import ZERO_STAGE
from zerotools.formats.torch_optimizers import CLASSES

_TORCH_ADAM = "torch_adam"
# Options of DeepSpeed's that choose the class, and are not options of it.
_CHOICES = (_TORCH_ADAM, "adam_w_mode", "fp32_optimizer_states", ZERO_STAGE)


def options_from(config: Any) -> dict[str, Any] | None:
    """Return the options of the configured optimizer, with its class's defaults. Return None if the
    configuration has no optimizer, or an unknown one."""
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
    """Return the configured optimizer, in lower case, and its `params`."""
    section = config.get("optimizer") if isinstance(config, Mapping) else None
    if not isinstance(section, Mapping):
        return "", None
    given = section.get("params")
    return str(section.get("type", "")).lower(), given if isinstance(given, Mapping) else None


def _defaults(kind: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return torch's defaults and those of DeepSpeed's kernels. Its "Adam" decays weights as AdamW
    does unless `adam_w_mode` is off."""
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
    """Return whether the configured optimizer counts its steps in plain numbers: DeepSpeed's Adam
    and Lion do, on GPU and CPU; torch's have tensors."""
    kind, given = _section(config)
    is_torch = given is not None and given.get(_TORCH_ADAM) is True
    return kind in ("adam", "adamw", "lion") and not is_torch


def completed_options(
    options: Mapping[str, Any], config: Any, source: Checkpoint, number: int
) -> dict[str, Any]:
    """Return the options of param group `number` with those that its class has by default.

    Raises:
        BadRequest: it has no learning rate.
    """
    if "lr" not in options:
        raise BadRequest(
            f"{source.origin.path}: param group {number} has no lr; pass --lr, or --ds-config with "
            'an "optimizer"'
        )
    return {**_defaults(*_section(config)), **options}


def hyperparameters_of(mp_shard: MpShard, settings: ZeroSettings) -> Mapping[str, Any]:
    """Return options for groups without options in the files; empty if all have them.

    Raises:
        BadRequest: elastic state, and no configuration names its optimizer.
    """
    optim = first_of(mp_shard.optim_states)
    if optim.is_rigid:
        return {}
    config = settings.ds_config or mp_shard.model.ds_config
    options = options_from(config)
    if options is None:
        raise BadRequest(
            f"{optim.file.path} has elastic optimizer state, which lacks lr, betas and the like, "
            "and its configuration does not name them: pass --ds-config with an Adam, AdamW or SGD "
            '"optimizer" and its "params"'
        )
    return options

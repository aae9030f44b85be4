"""DeepSpeed's loss scalers, as the objects that its files contain.

Source: DeepSpeed `runtime/fp16/loss_scaler.py`: `LossScaler`, `DynamicLossScaler`,
`CreateLossScaler`; the defaults in `runtime/constants.py`, section FP16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.core.checkpoint import Opaque
from zerotools.core.dtypes import FLOAT16, DType
from zerotools.core.errors import BadRequest
from zerotools.core.training_state import LARGEST_SCALE, LossScale
from zerotools.formats.deepspeed.schema.state_dict_keys import (
    DYNAMIC_LOSS_SCALE,
    LOSS_SCALER,
    OVERFLOW,
)

LARGEST_POWER = 127
"""The largest `initial_scale_power`: an fp32 gradient can hold no larger scale."""

_SCALE = "cur_scale"
_MODULE = "deepspeed.runtime.fp16.loss_scaler"


@dataclass(frozen=True)
class Scaler:
    """The loss scaler of a run. `is_new` is True if the source had no scaler, so that this scaler
    is in its initial state.
    """

    value: Opaque
    is_dynamic: bool
    is_new: bool = False

    def keys(self) -> dict[str, Any]:
        """Return the keys and values that the scaler adds to the saved state of an optimizer."""
        return {LOSS_SCALER: self.value, DYNAMIC_LOSS_SCALE: self.is_dynamic, OVERFLOW: False}


def scaler_of(saved: LossScale | None, config: Mapping[str, Any], precision: DType) -> Scaler:
    """Return the scaler of a run: the saved scaler or, without one, a new scaler with the values in
    the configuration.

    Raises:
        BadRequest: the initial scale is too large for its dtype.
    """
    if precision != FLOAT16:
        return Scaler(_static(1.0), is_dynamic=False)
    section = config.get("fp16")
    fp16: Mapping[str, Any] = section if isinstance(section, Mapping) else {}
    fixed = _number(fp16, "loss_scale", 0)
    if saved is not None and not saved.dynamic:
        return Scaler(_static(saved.scale), is_dynamic=False)
    if saved is None and fixed:
        return Scaler(_static(float(fixed)), is_dynamic=False, is_new=True)
    power = _number(fp16, "initial_scale_power", 16)
    if not 0 <= power <= LARGEST_POWER:
        raise BadRequest(
            f'the configuration of DeepSpeed has "initial_scale_power": {power}, but it must be '
            f"from 0 to {LARGEST_POWER}; correct it"
        )
    scale = saved.scale if saved is not None else 2.0**power
    hysteresis = _number(fp16, "hysteresis", 2)
    state = {
        _SCALE: scale,
        "dynamic": True,
        "cur_iter": 0,
        "last_overflow_iter": -1,
        "scale_factor": 2.0,
        "scale_window": _number(fp16, "loss_scale_window", 1000),
        "min_scale": _number(fp16, "min_loss_scale", 1),
        "delayed_shift": hysteresis,
        "cur_hysteresis": hysteresis,
        "consecutive_hysteresis": fp16.get("consecutive_hysteresis") is True,
        "raise_error_at_min_scale": True,
        "dtype": FLOAT16,
        **(saved.options if saved is not None else {}),
    }
    value = Opaque(_MODULE, "DynamicLossScaler", state=state)
    return Scaler(value, is_dynamic=True, is_new=saved is None)


def loss_scaler_of(saved: Mapping[str, Any]) -> LossScale | None:
    """Return the loss scaler in an optimizer file, or None. The scaler of a bf16 or fp32 run
    multiplies by 1.
    """
    scaler = saved.get(LOSS_SCALER)
    if not isinstance(scaler, Opaque) or not isinstance(scaler.state, Mapping):
        return None
    options = {str(key): value for key, value in scaler.state.items()}
    scale = options.pop(_SCALE, None)
    dynamic = options.pop("dynamic", None)
    dynamic = saved.get(DYNAMIC_LOSS_SCALE) is True if dynamic is None else dynamic is True
    if not isinstance(scale, int | float) or not abs(scale) <= LARGEST_SCALE:  # or NaN
        return None
    return LossScale(float(scale), dynamic, options, f"{scaler.module}.{scaler.name}")


def saved_scaler(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved values of the loss scaler. If none are saved, return the values of a scaler
    that multiplies by 1.
    """
    unscaled = Scaler(_static(1.0), is_dynamic=False).keys()
    return {key: saved.get(key, value) for key, value in unscaled.items()}


def counters_of(scaler: Any) -> dict[str, Any]:
    """Return the numbers of the scaler that must be equal on all ranks of a save. The keys are the
    names that messages use.
    """
    if not isinstance(scaler, Opaque) or not isinstance(scaler.state, Mapping):
        return {}
    return {name: scaler.state.get(name) for name in (_SCALE, "cur_iter")}


def _static(scale: float) -> Opaque:
    return Opaque(_MODULE, "LossScaler", state={_SCALE: scale, "dynamic": False})


def _number(section: Mapping[str, Any], key: str, default: int) -> int | float:
    value = section.get(key, default)
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    return value if usable else default

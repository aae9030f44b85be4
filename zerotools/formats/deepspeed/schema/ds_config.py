"""Keys of a DeepSpeed configuration, and the ZeRO settings, dtypes and optimizer that it selects.

The configuration may be that of the saved run or of the resuming run. `ZeroSettings` has the ZeRO
settings of the resuming run, from options or from its configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from zerotools.core.errors import BadRequest

STAGE = "stage"
SUB_GROUP_SIZE = "sub_group_size"
ROUND_ROBIN = "round_robin_gradients"
ALIGNED = "parameter_alignment"
DEFAULT_SUB_GROUP_SIZE = 1_000_000_000


LARGEST_CONFIG = 2**20


def read_config(path: Path) -> dict[str, Any]:
    """Read the DeepSpeed configuration in the JSON file `path`.

    Raises:
        BadRequest: the file does not contain a configuration.
    """
    try:
        with path.open("rb") as stream:  # the user may pass a pipe, which has no size
            data = stream.read(LARGEST_CONFIG + 1)
        if len(data) > LARGEST_CONFIG:
            raise BadRequest(
                f"{path} is larger than {LARGEST_CONFIG} bytes, so it is not a configuration of "
                "DeepSpeed; name the right file"
            )
        tree: Any = json.loads(data)
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path} is not JSON: {error!s:.200}; correct it") from None
    if not isinstance(tree, dict):
        raise BadRequest(
            f"{path} is not a JSON object, so it is not a configuration of DeepSpeed; name the "
            "right file"
        )
    return tree


def zero_optimization(config: Any) -> Mapping[str, Any]:
    """Return the table `zero_optimization` of a configuration; empty if it is missing."""
    zero = config.get("zero_optimization") if isinstance(config, Mapping) else None
    return zero if isinstance(zero, Mapping) else {}


def mics_keys(zero: Mapping[str, Any]) -> list[str]:
    """Return the keys in `zero_optimization` that configure MiCS. MiCS shards the model over groups
    of ranks instead of over all ranks.
    """
    return [key for key in zero if isinstance(key, str) and key.startswith("mics_")]


def number_of(zero: Mapping[str, Any], key: str, default: int) -> int:
    """Return the whole number at `key` of the configuration; `default`, as in DeepSpeed, if the
    value is absent, None or "auto".
    """
    value = zero.get(key, default)
    if value is None or value == "auto":
        return default
    is_whole = type(value) is int or (isinstance(value, float) and value.is_integer())
    if not is_whole:
        raise BadRequest(
            f'the configuration of DeepSpeed has "{key}": {value!r:.40}, which must be a whole '
            "number; correct it"
        )
    return int(value)


PRECISION_KEYS: Mapping[str, DType] = {"bf16": BFLOAT16, "fp16": FLOAT16}


def computed_type(stored: DType | None) -> DType:
    """Return the dtype that a run computes in: `stored`, the dtype of its weights, if this has 16
    bits, else fp32.
    """
    return stored if stored in (FLOAT16, BFLOAT16) else FLOAT32


def optimizer_name(config: Any) -> str | None:
    """Return the optimizer type in a configuration, or None if the program passes its own
    optimizer."""
    section = config.get("optimizer") if isinstance(config, Mapping) else None
    kind = section.get("type") if isinstance(section, Mapping) else None
    return kind if isinstance(kind, str) else None


def configured_precision(config: Mapping[str, Any] | None) -> DType | None:
    """Return the dtype in which a run with this DeepSpeed config trains.

    Return None if there is no config, or if its `enabled` for a precision is "auto".
    """
    if config is None:
        return None
    for key, dtype in PRECISION_KEYS.items():
        section = config.get(key)
        enabled = section.get("enabled") if isinstance(section, Mapping) else False
        if enabled == "auto":
            return None
        if enabled is True:
            return dtype
    return FLOAT32


def masters_type(config: Any) -> DType:
    """Return the dtype of the masters in a run with ZeRO and this configuration."""
    for key, dtype in PRECISION_KEYS.items():
        section = config.get(key) if isinstance(config, Mapping) else None
        if isinstance(section, Mapping) and section.get(f"{key}_master_weights_and_grads") is True:
            return dtype
    return FLOAT32


def adds_up_in_fp32(config: Any) -> bool:
    """Return whether a bf16 run of stage 1 with this configuration has BF16_Optimizer.

    Source: DeepSpeed `runtime/engine.py`: `_do_optimizer_sanity_check`.
    """
    types = config.get("data_types") if isinstance(config, Mapping) else None
    name = types.get("grad_accum_dtype") if isinstance(types, Mapping) else None
    fp32 = name in ("fp32", "float32", "float", "torch.float32")
    return fp32 and not offloads_optimizer(config)


def offloads_optimizer(config: Any) -> bool:
    """Return whether a run of stage 1 or 2 with this configuration keeps its optimizer on the
    CPU."""
    offload = zero_optimization(config).get("offload_optimizer")
    return isinstance(offload, Mapping) and offload.get("device") == "cpu"


_STAGES = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class ZeroSettings:
    """The settings that the user requests for the output; None means: as in the source.

    `ds_config` is the configuration of the run that will resume. If it is set, it determines all
    settings; DeepSpeed's default is used for each key that it lacks.
    """

    stage: int | None = None
    sub_group_size: int | None = None
    round_robin: bool | None = None
    ds_config: Mapping[str, Any] | None = None

    def settled(self) -> ZeroSettings:
        """Return the settings, with the values from `ds_config` if the user passed a configuration.

        Raises:
            BadRequest: DeepSpeed has no such value, or an option contradicts `ds_config`.
        """
        if self.stage is not None and self.stage not in _STAGES:
            raise BadRequest(
                f"--stage is {self.stage}, but must be 1, 2 or 3, the stages with partitions; "
                "choose one of these"
            )
        if self.sub_group_size is not None and self.sub_group_size < 1:
            raise BadRequest(
                f"--sub-group-size is {self.sub_group_size}, but must be at least 1; choose a "
                "larger size"
            )
        if self.ds_config is None:
            return self
        zero = zero_optimization(self.ds_config)
        stage = number_of(zero, STAGE, 0)
        if stage not in _STAGES:
            raise BadRequest(
                f"the configuration has ZeRO stage {stage}, which does not partition checkpoints; "
                "zerotools writes stages 1, 2 and 3"
            )
        size = number_of(zero, SUB_GROUP_SIZE, DEFAULT_SUB_GROUP_SIZE)
        round_robin = zero.get(ROUND_ROBIN) is True
        _agree("--stage", STAGE, self.stage, stage)
        _agree("--sub-group-size", SUB_GROUP_SIZE, self.sub_group_size, size)
        _agree("--round-robin", ROUND_ROBIN, self.round_robin, round_robin)
        return ZeroSettings(
            stage,
            size if stage == 3 else None,
            round_robin if stage != 3 else None,
            self.ds_config,
        )


AS_IS = ZeroSettings()


def _agree(flag: str, key: str, asked: int | None, configured: int) -> None:
    if asked is not None and asked != configured:
        raise BadRequest(
            f"{flag} is {_word(asked)}, but the configuration of the resuming run has "
            f"{_word(configured)}: leave {flag} out, or change zero_optimization.{key} in the "
            "file of --ds-config"
        )


def _word(value: int) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)

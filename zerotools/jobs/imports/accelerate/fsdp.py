"""accelerate's `fsdp_config`: sharding and offload."""

from __future__ import annotations

from typing import Any

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.reader import ConfigReading
from zerotools.jobs.imports.reading.report import KeyOutcome
from zerotools.jobs.imports.reading.typed_keys import ConfigValue

_ONE_MACHINE = "on one machine the same as without HYBRID"
_STRATEGIES: dict[str, tuple[int, str]] = {
    "FULL_SHARD": (3, ""),
    "SHARD_GRAD_OP": (2, ""),
    "NO_SHARD": (0, ""),
    "HYBRID_SHARD": (3, _ONE_MACHINE),
    "HYBRID_SHARD_ZERO2": (2, _ONE_MACHINE),
}
_NUMBERED = dict(enumerate(_STRATEGIES, start=1))
"""torch.distributed.fsdp.ShardingStrategy, which accelerate also takes by number."""
_STAGE = "zero.stage"


def read_fsdp(reading: ConfigReading) -> None:
    """Map stage, offload and activation checkpointing."""
    version = reading.take("fsdp_config.fsdp_version")
    if version is not None:
        reading.row(KeyOutcome.IGNORED, version, None, "the engine torch shards with FSDP2")
    strategy = reading.take("fsdp_config.fsdp_sharding_strategy")
    reshard = reading.take("fsdp_config.fsdp_reshard_after_forward")
    if strategy is not None:
        _strategy(reading, strategy)
    if reshard is not None:
        _reshard(reading, reshard)
    if strategy is None and reshard is None:
        reading.default("fsdp_reshard_after_forward", _STAGE, 3)
    _switch(reading, "fsdp_config.fsdp_offload_params", "offload.params", "cpu")
    _switch(
        reading,
        "fsdp_config.fsdp_activation_checkpointing",
        "train.activation_checkpointing",
        True,
    )


def _strategy(reading: ConfigReading, given: ConfigValue) -> None:
    name: Any = given.value
    if str(name).isdecimal():
        name = _NUMBERED.get(int(str(name)[:4]))
    if name not in _STRATEGIES:
        names = ", ".join(_STRATEGIES)
        reading.findings.wrong.append(f"{given.said} = {show(given.value)}: must be one of {names}")
        return
    stage, why = _STRATEGIES[name]
    reading.map(given, _STAGE, stage, why)


def _reshard(reading: ConfigReading, given: ConfigValue) -> None:
    value = _boolean(given.value)
    if value is None:
        _strategy(reading, given)  # FSDP1 has the strategy's name here
    else:
        reading.map(given, _STAGE, 3 if value else 2)


def _switch(reading: ConfigReading, name: str, key: str, on: Any) -> None:
    given = reading.take(name)
    if given is None:
        return
    value = _boolean(given.value)
    if value is None and given.value is not None:
        what = f"{given.said} = {show(given.value)}: must be true or false"
        reading.findings.wrong.append(what)
    elif value:
        reading.map(given, key, on)
    else:
        reading.row(KeyOutcome.IGNORED, given, None, "is off")


def _boolean(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(str(value).lower())

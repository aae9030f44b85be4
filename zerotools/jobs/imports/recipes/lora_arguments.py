"""LoRA in the arguments of a program."""

from __future__ import annotations

import json
from typing import Any

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.report import KeyOutcome
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.imports.recipes.argument_values import ArgumentReading
from zerotools.jobs.imports.recipes.packed_arguments import read_packed
from zerotools.jobs.launcher_keys.key_kinds import ValueKind
from zerotools.jobs.launcher_keys.trainer_keys import ALL_LINEAR

_EVERY = ("all", "all-linear")
RANK = "lora.rank"


def read_adapters(reading: ArgumentReading) -> None:
    """Map `lora_rank` and the like, where adapters are trained at all."""
    config = reading.config
    switch = reading.typed("use_lora", ValueKind.BOOL)
    rank = reading.typed("lora_rank", ValueKind.COUNT)
    alpha = reading.typed("lora_alpha", ValueKind.NUMBER)
    dropout = reading.typed("lora_dropout", ValueKind.NUMBER)
    targets = config.take("lora_target_modules")
    rest = [given for given in (rank, alpha, dropout, targets) if given is not None]
    on = switch.value if switch is not None else rank is not None
    read_packed(reading, adapts=on)
    if not on:
        for given in [*rest, *([] if switch is None else [switch])]:
            config.row(KeyOutcome.IGNORED, given, None, "no adapters are trained")
        return
    if switch is not None:
        config.row(KeyOutcome.MAPPED, switch, RANK, "by lora_rank")
    if rank is not None:
        config.map(rank, RANK, rank.value)
    else:
        config.default("lora_rank", RANK, 8, "peft's default")
    if alpha is not None:
        config.map(alpha, "lora.alpha", alpha.value)
    elif "lora_alpha" in reading.recipe.defaults:
        reading.default("lora_alpha", "lora.alpha")
    if dropout is not None:
        config.map(dropout, "lora.dropout", dropout.value)
    if targets is not None:
        _read_targets(reading, targets)


def _read_targets(reading: ArgumentReading, given: ConfigValue) -> None:
    names = given.value if isinstance(given.value, list) else str(given.value).split(",")
    names = [str(name).strip() for name in names if str(name).strip()]
    if not names or any("*" in name or "(" in name for name in names):
        what = f"{given.said} = {show(given.value)}: must be names of layers"
        reading.config.findings.wrong.append(what)
    elif names[0] not in _EVERY:
        reading.config.map(given, "lora.target_modules", tuple(names))
    else:
        kind = _model_type(reading)
        if kind in ALL_LINEAR:
            reading.config.map(given, "lora.target_modules", ALL_LINEAR[kind], f"of a {kind}")
        else:
            whose = f"of a {kind}" if kind else "of a model whose config is not found"
            reading.config.findings.unsupported.append(
                f"{given.said} = {show(given.value)}: the linear layers {whose} are not known "
                "here; set lora.target_modules to their names"
            )


def _model_type(reading: ArgumentReading) -> str:
    claim = reading.config.claims.of("model.path")
    if claim is None:
        return ""
    try:
        text = (reading.recipe.found(str(claim.value)) / "config.json").read_text("utf-8")
        config: Any = json.loads(text)
        return str(config["model_type"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""

"""Read a program's arguments for LoRA and QLoRA."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from zerotools.core.training_memory_layout import NF4
from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.programs.typed_arguments import ArgumentReading
from zerotools.jobs.imports.reading.check_deepspeed_keys import ConfigValue
from zerotools.jobs.imports.reading.import_report import KeyOutcome
from zerotools.jobs.launcher_keys.config_key import ValueKind
from zerotools.jobs.launcher_keys.trainer_keys import ALL_LINEAR, MODEL_NAMES

_EVERY = ("all", "all-linear")
_AROUND_NAMES = " \t[]'\""
"""Characters that surround names in a list in Python's notation, such as [q_proj,v_proj]."""
RANK = "lora.rank"
PACKED, DOUBLE = "lora.frozen_precision", "lora.double_quant"
_BITSANDBYTES = ("bnb", "bitsandbytes")
_WHOLE = (0, 16, 32)
"""Numbers of bits of weights that are not quantised."""


def read_adapters(reading: ArgumentReading) -> None:
    """Translate `lora_rank` and similar arguments to keys of the job file, if the program
    trains adapters.
    """
    config = reading.config
    switch = reading.typed("use_lora", ValueKind.BOOL)
    rank = reading.typed("lora_rank", ValueKind.COUNT)
    alpha = reading.typed("lora_alpha", ValueKind.NUMBER)
    dropout = reading.typed("lora_dropout", ValueKind.NUMBER)
    targets = config.pop("lora_target_modules")
    rest = [given for given in (rank, alpha, dropout, targets) if given is not None]
    on = switch.value if switch is not None else rank is not None
    _read_packed(reading, adapts=on)
    if not on:
        for given in [*rest, *([] if switch is None else [switch])]:
            config.row(KeyOutcome.IGNORED, given, None, "no adapters are trained")
        return
    if switch is not None:
        config.row(KeyOutcome.MAPPED, switch, RANK, "by lora_rank")
    if rank is not None:
        config.map(rank, RANK, rank.value)
    elif "lora_rank" in reading.run.defaults:
        reading.default("lora_rank", RANK)
    else:
        config.default("lora_rank", RANK, 8, "peft's default")
        config.findings.differences.append(
            "adapters: rank 8, the default of peft; the default of the program may differ "
            "(lora.rank, lora.alpha)"
        )
    if alpha is not None:
        config.map(alpha, "lora.alpha", alpha.value)
    elif "lora_alpha" in reading.run.defaults:
        reading.default("lora_alpha", "lora.alpha")
    if dropout is not None:
        config.map(dropout, "lora.dropout", dropout.value)
    elif "lora_dropout" in reading.run.defaults:
        reading.default("lora_dropout", "lora.dropout")
    if targets is not None:
        _read_targets(reading, targets)


def _read_packed(reading: ArgumentReading, *, adapts: bool) -> None:
    """Translate `load_in_4bit` and similar arguments to keys of the job file.

    `adapts` is true if the program trains adapters. Without adapters, weights of 4 bits are not
    supported.
    """
    config = reading.config
    switch = reading.typed("load_in_4bit", ValueKind.BOOL)
    bits = reading.typed("quantization_bit", ValueKind.COUNT)
    kind = reading.typed("quantization_type", ValueKind.TEXT)
    method = reading.typed("quantization_method", ValueKind.TEXT)
    double = reading.typed("double_quantization", ValueKind.BOOL)
    asks = [given for given in (switch, bits) if given is not None]
    on = [given for given in asks if given.value is True or given.value not in (False, *_WHOLE)]
    if not on:
        for given in (*asks, kind, method, double):
            if given is not None:
                config.row(KeyOutcome.IGNORED, given, None, "the weights are not quantised")
        return
    if not adapts:
        which = "weights of 4 bits cannot be trained without adapters; add adapters, or turn it off"
        reading.unsupported(on[0], which)
        for given in (*asks, kind, method, double):
            if given is not None and given is not on[0]:
                config.row(KeyOutcome.IGNORED, given, None, f"goes with {on[0].title}")
        return
    if bits in on and bits is not None and bits.value != 4:
        reading.unsupported(bits, "supported: 4")
    _check(reading, kind, (NF4,))
    _check(reading, method, _BITSANDBYTES)
    config.map(on[0], PACKED, NF4)
    for given in asks:
        if given not in on:
            config.row(KeyOutcome.IGNORED, given, None, f"is off, but {on[0].title} is on")
        elif given is not on[0]:
            config.row(KeyOutcome.MAPPED, given, PACKED, f"by {on[0].title}")
    if double is not None:
        config.map(double, DOUBLE, double.value)
    elif "double_quantization" in reading.run.defaults:
        reading.default("double_quantization", DOUBLE)
    else:
        config.default("double_quantization", DOUBLE, False, "transformers' default")


def _check(reading: ArgumentReading, given: ConfigValue | None, known: tuple[str, ...]) -> None:
    if given is None:
        return
    if str(given.value).lower() in known:
        reading.config.row(KeyOutcome.MAPPED, given, PACKED, "")
    else:
        reading.unsupported(given, f"supported: {', '.join(known)}")


def _read_targets(reading: ArgumentReading, given: ConfigValue) -> None:
    names = given.value if isinstance(given.value, list) else str(given.value).split(",")
    names = [name for each in names if (name := str(each).strip(_AROUND_NAMES))]
    if not names or any("*" in name or "(" in name for name in names):
        what = f"{given.label} = {format_value(given.value)}: must be a list of layer names"
        reading.config.findings.wrong.append(what)
    elif names[0] not in _EVERY:
        reading.config.map(given, "lora.target_modules", tuple(names))
    else:
        kind = _model_type(reading)
        named = "" if kind else _type_by_name(reading)
        if kind in ALL_LINEAR:
            reading.config.map(
                given, "lora.target_modules", ALL_LINEAR[kind], f"all linear layers of {kind}"
            )
        elif named:
            why = f"{named}, according to the name of the model"
            reading.config.map(given, "lora.target_modules", ALL_LINEAR[named], why)
        else:
            whose = f"of a {kind}" if kind else "of a model without a config"
            reading.config.findings.unsupported.append(
                f"{given.label} = {format_value(given.value)}: the linear layers {whose} are not "
                "known "
                "here; set lora.target_modules to their names"
            )


def _type_by_name(reading: ArgumentReading) -> str:
    """Guess the `model_type` of a model that is not downloaded yet from its name.

    Return the empty string for an unknown name.
    """
    claim = reading.config.claims.of("model.path")
    if claim is None or reading.run.found(str(claim.value)).is_dir():
        return ""
    name = "/".join(Path(str(claim.value)).parts[-2:]).lower()
    return next((kind for part, kind in MODEL_NAMES.items() if re.search(part, name)), "")


def _model_type(reading: ArgumentReading) -> str:
    claim = reading.config.claims.of("model.path")
    if claim is None:
        return ""
    try:
        text = (reading.run.found(str(claim.value)) / "config.json").read_text("utf-8")
        config: Any = json.loads(text)
        return str(config["model_type"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""

"""How long a Trainer trains, and its learning rate meanwhile."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.report import KeyOutcome
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.imports.recipes.argument_values import ArgumentReading
from zerotools.jobs.launcher_keys.key_kinds import ValueKind
from zerotools.jobs.launcher_keys.trainer_keys import SCHEDULES

STEPS, EPOCHS, WARMUP = "train.steps", "train.epochs", "train.warmup_steps"
RATIO = "train.warmup_ratio"


def read_schedule(reading: ArgumentReading) -> None:
    """Map steps or epochs, the schedule and its warm-up."""
    steps = _read_length(reading)
    kind = reading.typed("lr_scheduler_type", ValueKind.TEXT)
    if kind is None:
        reading.default("lr_scheduler_type", "train.schedule")
    elif kind.value in SCHEDULES:
        reading.config.map(kind, "train.schedule", SCHEDULES[kind.value])
    else:
        reading.unsupported(kind, f"supported: {', '.join(SCHEDULES)}")
    _read_options(reading, "" if kind is None else str(kind.value))
    _read_warmup(reading, steps, "" if kind is None else str(kind.value))


def _read_length(reading: ArgumentReading) -> int | None:
    config = reading.config
    steps = reading.typed("max_steps", ValueKind.NUMBER)
    epochs = reading.typed("num_train_epochs", ValueKind.NUMBER)
    if steps is not None and steps.value > 0:
        if steps.value != int(steps.value):
            what = f"{steps.said} = {show(steps.value)}: must be a whole number"
            config.findings.wrong.append(what)
            return None
        config.map(steps, STEPS, int(steps.value))
        if epochs is not None:
            config.row(KeyOutcome.IGNORED, epochs, None, "max_steps goes before it")
        return int(steps.value)
    if steps is not None:
        config.row(KeyOutcome.IGNORED, steps, None, "the epochs count")
    if epochs is not None:
        config.map(epochs, EPOCHS, float(epochs.value))
    elif not config.said(STEPS) and not config.said(EPOCHS):
        reading.default("num_train_epochs", EPOCHS)
    claim = config.claims.of(STEPS)
    return claim.value if claim is not None and type(claim.value) is int else None


def _read_warmup(reading: ArgumentReading, steps: int | None, kind: str) -> None:
    config = reading.config
    ratio = reading.typed("warmup_ratio", ValueKind.NUMBER)
    given = reading.typed("warmup_steps", ValueKind.NUMBER)
    for entry in (given, ratio):
        if entry is not None and kind == "constant":
            config.row(KeyOutcome.IGNORED, entry, None, "a constant schedule has no warm-up")
    if kind == "constant":
        config.claims.add(WARMUP, 0, f"{reading.recipe.source} (constant)", weak=True)
        return
    if given is not None and given.value >= 1:
        if ratio is not None:
            config.row(KeyOutcome.IGNORED, ratio, None, "warmup_steps goes before it")
        _whole(reading, given)
        return
    if given is not None and given.value > 0:  # transformers 5 takes a part of all steps here
        if ratio is not None:
            config.row(KeyOutcome.IGNORED, ratio, None, "warmup_steps goes before it")
        ratio = given
    elif given is not None:
        config.row(KeyOutcome.MAPPED, given, WARMUP)
    if ratio is not None and ratio.value:
        _part(reading, ratio, steps)
    elif ratio is not None:
        config.row(KeyOutcome.MAPPED, ratio, WARMUP)
    elif given is None:
        reading.default("warmup_steps", WARMUP)


def _whole(reading: ArgumentReading, given: ConfigValue) -> None:
    if given.value != int(given.value):
        what = f"{given.said} = {show(given.value)}: must be a whole number"
        reading.config.findings.wrong.append(what)
        return
    reading.config.map(given, WARMUP, int(given.value))


def _part(reading: ArgumentReading, given: ConfigValue, steps: int | None) -> None:
    if not 0 <= given.value <= 1:
        what = f"{given.said} = {show(given.value)}: must be between 0 and 1"
        reading.config.findings.wrong.append(what)
    elif steps is None:
        reading.config.map(given, RATIO, given.value)
    else:
        warmup = math.ceil(given.value * steps)
        reading.config.map(given, WARMUP, warmup, f"of {steps} steps")


def _read_options(reading: ArgumentReading, kind: str) -> None:
    """Map `lr_scheduler_kwargs`: the minimum of a cosine, the parts of a `warmup_stable_decay`."""
    given = reading.config.take("lr_scheduler_kwargs")
    if given is None:
        return
    options = _table(given)
    if options is None:
        what = f"{given.said} = {show(given.value)}: must be a JSON object"
        reading.config.findings.wrong.append(what)
        return
    if not options:
        reading.config.row(KeyOutcome.IGNORED, given, None, "says nothing")
    left = dict(options)
    stable = kind == "warmup_stable_decay"
    floor = left.pop("min_lr", None)
    part = left.pop("min_lr_ratio" if stable else "min_lr_rate", None)
    if stable and left.get("decay_type") == "cosine":
        del left["decay_type"]  # the default, as `train.schedule_form` has it
    rate = reading.config.known("train.learning_rate")
    if floor is None and part is not None and rate is not None and _is_number(part):
        floor = part * rate.value
    if _is_number(floor) and (stable or kind == "cosine_with_min_lr"):
        reading.config.map(given, "train.min_learning_rate", floor)
    decay = left.pop("num_decay_steps", None)
    if type(decay) is int and stable:
        reading.config.map(given, "train.decay_steps", decay)
    if left:
        supported = "min_lr, min_lr_rate, min_lr_ratio and num_decay_steps are"
        reading.unsupported(given, f"of its keys: {supported}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _table(given: ConfigValue) -> Mapping[str, Any] | None:
    value = given.value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, Mapping) else None

"""ms-swift's command: the Trainer's arguments, some under other names, with other defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.report import KeyOutcome, ReportRow
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.imports.recipes.recipe import Recipe
from zerotools.jobs.launcher_keys.recipe_keys import (
    SWIFT_DEFAULTS,
    SWIFT_IGNORED,
    SWIFT_LORA_RATE,
    SWIFT_NAMES,
    SWIFT_PRECISIONS,
)

_STAGES = ("zero0", "zero1", "zero2", "zero3")
_OFFLOAD = "_offload"
_EXAMPLES_A_STEP = 16
"""Its default number of sequences in a step, which it accumulates."""


def read_swift(recipe: Recipe, method: str) -> Recipe:
    """Return the recipe of `swift METHOD`, `sft` or `pt`; others are refused in its findings."""
    given = {SWIFT_NAMES.get(name, name): each for name, each in recipe.given.items()}
    place = recipe.source if recipe.program is None else recipe.program.place
    if method not in ("sft", "pt"):
        recipe.findings.unsupported.append(
            f"{place}: swift {method} trains on rewards or preferences; write such a job by hand "
            "(zerotools help learn-from-preferences), or run the program with --as script"
        )
    for name in [name for name in given if name in SWIFT_IGNORED]:
        each = given.pop(name)
        row = ReportRow(KeyOutcome.IGNORED, each.title, each.place, None, None, SWIFT_IGNORED[name])
        recipe.findings.rows.append(row)
    defaults: dict[str, Any] = dict(SWIFT_DEFAULTS)
    kind = given.pop("train_type", None)
    adapts = kind is None or kind.value == "lora"
    if kind is not None and kind.value not in ("lora", "full"):
        what = f"{kind.said} = {show(kind.value)}: is not supported; supported: lora, full"
        recipe.findings.unsupported.append(what)
    given["use_lora"] = replace(
        kind or ConfigValue("use_lora", "(no train_type)", place, None), value=adapts
    )
    if adapts:
        defaults["learning_rate"] = SWIFT_LORA_RATE
        given.setdefault(
            "lora_target_modules",
            ConfigValue("lora_target_modules", "(no target_modules)", place, "all-linear"),
        )
    _read_precision(recipe, given)
    if "gradient_accumulation_steps" not in given:
        micro = given.get("per_device_train_batch_size")
        defaults["gradient_accumulation_steps"] = _accumulation(recipe, micro)
    found = {name: replace(each, name=name) for name, each in given.items()}
    named = recipe.deepspeed
    stage = None if named is None else str(named.value).removeprefix("default-")
    if named is not None and stage and stage.removesuffix(_OFFLOAD) in _STAGES:
        found["zero_stage"] = replace(named, name="zero_stage", value=stage[4])
        if stage.endswith(_OFFLOAD):
            found["offload"] = replace(named, name="offload", value=True)
        named = None
    return replace(
        recipe,
        given=found,
        defaults=defaults,
        who="ms-swift",
        deepspeed=named,
        examples=method != "pt",
    )


def _accumulation(recipe: Recipe, micro: ConfigValue | None) -> int:
    size, ranks = (_whole(each) for each in (micro, recipe.ranks))
    return max(1, -(-_EXAMPLES_A_STEP // (size * ranks)))


def _whole(given: ConfigValue | None) -> int:
    text = "" if given is None else str(given.value)
    return int(text) if text.isdecimal() and 0 < len(text) < 7 and int(text) else 1


def _read_precision(recipe: Recipe, given: dict[str, ConfigValue]) -> None:
    kind = given.pop("torch_dtype", None)
    precisions: Mapping[str, str] = SWIFT_PRECISIONS
    if kind is None or "bf16" in given or "fp16" in given:
        return
    name = precisions.get(str(kind.value))
    if name is None:
        listed = ", ".join(precisions)
        what = f"{kind.said} = {show(kind.value)}: is not supported; supported: {listed}"
        recipe.findings.unsupported.append(what)
    elif name:
        given[name] = replace(kind, value=True)

"""QLoRA in the arguments of a program: frozen weights in 4 bits."""

from __future__ import annotations

from zerotools.core.memory_layout import NF4
from zerotools.jobs.imports.reading.report import KeyOutcome
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.imports.recipes.argument_values import ArgumentReading
from zerotools.jobs.launcher_keys.key_kinds import ValueKind

KEY, DOUBLE = "lora.frozen_precision", "lora.double_quant"
_BITSANDBYTES = ("bnb", "bitsandbytes")
_WHOLE = (0, 16, 32)
"""Bits of weights that are not packed."""


def read_packed(reading: ArgumentReading, *, adapts: bool) -> None:
    """Map `load_in_4bit` and the like. `adapts` says whether adapters are trained."""
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
                config.row(KeyOutcome.IGNORED, given, None, "weights keep all their bits")
        return
    if not adapts:
        which = "weights of 4 bits are trained by adapters alone; set its adapters, or turn it off"
        reading.unsupported(on[0], which)
        return
    if bits in on and bits is not None and bits.value != 4:
        reading.unsupported(bits, "those that are: 4")
    _check(reading, kind, (NF4,))
    _check(reading, method, _BITSANDBYTES)
    config.map(on[0], KEY, NF4)
    for given in on[1:]:
        config.row(KeyOutcome.MAPPED, given, KEY, f"by {on[0].title}")
    if double is not None:
        config.map(double, DOUBLE, double.value)
    elif "double_quantization" in reading.recipe.defaults:
        reading.default("double_quantization", DOUBLE)
    else:
        config.default("double_quantization", DOUBLE, False, "transformers' default")


def _check(reading: ArgumentReading, given: ConfigValue | None, known: tuple[str, ...]) -> None:
    if given is None:
        return
    if str(given.value).lower() in known:
        reading.config.row(KeyOutcome.MAPPED, given, KEY, "")
    else:
        reading.unsupported(given, f"those that are: {', '.join(known)}")

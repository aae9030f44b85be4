"""`fp16`, `bf16` and the loss scale."""

from __future__ import annotations

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.job_keys import deepspeed_names
from zerotools.jobs.imports.reading.reader import ConfigReading
from zerotools.jobs.imports.reading.report import KeyOutcome
from zerotools.jobs.imports.reading.typed_keys import AUTO, ConfigValue
from zerotools.jobs.launcher_keys.deepspeed_keys import KEYS

PRECISION = "train.precision"
_SWITCHES = (("fp16", "fp16.enabled"), ("bf16", "bf16.enabled"), ("bf16", "bfloat16.enabled"))


def read_precision(reading: ConfigReading) -> None:
    """Map the enabled one; refuse both."""
    _refuse_second_name(reading)
    autos = _resolve_autos(reading)
    given = {name: reading.remaining[name] for _, name in _SWITCHES if name in reading.remaining}
    on = [(kind, given[name]) for kind, name in _SWITCHES if name in given and given[name].value]
    if len({kind for kind, _ in on}) > 1:
        first, second = on[0][1], on[1][1]
        what = f"{first.said} and {second.said} are both on; switch one of them off"
        reading.findings.wrong.append(what)
    for kind, switch in _SWITCHES:
        taken = reading.take(switch)
        if taken is not None:
            _switch(reading, taken, kind)
    if not on and not autos:
        reading.default("fp16.enabled, bf16.enabled", PRECISION, "fp32")
    _loss_scale(reading, any(kind == "fp16" for kind, _ in on))


def _refuse_second_name(reading: ConfigReading) -> None:
    """Refuse `bfloat16` together with `bf16`: it is the older name, and DeepSpeed then ignores
    it."""
    old = [given for name, given in reading.remaining.items() if _is_in(name, "bfloat16")]
    if old and any(_is_in(name, "bf16") for name in reading.remaining):
        reading.findings.wrong.append(
            f"{old[0].said}: bfloat16 is an older name of bf16, and DeepSpeed passes over it where "
            "both are given; write everything under bf16"
        )


def _is_in(name: str, section: str) -> bool:
    return name == section or name.startswith(f"{section}.")


def _resolve_autos(reading: ConfigReading) -> bool:
    found = False
    for kind, name in _SWITCHES:
        if reading.peek(name) == AUTO:
            known = reading.known(PRECISION)
            assert known is not None
            reading.resolve(name, known.value == kind, known.origin)
            found = True
    return found


def _switch(reading: ConfigReading, given: ConfigValue, kind: str) -> None:
    known = reading.claims.of(PRECISION)
    if given.value:
        reading.map(given, PRECISION, kind)
        return
    if given.note != AUTO and known is not None and known.value == kind:
        reading.findings.wrong.append(
            f"{PRECISION}: {given.said} says {show(given.value)}, {known.place} says "
            f"{show(known.shown)}; make them agree"
        )
    reading.row(KeyOutcome.MAPPED, given, PRECISION, f"not {kind}")


def _loss_scale(reading: ConfigReading, on: bool) -> None:
    for key, name in deepspeed_names("fp16").items():
        given, default = reading.take(name), KEYS[name].default
        if given is None:
            continue
        if not on:
            reading.row(KeyOutcome.IGNORED, given, None, "fp16 is off")
        elif given.value == AUTO:
            what = f'{given.said} = "auto": nothing resolves this one; write {show(default)}'
            reading.findings.wrong.append(f"{what}, DeepSpeed's default, or remove it")
        else:
            reading.map(given, key, given.value)

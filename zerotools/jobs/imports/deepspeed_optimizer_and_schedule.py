"""Read DeepSpeed's sections `optimizer` (AdamW, Adam, SGD, Muon) and `scheduler` (warm-up
schedules).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.reading.check_deepspeed_keys import AUTO, ConfigValue
from zerotools.jobs.imports.reading.config_reader import TRAINER, ConfigReading
from zerotools.jobs.imports.reading.import_report import KeyOutcome
from zerotools.jobs.imports.reading.look_up_job_keys import job_key_of
from zerotools.jobs.launcher_keys.deepspeed_keys import (
    CLIPS_ELSEWHERE,
    MUON_DEFAULTS,
    MUON_RATES,
    OPTIMIZER_DEFAULTS,
    TORCH_ADAM_DECAY,
)
from zerotools.jobs.launcher_keys.deepspeed_releases import release_text, removed_optimizer

RATE = "train.learning_rate"
WARMUP = "train.warmup_steps"
OPTIMIZER = "train.optimizer"
MUON_RATE = "train.muon_learning_rate"
_DIFFERS = {
    "weight_decay": "as in Hugging Face's Trainer, applies to all parameters except biases and "
    "norms",
}
"""Parameter of DeepSpeed's optimizer -> a sentence that says how the optimizer of engine torch
uses the parameter differently.
"""
_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_SETS_RATES = ("WarmupLR", "WarmupDecayLR")
_PARAMS = "scheduler.params"
_WEIGHTS = "optimizer.params"
_OWN_OF_TORCH = f"{_WEIGHTS}.torch_adam"
_DECOUPLED = f"{_WEIGHTS}.adam_w_mode"


_OF_ADAM = ("train.betas", "train.eps")


def read_missing(reading: ConfigReading, tree: Mapping[str, Any]) -> None:
    """Use the default optimizer and schedule of Hugging Face's Trainer if the config `tree` has
    no optimizer or no scheduler.
    """
    why = "the Trainer's default"
    if not _has_type(tree, "optimizer"):
        said_of = reading.claims.of(OPTIMIZER)
        adam = said_of is None or said_of.value == TRAINER[OPTIMIZER]
        for key in (OPTIMIZER, RATE, *(_OF_ADAM if adam else ()), "train.weight_decay"):
            reading.default("optimizer", key, TRAINER[key], why)
    if not _has_type(tree, "scheduler"):
        for key in ("train.schedule", WARMUP):
            reading.default("scheduler", key, TRAINER[key], why)


def _has_type(tree: Mapping[str, Any], section: str) -> bool:
    found = tree.get(section)
    return isinstance(found, Mapping) and found.get("type") is not None


def read_optimizer(reading: ConfigReading) -> None:
    """Translate DeepSpeed's section `optimizer` to keys of the job file."""
    clips = reading.pop(CLIPS_ELSEWHERE)
    if clips is not None:
        reading.findings.wrong.append(
            f"{clips.label} = {format_value(clips.value)}: DeepSpeed rejects it in this section; "
            "write "
            f"gradient_clipping = {format_value(clips.value)} at the top of {reading.source} "
            "instead"
        )
    kind = reading.pop("optimizer.type")
    if kind is None:
        return
    name = str(kind.value)
    if name.lower() == "sgd":
        reading.map(kind, OPTIMIZER, "sgd")
        _parameters(reading, OPTIMIZER_DEFAULTS["sgd"])
        return
    if name.lower() in ("adam", "adamw"):
        _read_adam(reading, kind, name.lower())
        return
    if name.lower() == "muon" and reading.engine == "torch":
        _read_muon(reading, kind)
        return
    gone = removed_optimizer(name, reading.release)
    if gone is not None and reading.engine == "deepspeed":
        reading.findings.wrong.append(
            f"{kind.label} = {format_value(name)}: DeepSpeed {release_text(reading.release)} no "
            "longer "
            f"has it (since {release_text(gone.since)}); {gone.instead}"
        )
        return
    has = "" if gone is not None else '; engine = "deepspeed" supports it'
    supported = "the engine torch supports only DeepSpeed's Adam, AdamW, SGD and Muon"
    reading.refuse(kind, supported + has)


def _read_adam(reading: ConfigReading, kind: ConfigValue, name: str) -> None:
    decoupled = reading.pop(_DECOUPLED)
    coupled = name == "adam" and decoupled is not None and decoupled.value is False
    _resolve(reading, f"{_WEIGHTS}.weight_decay", "train.weight_decay")
    if coupled and decoupled is not None and reading.peek(f"{_WEIGHTS}.weight_decay"):
        if reading.engine == "deepspeed":
            reading.row(KeyOutcome.PASSED, decoupled)
            reading.row(KeyOutcome.PASSED, kind)
            return
        reading.map(kind, OPTIMIZER, "adam")
        reading.row(KeyOutcome.MAPPED, decoupled, OPTIMIZER, "adds the decay to the gradient")
        _parameters(reading, OPTIMIZER_DEFAULTS["adamw"])
        return
    why = "" if name == "adamw" or coupled else "DeepSpeed's Adam decays as AdamW does"
    reading.map(kind, OPTIMIZER, "adamw", why)
    if decoupled is not None:
        beside = "here DeepSpeed's Adam is AdamW" if name == "adam" else "AdamW is always AdamW"
        outcome = KeyOutcome.PASSED if reading.engine == "deepspeed" else KeyOutcome.IGNORED
        reading.row(outcome, decoupled, None, beside)
    of_torch = reading.peek(_OWN_OF_TORCH) not in (None, False, "") and not coupled
    changed = {"weight_decay": TORCH_ADAM_DECAY} if of_torch else {}
    _parameters(reading, OPTIMIZER_DEFAULTS["adamw"] | changed)


def _read_muon(reading: ConfigReading, kind: ConfigValue) -> None:
    reading.map(kind, OPTIMIZER, "muon", "computed by torch's Muon, which iterates in bf16")
    reading.default("optimizer.type", "train.muon_scale", "original", "DeepSpeed's Muon")
    decoupled = reading.pop(_DECOUPLED)
    if decoupled is not None and decoupled.value is False:
        reading.refuse(
            decoupled, "parameters that Muon does not update get AdamW, never Adam; remove it"
        )
    _muon_rates(reading)
    _parameters(reading, MUON_DEFAULTS)
    momentum = reading.pop(f"{_WEIGHTS}.momentum")
    if momentum is not None:
        reading.map(momentum, "train.muon_momentum", momentum.value)


def _muon_rates(reading: ConfigReading) -> None:
    """Read the two learning rates of a Muon optimizer: one for the weights that Muon trains, and
    one for the weights that Adam trains. The default of both rates is `lr`.
    """
    _resolve(reading, f"{_WEIGHTS}.lr", RATE)
    both = reading.pop(f"{_WEIGHTS}.lr")
    is_one = reading.peek("scheduler.type") in _SETS_RATES
    for name, key in (("adam_lr", RATE), ("muon_lr", MUON_RATE)):
        own = reading.pop(f"{_WEIGHTS}.{name}")
        if own is not None and is_one:
            reading.refuse(
                own, "the scheduler's warmup_max_lr is the rate of all weights; remove it"
            )
        elif is_one and key == MUON_RATE:
            continue  # the scheduler sets it, like `train.learning_rate`
        elif own is not None:
            reading.map(own, key, own.value)
        elif both is not None:
            reading.map(both, key, both.value)
        else:
            reading.default(f"{_WEIGHTS}.{name}", key, MUON_RATES[name])


def _parameters(reading: ConfigReading, defaults: Mapping[str, Any]) -> None:
    for parameter, default in defaults.items():
        name = f"{_WEIGHTS}.{parameter}"
        key = job_key_of(name)
        assert key is not None, f"{name} has no key in the job file"
        _parameter(reading, name, key, default, _DIFFERS.get(parameter, ""))


def _parameter(reading: ConfigReading, name: str, key: str, default: Any, why: str) -> None:
    if reading.peek(name) is None:
        reading.pop(name)
        reading.default(name, key, default)
        return
    _resolve(reading, name, key)
    given = reading.pop(name)
    assert given is not None
    reading.map(given, key, given.value, why)


def _resolve(reading: ConfigReading, name: str, key: str) -> None:
    if reading.peek(name) == AUTO:
        known = reading.current_value(key)
        if known is None:
            reading.resolve(name, None, f"the value of {key}, which you must add to the job file")
        else:
            reading.resolve(name, known.value, known.origin)


def resolve_foreign(reading: ConfigReading, name: str) -> bool:
    """Replace `"auto"` in the key `name` of an optimizer or scheduler that this module does not
    support, as the Trainer replaces it.

    Return False if the Trainer does not replace `"auto"` in this key.
    """
    section, _, parameter = name.partition(".params.")
    key = job_key_of(name)
    if section == "optimizer" and parameter in OPTIMIZER_DEFAULTS["adamw"] and key is not None:
        _resolve(reading, name, key)
    elif name in _FOREIGN:
        _FOREIGN[name](reading, name)
    else:
        return False
    return True


def read_scheduler(reading: ConfigReading) -> None:
    """Translate DeepSpeed's section `scheduler` to keys of the job file.

    If the config has no such section, do nothing: `read_missing` adds the Trainer's default.
    """
    kind = reading.pop("scheduler.type")
    if kind is None:
        return
    if kind.value not in _SCHEDULES:
        names = ", ".join(_SCHEDULES)
        reading.refuse(kind, f"is not supported; supported: {names}")
        return
    reading.map(kind, "train.schedule", _SCHEDULES[kind.value])
    _warmup(reading)
    _peak(reading, str(kind.value))
    _total(reading)
    _floor(reading, str(kind.value))


def _warmup(reading: ConfigReading) -> None:
    name = f"{_PARAMS}.warmup_num_steps"
    shape = reading.pop(f"{_PARAMS}.warmup_type")
    curve = "log" if shape is None or shape.value != "linear" else "linear"
    own = reading.engine == "deepspeed"
    differs = "" if curve == "linear" or own else _STRAIGHT
    if shape is not None:
        reading.row(
            KeyOutcome.IGNORED, shape, None, differs or "the job's warm-up has the same curve"
        )
    if reading.peek(name) is None:
        reading.pop(name)
        reading.default(name, WARMUP, 1000)
    else:
        known = reading.current_value(WARMUP)
        _resolve_warmup(reading, name)
        given = reading.pop(name)
        assert given is not None
        steps = given.value
        if given.note == AUTO and known is not None:
            steps = known.value
        if isinstance(steps, int) and steps <= 1:
            here = "one such step" if steps == 1 else "no such step"
            differs = _AT_NOTHING if own else f"{_AT_NOTHING}; this job has {here}"
        reading.map(given, WARMUP, steps, differs)
    _start(reading)


_STRAIGHT = "the job's warm-up is a straight line; DeepSpeed's is a logarithm"
_AT_NOTHING = "with this value, DeepSpeed takes its first two steps at learning rate 0"
"""Source: runtime/lr_schedules.py, `max(2, warmup_num_steps)`.

The first call of `step` belongs to iteration 0.
"""


def _resolve_warmup(reading: ConfigReading, name: str) -> None:
    known = reading.current_value(WARMUP)
    if reading.peek(name) == AUTO and known is not None:
        # DeepSpeed 0.19.6 and later refuse 0, which transformers turns into 1 as well
        reading.resolve(name, max(1, known.value), f"{known.origin}, but at least 1")


def _resolve_start(reading: ConfigReading, name: str) -> None:
    if reading.peek(name) == AUTO:
        reading.resolve(name, 0, "always 0 in Hugging Face's Trainer")


_FOREIGN: dict[str, Callable[[ConfigReading, str], None]] = {
    f"{_PARAMS}.warmup_min_lr": _resolve_start,
    f"{_PARAMS}.warmup_max_lr": lambda reading, name: _resolve(reading, name, RATE),
    f"{_PARAMS}.warmup_num_steps": _resolve_warmup,
    f"{_PARAMS}.total_num_steps": lambda reading, name: _resolve(reading, name, "train.steps"),
}


def _start(reading: ConfigReading) -> None:
    for floor in ("warmup_min_lr", "warmup_min_ratio"):
        _resolve_start(reading, f"{_PARAMS}.{floor}")
        given = reading.pop(f"{_PARAMS}.{floor}")
        if given is not None and given.value:
            reading.refuse(given, "a job's warm-up always begins at 0; remove it")
        elif given is not None:
            reading.row(KeyOutcome.MAPPED, given, WARMUP, "a job's warm-up always begins at 0")


def _peak(reading: ConfigReading, kind: str) -> None:
    name = f"{_PARAMS}.warmup_max_lr"
    if reading.peek(name) is not None:
        _resolve(reading, name, RATE)
        given = reading.pop(name)
        assert given is not None
        reading.map(given, RATE, given.value)
        return
    reading.pop(name)
    if kind == "WarmupDecayLR":  # its default is not a learning rate of the optimizer's
        if reading.claims.of(RATE) is None:
            reading.default(name, RATE, 1e-3)
        elif (known := reading.current_value(RATE)) is not None and known.value != 1e-3:
            reading.findings.wrong.append(
                f"{RATE}: {known.origin} says {format_value(known.value)}, but DeepSpeed's "
                "WarmupDecayLR without warmup_max_lr rises to 0.001; write the rate you want as "
                f"{name} in {reading.source}"
            )


def _total(reading: ConfigReading) -> None:
    name = f"{_PARAMS}.total_num_steps"
    if reading.peek(name) is None:
        reading.pop(name)
        return
    _resolve(reading, name, "train.steps")
    given = reading.pop(name)
    assert given is not None
    reading.map(given, "train.steps", given.value)


def _floor(reading: ConfigReading, kind: str) -> None:
    name = f"{_PARAMS}.cos_min_ratio"
    given = reading.pop(name)
    known = reading.claims.of(RATE) or reading.current_value(RATE)
    if kind != "WarmupCosineLR" or known is None:
        return
    if given is None:
        reading.default(name, "train.min_learning_rate", 1e-4 * known.value)
    elif isinstance(given.value, (int, float)):
        why = f"{format_value(given.value)} of the learning rate"
        reading.map(given, "train.min_learning_rate", given.value * known.value, why)

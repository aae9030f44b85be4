"""The `optimizer` and `scheduler` sections: AdamW, SGD, and the warm-ups of DeepSpeed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zerotools.jobs.convert import show
from zerotools.jobs.imports.given import AUTO
from zerotools.jobs.imports.reading import Reading
from zerotools.jobs.imports.report import Outcome

RATE = "train.learning_rate"
OPTIMIZER = "train.optimizer"
_ADAM: dict[str, tuple[str, Any, str]] = {
    "lr": (RATE, 1e-3, ""),
    "betas": ("train.betas", [0.9, 0.999], ""),
    "eps": ("train.eps", 1e-8, ""),
    "weight_decay": (
        "train.weight_decay",
        0.0,
        "on tensors of two or more dimensions, as Hugging Face's Trainer does it",
    ),
}
"""Parameter -> job key, DeepSpeed's default, what differs. deepspeed/ops/adam/fused_adam.py."""

_SGD = {
    "lr": (RATE, 1e-3, ""),
    "momentum": ("train.momentum", 0.0, ""),
    "weight_decay": _ADAM["weight_decay"],
}
"""The same of torch's SGD, which DeepSpeed takes for its own."""

_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_PARAMS = "scheduler.params"


def read_optimizer(reading: Reading) -> None:
    """Map `optimizer`. Without one the job file's own AdamW stays."""
    kind = reading.take("optimizer.type")
    if kind is None:
        return
    name = str(kind.value)
    if name.lower() == "sgd":
        reading.map(kind, OPTIMIZER, "sgd")
        _parameters(reading, _SGD)
        return
    decoupled = reading.take("optimizer.params.adam_w_mode")
    decay = reading.peek("optimizer.params.weight_decay")
    is_adamw = name.lower() == "adamw" or decoupled is None or decoupled.value is not False
    if name.lower() not in ("adam", "adamw") or (not is_adamw and decay not in (None, 0)):
        reading.refuse(
            kind,
            "of DeepSpeed's, the engine torch takes AdamW and SGD alone; "
            'engine = "deepspeed" has it',
        )
        if decoupled is not None:
            reading.given["optimizer.params.adam_w_mode"] = decoupled
        return
    why = "" if name.lower() == "adamw" else "DeepSpeed's Adam decays as AdamW does"
    reading.map(kind, OPTIMIZER, "adamw", why)
    if decoupled is not None:
        reading.row(Outcome.IGNORED, decoupled, None, "with this decay the two are the same")
    _parameters(reading, _ADAM)


def _parameters(reading: Reading, table: Mapping[str, tuple[str, Any, str]]) -> None:
    for parameter, (key, default, differs) in table.items():
        _parameter(reading, f"optimizer.params.{parameter}", key, default, differs)


def _parameter(reading: Reading, name: str, key: str, default: Any, why: str) -> None:
    if reading.peek(name) is None:
        reading.take(name)
        reading.default(name, key, default)
        return
    _resolve(reading, name, key)
    given = reading.take(name)
    assert given is not None
    reading.map(given, key, given.value, why)


def _resolve(reading: Reading, name: str, key: str) -> None:
    if reading.peek(name) == AUTO:
        known = reading.known(key)
        if known is None:
            reading.resolve(name, None, f"{key}, which the job file does not have yet")
        else:
            reading.resolve(name, known.value, known.origin)


def resolve_foreign(reading: Reading, name: str) -> bool:
    """Resolve an `"auto"` of a type that no reader takes, as the Trainer does for every type."""
    section, _, parameter = name.partition(".params.")
    if section == "optimizer" and parameter in _ADAM:
        _resolve(reading, name, _ADAM[parameter][0])
    elif name in _FOREIGN:
        _FOREIGN[name](reading, name)
    else:
        return False
    return True


def read_scheduler(reading: Reading) -> None:
    """Map `scheduler`. Without one the job file's own schedule stays."""
    kind = reading.take("scheduler.type")
    if kind is None:
        return
    if kind.value not in _SCHEDULES:
        names = ", ".join(_SCHEDULES)
        reading.refuse(kind, f"is not supported; those that are: {names}")
        return
    reading.map(kind, "train.schedule", _SCHEDULES[kind.value])
    _warmup(reading)
    _peak(reading, str(kind.value))
    _total(reading)
    _floor(reading, str(kind.value))


def _warmup(reading: Reading) -> None:
    name = f"{_PARAMS}.warmup_num_steps"
    shape = reading.take(f"{_PARAMS}.warmup_type")
    curve = "log" if shape is None or shape.value != "linear" else "linear"
    differs = "a straight line here; DeepSpeed's curve is a logarithm"
    if curve == "linear" or reading.engine == "deepspeed":
        differs = ""
    if shape is not None:
        reading.row(Outcome.IGNORED, shape, None, differs or "as the job file has it")
    if reading.peek(name) is None:
        reading.take(name)
        reading.default(name, "train.warmup_steps", 1000)
    else:
        _resolve_warmup(reading, name)
        given = reading.take(name)
        assert given is not None
        reading.map(given, "train.warmup_steps", given.value, differs)
    _start(reading)


def _resolve_warmup(reading: Reading, name: str) -> None:
    known = reading.known("train.warmup_steps")
    if reading.peek(name) == AUTO and known is not None:
        # DeepSpeed 0.19.6 and later refuse 0, which transformers turns into 1 as well
        reading.resolve(name, max(1, known.value), f"{known.origin}, 1 at least")


def _resolve_start(reading: Reading, name: str) -> None:
    if reading.peek(name) == AUTO:
        reading.resolve(name, 0, "Hugging Face's Trainer, always 0")


_FOREIGN: dict[str, Callable[[Reading, str], None]] = {
    f"{_PARAMS}.warmup_min_lr": _resolve_start,
    f"{_PARAMS}.warmup_max_lr": lambda reading, name: _resolve(reading, name, RATE),
    f"{_PARAMS}.warmup_num_steps": _resolve_warmup,
    f"{_PARAMS}.total_num_steps": lambda reading, name: _resolve(reading, name, "train.steps"),
}


def _start(reading: Reading) -> None:
    for floor in ("warmup_min_lr", "warmup_min_ratio"):
        _resolve_start(reading, f"{_PARAMS}.{floor}")
        given = reading.take(f"{_PARAMS}.{floor}")
        if given is not None and given.value:
            reading.refuse(given, "a warm-up begins near 0; remove it")
        elif given is not None:
            reading.row(Outcome.MAPPED, given, "train.warmup_steps", "begins near 0")


def _peak(reading: Reading, kind: str) -> None:
    name = f"{_PARAMS}.warmup_max_lr"
    if reading.peek(name) is not None:
        _resolve(reading, name, RATE)
        given = reading.take(name)
        assert given is not None
        reading.map(given, RATE, given.value)
        return
    reading.take(name)
    if kind == "WarmupDecayLR":  # its default is no learning rate of the optimizer's
        if not reading.said(RATE):
            reading.default(name, RATE, 1e-3)
        elif (known := reading.known(RATE)) is not None and known.value != 1e-3:
            reading.findings.wrong.append(
                f"{RATE}: {known.origin} says {show(known.value)}, and WarmupDecayLR without "
                f"warmup_max_lr climbs to 0.001 in DeepSpeed; write {name} in {reading.source}"
            )


def _total(reading: Reading) -> None:
    name = f"{_PARAMS}.total_num_steps"
    if reading.peek(name) is None:
        reading.take(name)
        return
    _resolve(reading, name, "train.steps")
    given = reading.take(name)
    assert given is not None
    reading.map(given, "train.steps", given.value)


def _floor(reading: Reading, kind: str) -> None:
    name = f"{_PARAMS}.cos_min_ratio"
    given = reading.take(name)
    known = reading.claims.of(RATE) or reading.known(RATE)
    if kind != "WarmupCosineLR" or known is None:
        return
    if given is None:
        reading.default(name, "train.min_learning_rate", 1e-4 * known.value)
    elif isinstance(given.value, (int, float)):
        why = f"{show(given.value)} of the learning rate"
        reading.map(given, "train.min_learning_rate", given.value * known.value, why)

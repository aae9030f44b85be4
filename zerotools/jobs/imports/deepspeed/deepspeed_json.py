"""DeepSpeed's JSON as claims on the keys of a job file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from zerotools.jobs.imports.deepspeed.optimizer_section import (
    read_missing,
    read_optimizer,
    read_scheduler,
    resolve_foreign,
)
from zerotools.jobs.imports.deepspeed.precision import read_precision
from zerotools.jobs.imports.deepspeed.removed_keys import drop_comments, is_strict, read_removed
from zerotools.jobs.imports.deepspeed.shared_ranks import read_shared_ranks
from zerotools.jobs.imports.deepspeed.wandb_section import read_wandb
from zerotools.jobs.imports.deepspeed.zero import read_zero
from zerotools.jobs.imports.reading.batch import read_batch
from zerotools.jobs.imports.reading.claims import Claims
from zerotools.jobs.imports.reading.compiling import read_compile_section
from zerotools.jobs.imports.reading.job_keys import JobTree, drop, put
from zerotools.jobs.imports.reading.reader import ConfigReading
from zerotools.jobs.imports.reading.report import Findings, KeyOutcome, note_mends
from zerotools.jobs.imports.reading.typed_keys import AUTO, read_known_keys
from zerotools.jobs.launcher_keys.deepspeed_keys import KEYS, NEVER_TAKEN
from zerotools.jobs.launcher_keys.deepspeed_releases import (
    NEWEST,
    REMOVED,
    Release,
    clipping,
    release_text,
)
from zerotools.jobs.launcher_keys.deepspeed_releases import is_off as does_nothing
from zerotools.jobs.launcher_keys.key_kinds import KeyAction, is_off
from zerotools.jobs.text.document import Document

FIRST_STEP = (
    "in bf16 at this stage, unlike stages 1 to 3, DeepSpeed first takes an optimizer step with "
    "zero gradients: the weights decay once more, and the first updates are smaller"
)
"""`initialize_optimizer_states` in runtime/fp16/unfused_optimizer.py and fused_optimizer.py, which
are of stage 0 alone (`_do_optimizer_sanity_check` in runtime/engine.py)."""

_BY_HIDDEN_SIZE: dict[str, Callable[[int], int]] = {
    "zero_optimization.reduce_bucket_size": lambda hidden: hidden * hidden,
    "zero_optimization.stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "zero_optimization.stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""As transformers/integrations/deepspeed.py fills them in."""


def read_deepspeed(
    document: Document,
    claims: Claims,
    findings: Findings,
    *,
    hidden_size: int | None,
    release: Release = NEWEST,
) -> JobTree:
    """Add the settings of `document` to `claims` and `findings`; `release` is the DeepSpeed of the
    job.

    Return the configuration for DeepSpeed itself: every `"auto"` replaced, numbers and booleans
    without quotes, whole numbers whole. All else is unchanged, unknown keys included.
    """
    claim = claims.of("engine")
    engine = "torch" if claim is None else claim.value
    strict = is_strict if engine == "deepspeed" else lambda trail: False
    given = read_known_keys(document, findings, strict)
    reading = ConfigReading(document.source, given, claims, findings, engine, release)
    note_mends(findings, document)
    read_removed(reading)
    read_shared_ranks(reading)
    read_batch(reading)
    _read_clipping(reading)
    read_precision(reading)
    read_zero(reading)
    read_compile_section(reading)
    read_optimizer(reading)
    read_scheduler(reading)
    read_missing(reading, document.tree)
    read_wandb(reading)
    for name in list(reading.remaining):
        _judge_rest(reading, name, hidden_size)
    _note_first_step(reading)
    return _settled(document, reading)


def _note_first_step(reading: ConfigReading) -> None:
    """Explain why a run of DeepSpeed's at stage 0 in bf16 ends at another loss than one at stage
    1."""
    stage, precision = reading.claims.of("zero.stage"), reading.claims.of("train.precision")
    if reading.engine != "deepspeed" or stage is None or precision is None:
        return
    if stage.value == 0 and precision.value == "bf16":
        reading.findings.rows[:] = [
            replace(row, why="; ".join(part for part in (row.why, FIRST_STEP) if part))
            if row.job == "zero.stage"
            else row
            for row in reading.findings.rows
        ]


def _settled(document: Document, reading: ConfigReading) -> JobTree:
    """Return the config for DeepSpeed: the document without nulls, with the settled value of each
    key."""
    tree: JobTree = _without_nulls(document.tree)
    for name, value in reading.settled.items():
        if value is None or value == AUTO:
            drop(tree, name)
        else:
            put(tree, name, _without_nulls(value))
    if reading.engine == "deepspeed":
        drop_comments(tree)
    return tree


def _without_nulls(value: Any) -> Any:
    """Return a copy; DeepSpeed takes its default for a null, and a job file cannot say one."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(v) for name, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    return value


def _read_clipping(reading: ConfigReading) -> None:
    name, key = "gradient_clipping", "train.max_grad_norm"
    if reading.peek(name) is None:
        reading.take(name)
        reading.default(name, key, clipping(reading.release), _clips(reading.release))
        return
    if reading.peek(name) == AUTO:
        known = reading.known(key)
        assert known is not None
        reading.resolve(name, known.value, known.origin)
    given = reading.take(name)
    assert given is not None
    reading.map(given, key, given.value)


def _clips(release: Release) -> str:
    if clipping(release):
        return f"DeepSpeed {release_text(release)}; those before 0.19.3 do not clip"
    return f"DeepSpeed {release_text(release)} does not clip"


def _judge_rest(reading: ConfigReading, name: str, hidden_size: int | None) -> None:
    """Pass on, ignore or refuse a key that no reader took."""
    key = KEYS[name]
    _switch_off_amp(reading, name)
    if reading.peek(name) == AUTO and key.action is KeyAction.IGNORED:
        reading.settled[name] = None
        why = '"auto": DeepSpeed\'s default; '
        reading.row(KeyOutcome.IGNORED, reading.remaining.pop(name), None, why + key.why)
        return
    if reading.peek(name) == AUTO and not _resolve(reading, name, hidden_size):
        given = reading.remaining.pop(name)
        what = f'{given.said} = "auto": nothing resolves this one; write a value, or remove it'
        reading.findings.wrong.append(what)
        return
    given = reading.remaining.pop(name)
    if name in NEVER_TAKEN:
        reading.settled[name] = None
        reading.row(KeyOutcome.IGNORED, given, None, key.why)
    elif reading.engine == "deepspeed":
        reading.row(KeyOutcome.PASSED, given)
    elif key.action is KeyAction.READ:
        section = name.split(".")[0]
        reading.row(KeyOutcome.IGNORED, given, None, f"{section} has no type that is supported")
    elif key.action is KeyAction.FEATURE and not _is_off(name, given.value, key.default):
        reading.refuse(given, f"{key.why}, but the engine torch does not support it")
    else:
        off = "is off" if key.default is None else "as the engine torch does it"
        why = off if key.action is KeyAction.FEATURE else key.why
        reading.row(KeyOutcome.IGNORED, given, None, why)


def _is_off(name: str, value: Any, default: Any) -> bool:
    return is_off(value, default) or (name in REMOVED and does_nothing(value))


def _switch_off_amp(reading: ConfigReading, name: str) -> None:
    """Switch off `"amp": {"enabled": "auto"}` of the Trainer's documentation, which only apex
    switches on."""
    value = reading.peek(name)
    if name == "amp" and isinstance(value, dict) and value.get("enabled") == AUTO:
        reading.resolve(name, {"enabled": False}, "Hugging Face's Trainer, off without apex")


def _resolve(reading: ConfigReading, name: str, hidden_size: int | None) -> bool:
    if resolve_foreign(reading, name):
        return True
    formula = _BY_HIDDEN_SIZE.get(name)
    default: Any = KEYS[name].default
    if formula is not None and hidden_size is not None:
        reading.resolve(name, formula(hidden_size), f"hidden_size {hidden_size} of the model")
    elif default is not None:
        reading.resolve(name, default, "DeepSpeed's default")
    else:
        return False
    return True

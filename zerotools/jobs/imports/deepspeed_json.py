"""Read DeepSpeed's JSON: translate its values to keys of the job file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.deepspeed_optimizer_and_schedule import (
    read_missing,
    read_optimizer,
    read_scheduler,
    resolve_foreign,
)
from zerotools.jobs.imports.deepspeed_zero import read_zero
from zerotools.jobs.imports.reading.batch_size import (
    JOB_SEQUENCE_RANKS,
    JOB_TENSOR_RANKS,
    read_batch,
)
from zerotools.jobs.imports.reading.check_deepspeed_keys import AUTO, ConfigValue, read_known_keys
from zerotools.jobs.imports.reading.config_reader import ConfigReading, read_compile_section
from zerotools.jobs.imports.reading.import_report import Findings, KeyOutcome, add_repairs
from zerotools.jobs.imports.reading.key_claims import Claims
from zerotools.jobs.imports.reading.look_up_job_keys import (
    JobTree,
    deepspeed_names,
    drop_key,
    look_up,
    set_key,
)
from zerotools.jobs.launcher_keys.config_key import KeyAction, is_off
from zerotools.jobs.launcher_keys.deepspeed_keys import KEYS, NEVER_TAKEN
from zerotools.jobs.launcher_keys.deepspeed_releases import (
    NEWEST,
    REMOVED,
    STRICT,
    Release,
    default_clipping,
    is_disabled,
    release_text,
    removal_of,
)
from zerotools.jobs.text.config_document import Document, Trail

FIRST_STEP = (
    "in bf16 at stage 0, DeepSpeed first takes an extra optimizer step with zero gradients: the "
    "weights decay once more, and the first updates are smaller (stages 1 to 3 have no such step)"
)
"""Source: `initialize_optimizer_states` in runtime/fp16/unfused_optimizer.py and
fused_optimizer.py, which DeepSpeed calls at stage 0 only (`_do_optimizer_sanity_check` in
runtime/engine.py)."""

_BY_HIDDEN_SIZE: dict[str, Callable[[int], int]] = {
    "zero_optimization.reduce_bucket_size": lambda hidden: hidden * hidden,
    "zero_optimization.stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "zero_optimization.stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""Keys for which transformers computes the value of `"auto"` from the hidden size
(transformers/integrations/deepspeed.py).
"""


PRECISION = "train.precision"
_SWITCHES = (("fp16", "fp16.enabled"), ("bf16", "bf16.enabled"), ("bf16", "bfloat16.enabled"))
_SEQUENCES = "sequence_parallel_size"
_LAYERS = "tensor_parallel"
_SIZE = f"{_LAYERS}.autotp_size"
_SAME_SIZE = (f"{_LAYERS}.tp.tp_size", f"{_LAYERS}.tensor_parallel.tp_size")
_ENABLED, _PROJECT, _TEAM, _GROUP = (
    "wandb.enabled",
    "wandb.project",
    "wandb.team",
    "wandb.group",
)
_KEY = "metrics.wandb"
_DEFAULT = "deepspeed"
_COMMENTS = ("_", "/", "#")


def read_deepspeed(
    document: Document,
    claims: Claims,
    findings: Findings,
    *,
    hidden_size: int | None,
    release: Release = NEWEST,
) -> JobTree:
    """Read the DeepSpeed config `document`: add its values to `claims`, and the report to
    `findings`.

    Return the configuration that DeepSpeed gets: every `"auto"` is replaced, and numbers and
    booleans have no quotes. Everything else, including unknown keys, is unchanged. `hidden_size` is
    the hidden size of the model, if known; `release` is the DeepSpeed version of the job's Python.
    """
    claim = claims.of("engine")
    engine = "torch" if claim is None else claim.value
    strict = is_strict if engine == "deepspeed" else lambda trail: False
    given = read_known_keys(document, findings, strict)
    reading = ConfigReading(document.source, given, claims, findings, engine, release)
    add_repairs(findings, document)
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
    _explain_first_step(reading)
    return _settled(document, reading)


def _explain_first_step(reading: ConfigReading) -> None:
    """Add to the report why the training losses of DeepSpeed in bf16 differ between stage 0 and
    stage 1.
    """
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
    """Return the config that DeepSpeed gets: a copy of the document without nulls, in which each
    key has its final value.
    """
    tree: JobTree = _without_nulls(document.tree)
    for name, value in reading.settled.items():
        if value is None or value == AUTO:
            drop_key(tree, name)
        else:
            set_key(tree, name, _without_nulls(value))
    if reading.engine == "deepspeed":
        drop_comments(tree)
    return tree


def _without_nulls(value: Any) -> Any:
    """Return a copy of `value` without nulls.

    For DeepSpeed a null means the default, and a job file cannot contain a null.
    """
    if isinstance(value, Mapping):
        return {name: _without_nulls(v) for name, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    return value


def _read_clipping(reading: ConfigReading) -> None:
    name, key = "gradient_clipping", "train.max_grad_norm"
    if reading.peek(name) is None:
        reading.pop(name)
        reading.default(name, key, default_clipping(reading.release), _clips(reading.release))
        return
    if reading.peek(name) == AUTO:
        known = reading.current_value(key)
        assert known is not None
        reading.resolve(name, known.value, known.origin)
    given = reading.pop(name)
    assert given is not None
    reading.map(given, key, given.value)


def _clips(release: Release) -> str:
    if default_clipping(release):
        return f"default of DeepSpeed {release_text(release)}; releases before 0.19.3 do not clip"
    return f"DeepSpeed {release_text(release)} does not clip"


def _judge_rest(reading: ConfigReading, name: str, hidden_size: int | None) -> None:
    """Decide about the key `name`, which no other function has read: it is passed to DeepSpeed,
    ignored, or refused.
    """
    key = KEYS[name]
    _switch_off_amp(reading, name)
    if reading.peek(name) == AUTO and key.action is KeyAction.IGNORED:
        reading.settled[name] = None
        why = '"auto": DeepSpeed\'s default; '
        reading.row(KeyOutcome.IGNORED, reading.remaining.pop(name), None, why + key.why)
        return
    if reading.peek(name) == AUTO and not _resolve(reading, name, hidden_size):
        given = reading.remaining.pop(name)
        what = (
            f'{given.label} = "auto": zerotools has no value for this key; write a value, or '
            "remove it"
        )
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
        off = "is off" if key.default is None else "the engine torch does the same"
        why = off if key.action is KeyAction.FEATURE else key.why
        reading.row(KeyOutcome.IGNORED, given, None, why)


def _is_off(name: str, value: Any, default: Any) -> bool:
    return is_off(value, default) or (name in REMOVED and is_disabled(value))


def _switch_off_amp(reading: ConfigReading, name: str) -> None:
    """If `amp.enabled` is "auto", set it to false, as the Trainer sets it unless apex is in use."""
    value = reading.peek(name)
    if name == "amp" and isinstance(value, dict) and value.get("enabled") == AUTO:
        reading.resolve(name, {"enabled": False}, "without apex, the Trainer switches it off")


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


def read_precision(reading: ConfigReading) -> None:
    """Translate `fp16` or `bf16` to the job file, if one of them is enabled.

    Refuse a config that enables both.
    """
    _refuse_second_name(reading)
    autos = _resolve_autos(reading)
    given = {name: reading.remaining[name] for _, name in _SWITCHES if name in reading.remaining}
    on = [(kind, given[name]) for kind, name in _SWITCHES if name in given and given[name].value]
    if len({kind for kind, _ in on}) > 1:
        first, second = on[0][1], on[1][1]
        what = f"{first.label} and {second.label} are both on; switch one of them off"
        reading.findings.wrong.append(what)
    for kind, switch in _SWITCHES:
        taken = reading.pop(switch)
        if taken is not None:
            _switch(reading, taken, kind)
    if not on and not autos:
        reading.default("fp16.enabled, bf16.enabled", PRECISION, "fp32")
    _loss_scale(reading, any(kind == "fp16" for kind, _ in on))


def _refuse_second_name(reading: ConfigReading) -> None:
    """Refuse a config with both `bf16` and `bfloat16` (its older name): DeepSpeed would ignore
    `bfloat16`.
    """
    old = [given for name, given in reading.remaining.items() if _is_in(name, "bfloat16")]
    if old and any(_is_in(name, "bf16") for name in reading.remaining):
        reading.findings.wrong.append(
            f"{old[0].label}: bfloat16 is an older name of bf16, and DeepSpeed ignores bfloat16 if "
            "both are given; write everything under bf16"
        )


def _is_in(name: str, section: str) -> bool:
    return name == section or name.startswith(f"{section}.")


def _resolve_autos(reading: ConfigReading) -> bool:
    found = False
    for kind, name in _SWITCHES:
        if reading.peek(name) == AUTO:
            known = reading.current_value(PRECISION)
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
            f"{PRECISION}: {given.label} says {format_value(given.value)}, {known.place} says "
            f"{format_value(known.shown)}; make them agree"
        )
    reading.row(KeyOutcome.MAPPED, given, PRECISION, f"not {kind}")


def _loss_scale(reading: ConfigReading, on: bool) -> None:
    for key, name in deepspeed_names("fp16").items():
        given, default = reading.pop(name), KEYS[name].default
        if given is None:
            continue
        if not on:
            reading.row(KeyOutcome.IGNORED, given, None, "fp16 is off")
        elif given.value == AUTO:
            reading.findings.wrong.append(
                f'{given.label} = "auto": zerotools has no value for this key; write '
                f"{format_value(default)}, DeepSpeed's default, or remove it"
            )
        else:
            reading.map(given, key, given.value)


def read_shared_ranks(reading: ConfigReading) -> None:
    """Translate `sequence_parallel_size` and `tensor_parallel` to keys of the job file.

    Both are numbers of ranks that compute one sequence together.

    With engine deepspeed both keys stay in the config. The job is refused later, because the
    training program would need its own code for these keys.
    """
    if reading.engine == "deepspeed":
        return
    given = reading.pop(_SEQUENCES)
    if given is not None:
        why = "the number of ranks that compute each sequence together"
        _read(reading, given, JOB_SEQUENCE_RANKS, why, least=1)
    _read_layers(reading)


def _read_layers(reading: ConfigReading) -> None:
    given = reading.pop(_SIZE)
    size = 0
    if given is not None:
        why = "the number of ranks that share one layer's weights"
        size = _read(reading, given, JOB_TENSOR_RANKS, why, least=0)
    for name in _SAME_SIZE:
        same = reading.pop(name)
        if same is None:
            continue
        if given is None or size <= 1 or same.value == 1:
            reading.row(KeyOutcome.IGNORED, same, None, "has an effect only with autotp_size")
        elif same.value == size:
            reading.map(same, JOB_TENSOR_RANKS, size)
        else:
            reading.findings.wrong.append(
                f"{same.label} = {format_value(same.value)}: {given.label} says {size}; make them "
                "agree"
            )
    if size <= 1:
        for name in [name for name in reading.remaining if name.startswith(f"{_LAYERS}.")]:
            reading.row(KeyOutcome.IGNORED, reading.remaining.pop(name), None, "is off")


def _read(reading: ConfigReading, given: ConfigValue, key: str, why: str, *, least: int) -> int:
    """Return the number in `given`; 0 if it is not a number of at least `least`.

    If the number is more than 1, record it as the value of the job's `key`.
    """
    value = given.value
    if type(value) is not int or value < least:
        reading.findings.wrong.append(
            f"{given.label} = {format_value(value)}: must be a whole number, {least} or more"
        )
        return 0
    if value > 1:
        reading.map(given, key, value, why)
    else:
        reading.row(KeyOutcome.IGNORED, given, None, "is off")
    return value


def read_wandb(reading: ConfigReading) -> None:
    """Translate the section `wandb` to the job's key `metrics.wandb`, which has the form PROJECT or
    TEAM/PROJECT.
    """
    if reading.engine == "deepspeed":
        return
    enabled, project, team, group = (
        reading.pop(name) for name in (_ENABLED, _PROJECT, _TEAM, _GROUP)
    )
    if enabled is None or enabled.value is not True:
        for given in filter(None, (enabled, project, team, group)):
            reading.row(KeyOutcome.IGNORED, given, None, "is off without wandb.enabled")
        return
    owner = f"{team.value}/" if team is not None and team.value else ""
    if project is not None and project.value:
        reading.map(project, _KEY, f"{owner}{project.value}")
        reading.row(KeyOutcome.MAPPED, enabled, _KEY)
    else:
        reading.map(enabled, _KEY, f"{owner}{_DEFAULT}", f'DeepSpeed\'s project is "{_DEFAULT}"')
        _report_empty(reading, project)
    if owner and team is not None:
        reading.row(KeyOutcome.MAPPED, team, _KEY)
    else:
        _report_empty(reading, team)
    if group is not None and group.value:
        reading.row(KeyOutcome.IGNORED, group, None, "zerotools puts its runs into no group")
    else:
        _report_empty(reading, group)


def _report_empty(reading: ConfigReading, given: ConfigValue | None) -> None:
    if given is not None:
        reading.row(KeyOutcome.IGNORED, given, None, "says nothing")


def read_removed(reading: ConfigReading) -> None:
    """For engine deepspeed, read the keys that the job's release of DeepSpeed no longer accepts.

    If the value disables the feature of the key, the key is dropped. If the value enables it, the
    key is refused.
    """
    if reading.engine != "deepspeed":
        return
    now = release_text(reading.release)
    for name in list(reading.remaining):
        gone = removal_of(name, reading.release)
        if gone is None:
            continue
        given = reading.remaining.pop(name)
        if is_disabled(given.value):
            reading.settled[name] = None
            why = f"is off; the job leaves it out, because DeepSpeed {now} refuses the key"
            reading.row(KeyOutcome.IGNORED, given, None, why)
        else:
            reading.findings.wrong.append(
                f"{given.label} = {format_value(given.value)}: DeepSpeed {now} does not start with "
                f"it (removed in {release_text(gone.since)}); {gone.instead}"
            )


def drop_comments(tree: JobTree) -> None:
    """Remove keys that are only comments from `tree`.

    Only the sections in which DeepSpeed refuses unknown keys are changed.
    """
    for section in STRICT:
        table = look_up(tree, section)
        if isinstance(table, dict):
            for name in [name for name in table if name.startswith(_COMMENTS)]:
                del table[name]


def is_strict(trail: Trail) -> bool:
    """Return whether DeepSpeed refuses an unknown key at the position `trail` in its config."""
    return ".".join(trail[:-1]) in STRICT and not trail[-1].startswith(_COMMENTS)

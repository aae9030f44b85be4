"""Translate the arguments of Hugging Face's Trainer to keys of a job file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.programs.lora_arguments import read_adapters
from zerotools.jobs.imports.programs.program_paths import read_files
from zerotools.jobs.imports.programs.run_settings import RunSettings
from zerotools.jobs.imports.programs.typed_arguments import ArgumentReading
from zerotools.jobs.imports.reading.batch_size import (
    JOB_MICRO,
    JOB_TOTAL,
    ranks_key,
    sequence_divisor,
    world_size,
)
from zerotools.jobs.imports.reading.check_deepspeed_keys import AUTO, ConfigValue
from zerotools.jobs.imports.reading.config_reader import ConfigReading
from zerotools.jobs.imports.reading.import_report import Findings, KeyOutcome, ReportRow
from zerotools.jobs.imports.reading.key_claims import Claims
from zerotools.jobs.jobfile_tables.metrics import WANDB
from zerotools.jobs.launcher_keys.config_key import ValueKind, is_off
from zerotools.jobs.launcher_keys.trainer_keys import (
    DIRECT,
    FEATURES,
    IGNORED,
    OF_EVAL,
    OPTIMIZERS,
    SCHEDULES,
    SYNONYMS,
    TRACKERS,
)

ACCUMULATION = "gradient_accumulation_steps"
_RESPONSES = frozenset({"response_column", "summary_column", "target_column"})


_ADAFACTOR = (
    "Adafactor: the job multiplies the learning rate by the root mean square of a weight, as torch "
    "does; the Trainer does not, so the job may need a larger train.learning_rate"
)
_SAVED_AT_END = (
    "checkpoints: only after the last step; the program also saves earlier (checkpoint.every)"
)
_EVALUATED_AT_END = (
    "evaluations: only after the last step; the program also evaluates earlier (eval.every)"
)
_LONGEST_WARMUP = (
    "warm-up: 3 % of all steps; the program takes at most 100 steps (train.warmup_steps)"
)
_OFF = ("none", "null", "false", "0", "0.0", "", "no")
_STAGES = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "true": 3}
STAGE = "zero.stage"
_RECORDED = "every step is recorded: zerotools logs, zerotools show"
STEPS, EPOCHS, WARMUP = "train.steps", "train.epochs", "train.warmup_steps"
RATIO = "train.warmup_ratio"


def translate_settings(run: RunSettings, claims: Claims, findings: Findings) -> ArgumentReading:
    """Translate the settings in `run` to keys of a job: add their values to `claims`, and the
    report to `findings`. Return the state that `read_batch_of` needs.

    The batch size is read later by `read_batch_of`, because accelerate may set the number of ranks.
    The config files that the settings name are also read later, because their `"auto"` values come
    from the Trainer arguments.
    """
    findings.extend(run.findings)
    given = _named(run, findings)
    reading = ArgumentReading(run, ConfigReading(run.source, given, claims, findings))
    _read_ranks(reading)
    _read_numa(reading)
    read_files(reading)
    _read_precision(reading)
    for name, (key, kind) in DIRECT.items():
        _direct(reading, name, key, kind)
    _read_optimizer(reading)
    read_schedule(reading)
    _read_saving(reading)
    _read_eval(reading)
    _read_best(reading)
    read_adapters(reading)
    read_trackers(reading)
    read_sharding(reading)
    for name in list(reading.config.remaining):
        if name != ACCUMULATION:
            _judge_rest(reading, name)
    return reading


def _named(run: RunSettings, findings: Findings) -> dict[str, ConfigValue]:
    """Return the arguments, keyed by the names that the tables in `launcher_keys` use.

    Synonyms are replaced.
    """
    found: dict[str, ConfigValue] = {}
    for name, given in run.given.items():
        if name == "test_file" and "validation_file" in run.given:
            why = "the job is evaluated on the validation file"
            row = ReportRow(KeyOutcome.IGNORED, given.title, given.place, None, None, why)
            findings.rows.append(row)
            continue
        known = SYNONYMS.get(name, name)
        if name == "text_column" and not _RESPONSES.isdisjoint(run.given):
            known = "prompt_column"  # an argument of run_summarization.py
        if known in found:
            findings.wrong.append(
                f"{given.label} and {found[known].label} say the same; remove one of them"
            )
        found[known] = replace(given, name=known)
    return found


def _direct(reading: ArgumentReading, name: str, key: str, kind: ValueKind) -> None:
    given = reading.typed(name, kind)
    if given is None:
        reading.default(name, key)
    elif given.value != AUTO and given.value is not None:
        reading.config.map(given, key, given.value)
    else:
        reading.config.row(KeyOutcome.IGNORED, given, None, "says nothing")


def _read_ranks(reading: ArgumentReading) -> None:
    config, run = reading.config, reading.run
    cpu = [reading.typed(name, ValueKind.BOOL) for name in ("use_cpu", "no_cuda")]
    for given in cpu:
        if given is not None and given.value is True:
            config.map(given, "device", "cpu")
        elif given is not None:
            config.row(KeyOutcome.IGNORED, given, None, "the job file sets the device")
    key = ranks_key(config.claims)
    if run.ranks is not None:
        known = world_size(config.claims)
        place = " ".join(part for part in (run.ranks.place or run.source,) if part)
        given = replace(run.ranks, place=place)
        if known is not None and known.value == given.value:
            config.row(KeyOutcome.MAPPED, given, key)
        else:
            config.map(given, key, given.value)
    elif run.launcher and world_size(config.claims) is None:
        why = f"without it {run.launcher} uses every GPU, but the job has one rank"
        row = ReportRow(KeyOutcome.DEFAULT, "ranks", run.source, None, key, why)
        config.findings.rows.append(row)


def _read_numa(reading: ArgumentReading) -> None:
    if (asked := reading.run.numa) is not None:
        reading.config.map(asked.given, "numa", asked.numa, asked.why)


def _read_precision(reading: ArgumentReading) -> None:
    on: list[tuple[ConfigValue, str]] = []
    for name in ("bf16", "fp16"):
        given = reading.typed(name, ValueKind.BOOL)
        if given is None:
            continue
        if given.value in (True, AUTO):
            on.append((given, name))
        else:
            reading.config.row(KeyOutcome.IGNORED, given, None, "is off")
    if len(on) > 1 and on[0][0].value == AUTO:
        on = on[1:]
    if len(on) > 1:
        what = f"{on[0][0].label} and {on[1][0].label} are both on; switch one of them off"
        reading.config.findings.wrong.append(what)
    for given, name in on[:1]:
        reading.config.map(replace(given, note=""), "train.precision", name)
    if not on:
        reading.default("precision", "train.precision")


def _read_optimizer(reading: ArgumentReading) -> None:
    given = reading.typed("optim", ValueKind.TEXT)
    betas = [reading.typed(f"adam_beta{n}", ValueKind.NUMBER) for n in (1, 2)]
    eps = reading.typed("adam_epsilon", ValueKind.NUMBER)
    if given is not None and given.value not in OPTIMIZERS:
        reading.unsupported(given, f"supported: {', '.join(OPTIMIZERS)}")
    elif given is not None:
        paged = "the job's optimizer is not paged; if memory is short, set offload.optimizer"
        why = paged if str(given.value).startswith("paged") else ""
        reading.config.map(given, "train.optimizer", OPTIMIZERS[given.value], why)
        if given.value == "sgd":
            reading.weak("momentum", "train.momentum", 0.0)
        elif given.value == "adafactor":
            reading.config.findings.differences.append(_ADAFACTOR)
    if given is not None and OPTIMIZERS.get(given.value) not in ("adamw", "adamw8bit"):
        for useless in filter(None, (*betas, eps)):
            reading.config.row(KeyOutcome.IGNORED, useless, None, "has an effect only with AdamW")
        return
    values = [
        entry.value if entry else reading.run.defaults.get(f"adam_beta{n}")
        for n, entry in ((1, betas[0]), (2, betas[1]))
    ]
    said = next((entry for entry in betas if entry), None)
    own = (0.9, 0.95)  # the defaults of the job file
    values = [mine if value is None else value for value, mine in zip(values, own, strict=True)]
    if said is not None:
        reading.config.map(said, "train.betas", tuple(values), "with the other beta")
        for entry in betas:
            if entry is not None and entry is not said:
                reading.config.row(KeyOutcome.MAPPED, entry, "train.betas", "with the other beta")
    elif "adam_beta1" in reading.run.defaults:
        reading.weak("adam_beta1, adam_beta2", "train.betas", tuple(values))
    if eps is not None:
        reading.config.map(eps, "train.eps", eps.value)


def read_batch_of(reading: ArgumentReading) -> None:
    """Set the job's batch size to the stated number, or to micro batch x accumulation x ranks."""
    config = reading.config
    if "total_batch_size" in reading.run.given:
        return
    given = reading.typed(ACCUMULATION, ValueKind.COUNT)
    micro, world = config.claims.of(JOB_MICRO), sequence_divisor(config.claims)
    steps = reading.run.defaults.get(ACCUMULATION) if given is None else given.value
    if given is not None:
        config.row(KeyOutcome.MAPPED, given, JOB_TOTAL)
    if micro is None or type(micro.value) is not int or type(steps) is not int:
        return
    if steps < 1 or micro.value < 1:
        place = micro.place if micro.value < 1 or given is None else given.label
        config.findings.wrong.append(f"{place} = 0: must be at least 1")
        return
    total = micro.value * steps * (1 if world is None else world.value)
    place = f"{micro.place}, times accumulation and ranks"
    if config.claims.of(JOB_TOTAL) is None:
        config.claims.add(JOB_TOTAL, total, place, weak=micro.weak and given is None)
    elif not micro.weak:
        config.claims.add(JOB_TOTAL, total, place)


def _read_saving(reading: ArgumentReading) -> None:
    config = reading.config
    strategy = reading.typed("save_strategy", ValueKind.TEXT)
    steps = reading.typed("save_steps", ValueKind.NUMBER)
    kind = "steps" if strategy is None else str(strategy.value)
    if strategy is not None:
        why = {
            "steps": "by save_steps",
            "no": "a checkpoint is written only at the end",
        }.get(kind, "checkpoints are counted in steps; set checkpoint.every")
        config.row(KeyOutcome.IGNORED, strategy, None, why)
    every = None if steps is None or kind != "steps" else _count(reading, steps)
    if steps is not None and every is not None:
        config.map(steps, "checkpoint.every", every)
    elif steps is not None:
        why = "is a fraction of all steps; set checkpoint.every"
        why = why if kind == "steps" else "is not used"
        config.row(KeyOutcome.IGNORED, steps, None, why)
    elif kind == "steps":
        reading.default("save_steps", "checkpoint.every")
    asked = kind != "no" and (strategy is not None or steps is not None)
    if asked and config.claims.of("checkpoint.every") is None:
        config.findings.differences.append(_SAVED_AT_END)


def _count(reading: ArgumentReading, given: ConfigValue) -> int | None:
    """Return the number of steps in an argument, which may be a fraction of all steps. Return None
    if it is not a number of steps, or if the number of all steps is unknown.
    """
    if given.value >= 1:
        return int(given.value) if given.value == int(given.value) else None
    steps = reading.config.claims.of(STEPS)
    if given.value <= 0 or steps is None or not isinstance(steps.value, int):
        return None
    count: int = math.ceil(given.value * steps.value)
    return count


def _read_eval(reading: ArgumentReading) -> None:
    config = reading.config
    evaluates = config.is_stated("eval.files") or config.is_stated("eval.fraction")
    strategy = reading.typed("eval_strategy", ValueKind.TEXT)
    steps = reading.typed("eval_steps", ValueKind.NUMBER)
    kind = "no" if strategy is None else str(strategy.value)
    if steps is None and kind == "steps":  # as in the Trainer
        steps = reading.typed("logging_steps", ValueKind.NUMBER)
        if steps is None and evaluates and "lr_scheduler_type" in reading.run.defaults:
            reading.weak("eval_steps, logging_steps", "eval.every", 500)
    none = "" if evaluates else "nothing is evaluated"
    if strategy is not None:
        known = {"steps": "by eval_steps", "no": "the job evaluates only after the last step"}
        text = none or known.get(kind, "evaluations are counted in steps; set eval.every")
        config.row(KeyOutcome.IGNORED, strategy, None, text)
    if steps is not None:
        every = _count(reading, steps)
        if evaluates and kind == "steps" and every is not None:
            config.map(steps, "eval.every", every)
        else:
            why = "is not used" if kind != "steps" else "is a fraction of all steps; set eval.every"
            config.row(KeyOutcome.IGNORED, steps, None, none or why)
    if evaluates and kind != "no" and config.claims.of("eval.every") is None:
        config.findings.differences.append(_EVALUATED_AT_END)
    for name, (key, kind_of) in OF_EVAL.items():
        given = reading.typed(name, kind_of)
        if given is not None and evaluates:
            config.map(given, key, given.value)
        elif given is not None:
            config.row(KeyOutcome.IGNORED, given, None, none)


def _read_best(reading: ArgumentReading) -> None:
    """Keep the best checkpoint if the program loads it at the end, and the job can find it."""
    config = reading.config
    asked = reading.typed("load_best_model_at_end", ValueKind.BOOL)
    metric = config.pop("metric_for_best_model")
    every, evaluated = map(config.claims.of, ("checkpoint.every", "eval.every"))
    by_loss = metric is None or metric.value in ("loss", "eval_loss", None)
    is_on = asked is not None and asked.value is True
    finds = every is not None and evaluated is not None and _divides(evaluated.value, every.value)
    if asked is not None and is_on and by_loss and finds:
        config.map(asked, "checkpoint.best", "eval_loss", "the job keeps it, and does not load it")
    elif asked is not None:
        why = "see checkpoint.best" if is_on else "is off"
        config.row(KeyOutcome.IGNORED, asked, None, why)
    if metric is not None:
        config.row(KeyOutcome.IGNORED, metric, None, "see checkpoint.best")


def _divides(divisor: Any, number: Any) -> bool:
    return isinstance(divisor, int) and isinstance(number, int) and not number % max(1, divisor)


def _judge_rest(reading: ArgumentReading, name: str) -> None:
    config = reading.config
    given = config.remaining.pop(name)
    if name in IGNORED:
        config.row(KeyOutcome.IGNORED, given, None, IGNORED[name])
    elif name in FEATURES and not (str(given.value).lower() in _OFF or is_off(given.value, None)):
        what = f"{given.label} = {format_value(given.value)}"
        config.findings.unsupported.append(f"{what}: the engine torch does not support this yet")
    elif name in FEATURES:
        config.row(KeyOutcome.IGNORED, given, None, "is off")
    else:
        config.row(KeyOutcome.UNKNOWN, given)


def read_sharding(reading: ArgumentReading) -> None:
    """Translate `fsdp`, `zero_stage` and `offload` to keys of the job file.

    Without these arguments and without a config, every rank has the whole model.
    """
    config, run = reading.config, reading.run
    for name in [n for n in config.remaining if n.startswith("fsdp_")]:
        option = config.remaining.pop(name)
        config.row(
            KeyOutcome.IGNORED, option, None, "controls how FSDP wraps layers and communicates"
        )
    stage = reading.typed("zero_stage", ValueKind.COUNT)
    if stage is not None:
        config.map(stage, STAGE, stage.value)
    offload = reading.typed("offload", ValueKind.BOOL)
    if offload is not None and offload.value is True:  # an argument of DeepSpeed-Chat
        config.map(offload, "offload.optimizer", "cpu")
        if stage is not None and stage.value == 3:
            config.map(offload, "offload.params", "cpu")
    elif offload is not None:
        config.row(KeyOutcome.IGNORED, offload, None, "is off")
    given = config.pop("fsdp")
    if given is not None and given.value not in (None, "", [], False):
        words = given.value if isinstance(given.value, list) else str(given.value).split()
        words = [str(word).lower() for word in words]
        stages = [_STAGES[word] for word in words if word in _STAGES]
        others = [w for w in words if w not in _STAGES and w not in ("offload", "auto_wrap")]
        if others or len(stages) != 1:
            reading.unsupported(given, f"supported: {', '.join(_STAGES)}, offload, auto_wrap")
            return
        config.map(given, STAGE, stages[0])
        if "offload" in words:
            # FSDP offloads what it shards; below stage 3 the weights stay
            key = "offload.params" if stages[0] == 3 else "offload.optimizer"
            config.map(given, key, "cpu")
        return
    if given is not None:
        config.row(KeyOutcome.IGNORED, given, None, "is off")
    if run.deepspeed is None and run.accelerate is None and run.defaults and stage is None:
        config.default("deepspeed, fsdp", STAGE, 0, "every rank has the whole model")


def read_trackers(reading: ArgumentReading, environment: Mapping[str, str] = os.environ) -> None:
    """Translate the experiment trackers in `report_to` that a job supports.

    Other trackers are ignored, and the reason is reported.
    """
    config = reading.config
    asked, entity = config.pop("report_to"), config.pop("wandb_entity")
    named = _names(asked)
    owner = f"{entity.value}/" if entity is not None and entity.value else ""
    for name, (argument, variable, default) in TRACKERS.items():
        key, before = f"metrics.{name}", owner if name == WANDB else ""
        project = config.pop(argument)
        if project is not None and project.value and (asked is None or name in named):
            config.map(project, key, before + str(project.value))
            continue
        if project is not None:
            config.row(KeyOutcome.IGNORED, project, None, f"report_to does not name {name}")
        if asked is not None and name in named:
            value = before + (environment.get(variable) or default)
            config.map(asked, key, value, f"by {variable}, or the Trainer's default")
    if asked is not None and not (named and named <= TRACKERS.keys()):
        others = ", ".join(sorted(named - TRACKERS.keys()))
        why = _RECORDED if named.isdisjoint(TRACKERS) else f"{others}: {_RECORDED}"
        config.row(KeyOutcome.IGNORED, asked, None, why)
    if entity is not None:
        config.row(KeyOutcome.IGNORED, entity, None, "is part of metrics.wandb")


def _names(asked: ConfigValue | None) -> set[str]:
    if asked is None or not asked.value:
        return set()
    values = asked.value if isinstance(asked.value, list) else str(asked.value).split(",")
    return {str(value).strip().lower() for value in values}


def read_schedule(reading: ArgumentReading) -> None:
    """Translate the number of steps or epochs, the schedule of the learning rate and its
    warm-up to keys of the job file.
    """
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
            what = f"{steps.label} = {format_value(steps.value)}: must be a whole number"
            config.findings.wrong.append(what)
            return None
        config.map(steps, STEPS, int(steps.value))
        if epochs is not None:
            config.row(KeyOutcome.IGNORED, epochs, None, "max_steps overrides it")
        return int(steps.value)
    if steps is not None:
        config.row(KeyOutcome.IGNORED, steps, None, "the epochs count")
    if epochs is not None:
        config.map(epochs, EPOCHS, float(epochs.value))
    elif not config.is_stated(STEPS) and not config.is_stated(EPOCHS):
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
        config.claims.add(WARMUP, 0, f"{reading.run.source} (constant)", weak=True)
        return
    if given is not None and given.value >= 1:
        if ratio is not None:
            config.row(KeyOutcome.IGNORED, ratio, None, "warmup_steps overrides it")
        _whole(reading, given)
        return
    if given is not None and given.value > 0:  # transformers 5 takes a part of all steps here
        if ratio is not None:
            config.row(KeyOutcome.IGNORED, ratio, None, "warmup_steps overrides it")
        ratio = given
    elif given is not None:
        config.row(KeyOutcome.MAPPED, given, WARMUP)
    if ratio is not None and ratio.value:
        _part(reading, ratio, steps)
    elif ratio is not None:
        config.row(KeyOutcome.MAPPED, ratio, WARMUP)
    elif given is None and "warmup_ratio" in reading.run.defaults:
        _default_part(reading, steps)
    elif given is None:
        reading.default("warmup_steps", WARMUP)


def _default_part(reading: ArgumentReading, steps: int | None) -> None:
    """Use axolotl's default of the warm-up: a fraction of all steps, but at most 100 steps."""
    if steps is not None:
        part = float(str(reading.run.defaults["warmup_ratio"]))
        reading.weak("warmup_steps", WARMUP, min(int(part * steps), 100))
    elif reading.config.claims.of(WARMUP) is None:
        reading.default("warmup_ratio", RATIO)
        reading.config.findings.differences.append(_LONGEST_WARMUP)


def _whole(reading: ArgumentReading, given: ConfigValue) -> None:
    if given.value != int(given.value):
        what = f"{given.label} = {format_value(given.value)}: must be a whole number"
        reading.config.findings.wrong.append(what)
        return
    reading.config.map(given, WARMUP, int(given.value))


def _part(reading: ArgumentReading, given: ConfigValue, steps: int | None) -> None:
    if not 0 <= given.value <= 1:
        what = f"{given.label} = {format_value(given.value)}: must be between 0 and 1"
        reading.config.findings.wrong.append(what)
    elif steps is None:
        reading.config.map(given, RATIO, given.value)
    else:
        warmup = math.ceil(given.value * steps)
        reading.config.map(given, WARMUP, warmup, f"of {steps} steps")


def _read_options(reading: ArgumentReading, kind: str) -> None:
    """Translate `lr_scheduler_kwargs` to keys of the job file: the minimum of a cosine
    schedule, or the parts of `warmup_stable_decay`.
    """
    given = reading.config.pop("lr_scheduler_kwargs")
    if given is None:
        return
    options = _table(given)
    if options is None:
        what = f"{given.label} = {format_value(given.value)}: must be a JSON object"
        reading.config.findings.wrong.append(what)
        return
    if not options:
        reading.config.row(KeyOutcome.IGNORED, given, None, "says nothing")
    left = dict(options)
    stable = kind == "warmup_stable_decay"
    floor = left.pop("min_lr", None)
    part = left.pop("min_lr_ratio" if stable else "min_lr_rate", None)
    if stable and left.get("decay_type") == "cosine":
        del left["decay_type"]  # the default of `train.schedule_form`
    rate = reading.config.current_value("train.learning_rate")
    if floor is None and part is not None and rate is not None and _is_number(part):
        floor = part * rate.value
    if _is_number(floor) and (stable or kind == "cosine_with_min_lr"):
        reading.config.map(given, "train.min_learning_rate", floor)
    decay = left.pop("num_decay_steps", None)
    if type(decay) is int and stable:
        reading.config.map(given, "train.decay_steps", decay)
    if left:
        supported = "min_lr, min_lr_rate, min_lr_ratio, num_decay_steps"
        reading.unsupported(given, f"supported keys: {supported}")


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

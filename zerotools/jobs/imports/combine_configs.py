"""Combine a job file and the configs of other launchers into one job, and report the outcome of
every key.

Every source of a key adds a claim, which is its value for the key. Sources are the job file, the
configs, and (as weak claims) the defaults of their launchers. If two claims for one key differ, and
neither is weak, the import fails. Otherwise the job gets the claimed values.
"""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest, Unsupported, ZerotoolsError
from zerotools.io.huggingface.config_json import full_config
from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.accelerate_yaml import Launched, read_accelerate
from zerotools.jobs.imports.deepspeed_json import read_deepspeed
from zerotools.jobs.imports.deepspeed_optimizer_and_schedule import read_missing
from zerotools.jobs.imports.programs.run_settings import RunSettings
from zerotools.jobs.imports.programs.trainer_arguments import (
    RATIO,
    read_batch_of,
    translate_settings,
)
from zerotools.jobs.imports.reading.batch_size import JOB_TOTAL, STEPS
from zerotools.jobs.imports.reading.config_reader import ConfigReading
from zerotools.jobs.imports.reading.import_report import Findings, KeyOutcome, ReportRow
from zerotools.jobs.imports.reading.key_claims import Claim, Claims, claims_of_job
from zerotools.jobs.imports.reading.look_up_job_keys import (
    JobTree,
    accepts_value,
    in_order,
    job_keys,
    known_only,
    look_up,
    set_key,
)
from zerotools.jobs.jobfile.parse import job_from_tree, job_to_dict
from zerotools.jobs.jobfile_tables.complete_deepspeed_config import completed_config
from zerotools.jobs.jobfile_tables.data import STREAM_LENGTH
from zerotools.jobs.jobfile_tables.deepspeed import DeepSpeedSpec
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.launcher_keys.deepspeed_releases import NEWEST, Release
from zerotools.jobs.text.config_document import Document, read_text
from zerotools.jobs.text.expand_home import expand_home
from zerotools.jobs.text.toml_writer import to_toml

CONFIG = "deepspeed.config"
OFF = ("none", 0, False)
"""Values that are not written to the job file, because a job without the key does the same."""


Load = Callable[[str], Document]
"""A function that reads the DeepSpeed config file at a path.

The path is named in another config. Raises BadRequest.
"""
_DATA = ("data.text", "data.tokens", "data.examples", "data.preferences")
_PLACEHOLDERS: dict[str, Any] = {
    "model.path": "/",
    **{key: ["/"] for key in _DATA},
    "train.steps": 2**62,
    "train.batch_size": None,
}
"""Required keys of a job -> placeholder values that are always valid."""
_CHOICES = {
    "model.path": "model.path, or model.config to start from random weights",
    "data.text": "data.text, data.tokens or data.examples",
    "train.steps": "train.steps or train.epochs",
}
"""For each missing key, a phrase that names this key and the keys that can be set instead."""
_INSTEAD = {
    "model.path": ("model.config",),
    **dict.fromkeys(_DATA, _DATA),
    "train.steps": ("train.epochs",),
}
"""A feature of a launcher -> what the user can use instead."""


@dataclass(frozen=True)
class JobFile:
    """A job file: its tree of values, its name in messages, the directory for its relative
    paths, and its text.
    """

    tree: Mapping[str, Any]
    source: str
    base_dir: Path
    text: str | None = None


@dataclass(frozen=True)
class Imported:
    """The result of an import.

    Attributes:
        tree: the job, incomplete if there is a `problem`. Its paths are absolute if `spec` is set.
        spec: the job as a `JobSpec`; None if there is no job file.
        origins: each key that was not in the job file -> the source of its value.
        missing: the keys that the user must add; empty if there is a job file.
        problem: the reason why the job cannot be run; None if it can be run.
        deepspeed: the final config for DeepSpeed.
        changes: the lines of the diff from the original DeepSpeed config to the final one.
        formulas: a missing key -> a formula for its value.
    """

    tree: JobTree
    origins: Mapping[str, str]
    spec: JobSpec | None
    missing: tuple[str, ...]
    findings: Findings
    deepspeed: JobTree | None
    problem: ZerotoolsError | None
    changes: tuple[str, ...] = ()
    formulas: Mapping[str, str] = field(default_factory=dict)


def import_configs(
    job: JobFile | None,
    *,
    run: RunSettings | None = None,
    deepspeed: Document | None = None,
    accelerate: Document | None = None,
    load: Load | None = None,
    release: Release = NEWEST,
    reads_files: bool = True,
) -> Imported:
    """Combine the job file, the configs and the settings `run` into one job.

    `load` reads the DeepSpeed config file that the accelerate config names. `release` is the
    DeepSpeed version of the job's Python. If `reads_files` is false, the config of the model is not
    read, and every path must be absolute.

    Raises:
        BadRequest: `load` cannot read the DeepSpeed config file.
    """
    tree = {} if job is None else copy.deepcopy(dict(job.tree))
    source = "the job file" if job is None else job.source
    base_dir = None if not reads_files else Path.cwd() if job is None else job.base_dir
    claims, findings = claims_of_job(tree, source), Findings()
    deepspeed = _configured(tree, source, deepspeed, findings)
    arguments = None if run is None else translate_settings(run, claims, findings)
    if accelerate is not None:
        launched = read_accelerate(accelerate, claims, findings, release)
        deepspeed = _chosen(deepspeed, launched, load, findings)
        if deepspeed is None:
            read_missing(ConfigReading(accelerate.source, {}, claims, findings), {})
    if arguments is not None:
        read_batch_of(arguments)
    for_deepspeed = None
    if deepspeed is not None:
        if run is not None and run.defaults:
            _leave_schedule(run, deepspeed, claims, findings)
        hidden = hidden_size(_with_model(tree, claims), base_dir)
        for_deepspeed = read_deepspeed(
            deepspeed, claims, findings, hidden_size=hidden, release=release
        )
        if look_up(tree, "engine") == "deepspeed":
            set_key(tree, CONFIG, for_deepspeed)
    findings.wrong += claims.contradictions()
    origins = _write(tree, claims, findings)
    findings.rows[:] = [_as_written(row, tree) for row in findings.rows]
    if run is not None:
        program = run.who if run.program is None else run.program.name
        findings.differences += training_differences(tree, findings.rows, program)
    spec: JobSpec | None = None
    data_key = "data.text" if run is None else run.data_key
    missing = tuple(_missing(tree, data_key)) if job is None else ()
    if not findings.wrong:
        spec, refusal = _judge(_completed(tree, missing), source, base_dir, origins)
        if isinstance(refusal, Unsupported):
            findings.unsupported.append(str(refusal))
        elif refusal is not None:
            findings.wrong.append(str(refusal))
    problem = problem_of(findings)
    if spec is not None and spec.engine == "deepspeed":
        for_deepspeed = completed_config(spec)
        spec = replace(spec, deepspeed=DeepSpeedSpec(config=for_deepspeed))
        set_key(tree, CONFIG, for_deepspeed)
    changes: tuple[str, ...] = ()
    if deepspeed is not None and for_deepspeed is not None and look_up(tree, CONFIG) is not None:
        changes = tuple(config_diff(deepspeed, for_deepspeed))
    if spec is not None and job is not None:
        tree = known_only(job_to_dict(spec), tree)
    spec = None if missing or problem else spec
    return Imported(
        in_order(tree),
        origins,
        spec,
        missing,
        findings,
        for_deepspeed,
        problem,
        changes,
        _formulas(missing, tree, findings),
    )


def job_text(imported: Imported) -> str:
    """Return the imported job as the text of a job file. Its comments name the source of each key,
    and the keys that the user must add. Raises BadRequest if a value is null.
    """
    text = to_toml(imported.tree, imported.origins)
    if not imported.missing:
        return text
    listed = "".join(
        f"#   {imported.formulas.get(key) or _CHOICES.get(key, key)}\n" for key in imported.missing
    )
    return f"{text}\n# A job also needs these keys, which the imported files do not have:\n{listed}"


def _formulas(missing: Sequence[str], tree: JobTree, findings: Findings) -> dict[str, str]:
    """Return a formula for the batch size, keyed by its job key; an empty mapping if the batch size
    is not one of the `missing` keys."""
    if JOB_TOTAL not in missing:
        return {}
    steps = next((r for r in findings.rows if r.job == JOB_TOTAL and r.key.endswith(STEPS)), None)
    ranks = look_up(tree, "gpus") or look_up(tree, "ranks")
    factors = ["the sequences that a GPU processes at once (train.micro_batch_size)"]
    factors += [] if steps is None else [f"{steps.value} ({steps.key})"]
    factors += [f"{ranks} GPUs"] if isinstance(ranks, int) else ["the number of GPUs"]
    return {JOB_TOTAL: f"{JOB_TOTAL} = {' x '.join(factors)}"}


def _configured(
    tree: JobTree, source: str, given: Document | None, findings: Findings
) -> Document | None:
    """Return the DeepSpeed config: `given`, or the table `[deepspeed]` of the job `tree`. If both
    exist, an error is added to `findings`."""
    config = look_up(tree, CONFIG)
    if config is None:
        return given
    place = f"{source} {CONFIG}"
    if given is not None:
        findings.wrong.append(
            f"{place}: cannot be combined with {given.source}; remove one of them"
        )
        return given
    return Document(place, config, {}) if isinstance(config, Mapping) else None


def _leave_schedule(
    run: RunSettings, deepspeed: Document, claims: Claims, findings: Findings
) -> None:
    """Ignore the Trainer's schedule if DeepSpeed's config has a scheduler, because the Trainer then
    uses that scheduler."""
    given = run.given.get("lr_scheduler_type")
    kind = look_up(deepspeed.tree, "scheduler.type")
    if kind is None:
        return
    claims.claims[:] = [each for each in claims.claims if not (each.key == RATIO and each.weak)]
    if given is None:
        return
    claims.claims[:] = [
        each for each in claims.claims if (each.key, each.place) != ("train.schedule", given.label)
    ]
    why = f"the Trainer uses the scheduler in {deepspeed.source} instead: {kind}"
    findings.rows[:] = [
        replace(row, outcome=KeyOutcome.IGNORED, job=None, why=why)
        if (row.key, row.place) == (given.title, given.place)
        else row
        for row in findings.rows
    ]


def _chosen(
    given: Document | None, launched: Launched, load: Load | None, findings: Findings
) -> Document | None:
    """Return the DeepSpeed config to use: `given`, which the user named directly, or else the
    config in `launched`.

    If both exist, an error is added to `findings`.
    """
    if given is None:
        if launched.file is not None and load is not None:
            return load(str(launched.file.value))
        return launched.section
    rivals = launched.stated if launched.file is None else (launched.file,)
    for rival in rivals:
        findings.wrong.append(
            f"{rival.label} = {format_value(rival.value)}: cannot be combined with {given.source}, "
            "which has the whole configuration; remove it"
        )
    return given


def _with_model(tree: JobTree, claims: Claims) -> JobTree:
    """Return a copy of the job `tree`. If it has no model, the copy gets the model in `claims`."""
    claimed = copy.deepcopy(tree)
    for key in ("model.path", "model.config"):
        claim = claims.of(key)
        if claim is not None and look_up(tree, key) is None:
            set_key(claimed, key, claim.value)
    return claimed


def _write(tree: JobTree, claims: Claims, findings: Findings) -> dict[str, str]:
    """Add the values in `claims` to the job `tree`, and return the source of each added key.

    A value that the job file cannot express is reported in `findings`.
    """
    origins = {}
    engine = look_up(tree, "engine") or "torch"
    for key in claims.about():
        claim = claims.of(key)
        if claim is None or look_up(tree, key) is not None:
            continue
        if engine == "deepspeed" and key.startswith("offload."):
            continue  # DeepSpeed's config contains it
        if accepts_value(key, claim.value):
            set_key(tree, key, claim.value)
            origins[key] = claim.place
        elif claim.value not in OFF and engine == "torch":
            findings.unsupported.append(_unsaid(claim))
    return origins


def _as_written(row: ReportRow, tree: JobTree) -> ReportRow:
    """With engine deepspeed, return `row` with the outcome PASSED if its value goes to DeepSpeed
    and the job `tree` has no key for it. Else return `row`."""
    passed = row.outcome is KeyOutcome.MAPPED and look_up(tree, "engine") == "deepspeed"
    if passed and row.job is not None and row.job != "engine" and look_up(tree, row.job) is None:
        return replace(row, outcome=KeyOutcome.PASSED, job=None)
    return row


def _unsaid(claim: Claim) -> str:
    where = f"{claim.place} = {format_value(claim.shown)}"
    if claim.key not in job_keys():
        return f"{where}: the engine torch does not support this yet ({claim.key})"
    allowed = job_keys()[claim.key][0].metadata.get("allowed")
    choices = f"; supported: {', '.join(map(format_value, allowed))}" if allowed else ""
    return f"{where}: {claim.key} = {format_value(claim.value)} is not supported{choices}"


def problem_of(findings: Findings) -> ZerotoolsError | None:
    """Return one error that contains all problems in `findings`; None if there are no problems."""
    listed = [*findings.wrong, *findings.unsupported]
    if not listed:
        return None
    kind = BadRequest if findings.wrong else Unsupported
    if len(listed) == 1:
        return kind(listed[0])
    return kind(f"{len(listed)} problems:" + "".join(f"\n  {each}" for each in listed))


def _judge(
    tree: Mapping[str, Any], source: str, base_dir: Path | None, origins: Mapping[str, str]
) -> tuple[JobSpec | None, ZerotoolsError | None]:
    try:
        return job_from_tree(tree, source=source, base_dir=base_dir), None
    except (BadRequest, Unsupported) as error:
        text = str(error)
        for key, place in origins.items():
            text = text.replace(f"{key} = ", f"{key} (of {place}) = ")
        return None, type(error)(text)


def _missing(tree: JobTree, data_key: str) -> Iterator[str]:
    for key in ("model.path", data_key, "train.steps", "train.batch_size"):
        if all(look_up(tree, each) is None for each in (key, *_INSTEAD.get(key, ()))):
            yield key


def _completed(tree: JobTree, missing: tuple[str, ...]) -> JobTree:
    """Return a copy of `tree` with placeholders for the `missing` keys, so that the other keys
    can be checked.
    """
    whole = copy.deepcopy(tree)
    for key in missing:
        set_key(whole, key, _PLACEHOLDERS[key])
    if "train.batch_size" in missing:
        ranks = look_up(tree, "gpus") or look_up(tree, "ranks") or 1
        world = ranks if isinstance(ranks, int) else len(ranks)
        if isinstance(ranks, Mapping):
            world = ranks["max"] if isinstance(ranks.get("max"), int) else 1
        set_key(whole, "train.batch_size", world * (look_up(tree, "train.micro_batch_size") or 1))
    return whole


def config_diff(document: Document, tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a diff from the config file `document` to the final config `tree`.

    If both have the same values, yield nothing.

    If the file does not have about one line for each key, a reformatted copy of it is compared.
    """
    after = _lines(tree)
    before = _lines(document.tree)
    if document.text is not None:
        written = document.text.splitlines()
        if _alike(written, before):
            indent = next((len(x) - len(x.lstrip()) for x in written[1:] if x.strip()), 2)
            before, after = written, _lines(tree, indent or 2)
    name = document.source
    yield from difflib.unified_diff(
        before, after, name, f"{name} as DeepSpeed reads it", lineterm=""
    )


def _lines(tree: Mapping[str, Any], indent: int = 2) -> list[str]:
    return json.dumps(tree, indent=indent, ensure_ascii=False).splitlines()


def _alike(written: list[str], dumped: list[str]) -> bool:
    """Return whether the file `written` has about one line for each key, like the formatted text
    `dumped`."""
    keys = {line.split(":")[0].strip() for line in dumped if ":" in line}
    same = sum(line.split(":")[0].strip() in keys for line in written)
    return same >= 0.5 * len(keys)


def hidden_size(job: Mapping[str, Any], base_dir: Path | None) -> int | None:
    """Return the `hidden_size` in the model's config, or the largest of its `hidden_sizes`.

    Return None if the size is not known. An unreadable config is no error here, because the job is
    refused later. If `base_dir` is None, no file is read.
    """
    config = look_up(job, "model.config")
    path = look_up(job, "model.path")
    if isinstance(path, str):
        config = _read(base_dir, f"{path}/config.json")
    elif isinstance(config, str):
        config = _read(base_dir, config)
    if not isinstance(config, Mapping):
        return None
    inner = config.get("text_config")
    found = _size({key: value for key, value in config.items() if key != "text_config"})
    return _size(inner) if found is None and isinstance(inner, Mapping) else found


def _read(base_dir: Path | None, path: str) -> Any:
    if base_dir is None:
        return None
    try:
        return json.loads(read_text(base_dir / expand_home(path), "model config"))
    except (BadRequest, ValueError, RecursionError):
        return None


def _size(config: Mapping[str, Any]) -> int | None:
    config = full_config(config)
    sizes = config.get("hidden_sizes")
    listed = sizes if isinstance(sizes, list) else []
    found = [size for size in [config.get("hidden_size"), *listed] if type(size) is int]
    return found[0] if type(config.get("hidden_size")) is int else max(found, default=None)


_SAMPLES = ("max_samples", "max_train_samples")
"""Arguments of programs that read only a part of the data."""


def training_differences(
    tree: Mapping[str, Any], rows: list[ReportRow], program: str
) -> Iterator[str]:
    """Yield a sentence for each known difference between training by the job `tree` and training by
    `program`. The sentences tell users what to expect when they compare losses.
    """
    if look_up(tree, "data.examples") is not None:
        yield "prompts: rendered by the tokenizer's chat template if it has one"
        yield "loss: only on responses, never on prompts (data.loss_on)"
        if look_up(tree, "data.packing") is None:
            yield "batches: an example is a sequence; data.packing = true joins short ones"
    elif look_up(tree, "data.preferences") is not None:
        yield "prompts: rendered by the tokenizer's chat template if it has one"
        yield "reference model: the start weights; its log-probabilities are computed only once"
    elif look_up(tree, "data.text") is not None:
        length = look_up(tree, "data.sequence_length") or STREAM_LENGTH
        yield f"text: one stream of all files, in windows of {length} tokens (data.sequence_length)"
    for row in rows:
        if row.key.lstrip("-") in _SAMPLES and row.value:
            yield f"data: all of it; {program} reads at most {row.value} examples of a file"
    if look_up(tree, "eval.predict_with_generate"):
        beams = look_up(tree, "eval.num_beams") or 1
        if beams > 1:
            yield f"scores: BLEU and ROUGE (zerotools[scores]), with {beams} beams"
        else:
            yield "scores: BLEU and ROUGE (zerotools[scores]), without beam search (eval.num_beams)"
    yield f"checkpoints: in the format of zerotools (step-N); {program} cannot read them"
    if any(row.outcome is KeyOutcome.UNKNOWN for row in rows):
        yield f"unknown arguments: zerotools ignores them; {program} may use them"

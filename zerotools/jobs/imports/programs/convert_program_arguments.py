"""Convert the arguments of a training program to arguments of the Trainer. The program's name
selects how: LLaMA-Factory, axolotl, ms-swift, or a program that is built on the Trainer.

If the launch line names a file with arguments of the program, the file is read, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.programs.axolotl import read_axolotl
from zerotools.jobs.imports.programs.llamafactory import read_llamafactory
from zerotools.jobs.imports.programs.run_settings import RunSettings
from zerotools.jobs.imports.programs.trainer_based_programs import (
    SCRIPTS,
    is_unread_trl,
    read_as_known,
)
from zerotools.jobs.imports.reading.check_deepspeed_keys import ConfigValue
from zerotools.jobs.imports.reading.import_report import KeyOutcome, ReportRow, add_repairs
from zerotools.jobs.launcher_keys.launcher_flags import CONSOLE_PROGRAMS, PROGRAM_MODULES
from zerotools.jobs.launcher_keys.program_keys import (
    SWIFT_DEFAULTS,
    SWIFT_IGNORED,
    SWIFT_LORA_RATE,
    SWIFT_NAMES,
    SWIFT_PRECISIONS,
    TRL_OWN,
)
from zerotools.jobs.launcher_keys.trainer_keys import TRAINER_DEFAULTS, TRAINERS_OWN
from zerotools.jobs.text.config_document import Document, Trail, read_text
from zerotools.jobs.text.yaml_parser import parse_yaml

_FACTORY = "llamafactory-cli"
_FACTORY_FILES = ("train.py", "train_bash.py")
_YAML = (".yaml", ".yml", ".json")
_OF_FACTORY = ("finetuning_type", "dataset_dir", "template")
_OPENRLHF = "openrlhf.cli."
_ARGUMENT_FILES = ("train_args_file", "args_file", "config", "config_file", "cfg", "Y", "C")
"""Arguments that name a file with more arguments, in Firefly, TRL and h2o-llmstudio."""


_STAGES = ("zero0", "zero1", "zero2", "zero3")
_OFFLOAD = "_offload"
_EXAMPLES_A_STEP = 16
"""The default number of sequences per step in ms-swift.

It computes gradient accumulation from this number.
"""


def to_trainer_arguments(
    run: RunSettings,
    launcher: str,
    program: str,
    loose: Sequence[ConfigValue],
    *,
    lenient: bool = False,
) -> RunSettings:
    """Convert the arguments in `run`, which `program` defines, to arguments of the Trainer. Return
    the converted settings.

    `loose` are the words of the command that are not named arguments. If they name a YAML file, it
    is read, and corrected if `lenient` is true.

    Raises:
        Unsupported: a YAML file is named, and PyYAML is not installed.
    """
    kind = PROGRAM_MODULES.get(program, launcher)
    config = next((each for each in loose if str(each.value).endswith(_YAML)), None)
    is_factory = kind == _FACTORY or (config and Path(program).name in _FACTORY_FILES)
    if config is not None and (is_factory or kind == "axolotl"):
        others = [each for each in loose if each is not config]
        reader = read_axolotl if kind == "axolotl" else read_llamafactory
        return _of_yaml(run, config, others, reader, lenient)
    if kind not in CONSOLE_PROGRAMS and not is_factory:
        named = [given for name in _ARGUMENT_FILES if (given := run.given.get(name))]
        if program.startswith(SCRIPTS):  # TRL opens a file with any name
            named = [each for each in named if isinstance(each.value, str)]
        else:
            named = [each for each in named if str(each.value).endswith(_YAML)]
        file = next(iter(named), config)
        if file is not None and not (file is config and _is_data(run, file)):
            run = _with_file(run, file, lenient)
            loose = [each for each in loose if each is not file]
    run = _with_adapter_file(run, lenient)
    _report_loose(run, loose)
    if is_factory or sum(name in run.given for name in _OF_FACTORY) > 1:
        return _joined(run, read_llamafactory(_document(run), run.file_directory))
    if kind == "swift":
        return read_swift(run, program)
    if kind in ("xtuner", "litgpt", "axolotl"):
        run.findings.unsupported.append(_no_settings(run, kind))
    if kind not in CONSOLE_PROGRAMS:
        run = read_as_known(run, program)
    if program.startswith(_OPENRLHF) or is_unread_trl(program):
        run.findings.unsupported.append(
            f"{_location(run)}: the arguments of {program} are not read; run the program with "
            "--as script"
        )
    return run


def _location(run: RunSettings) -> str:
    return run.source if run.program is None else run.program.place


def _no_settings(run: RunSettings, kind: str) -> str:
    place = _location(run)
    if kind == "xtuner":
        return (
            f"{place}: the settings of xtuner are Python, which is not read; run the program with "
            "--as script"
        )
    if kind == "litgpt":
        return f"{place}: the arguments of litgpt are not read; run the program with --as script"
    return f"{place}: names no YAML file with the settings of {kind}; add it after the command"


def _of_yaml(
    run: RunSettings,
    config: ConfigValue,
    others: Sequence[ConfigValue],
    reader: Callable[[Document, Path], RunSettings],
    lenient: bool,
) -> RunSettings:
    name = str(config.value)
    path = run.found(name)
    try:
        text = run.documents.get(name) or read_text(path, "config")
        document = parse_yaml(text, source=str(path), lenient=lenient)
        tree: dict[str, Any] = {**document.tree}
        for each in others:
            key, equals, value = str(each.value).partition("=")
            if equals:
                tree[key.lstrip("-")] = _scalar(value)
            else:
                _report_loose(run, [each])
        tree |= {key: _scalar(given.value) for key, given in run.given.items()}
        whole = replace(document, tree=tree)
        own = reader(whole, path.parent)
    except BadRequest as error:
        run.findings.wrong.append(f"{config.place}: {error}")
        return replace(run, given={})
    return _joined(run, own)


def _is_data(run: RunSettings, file: ConfigValue) -> bool:
    """Return whether `file` is a JSON file with data (records, not arguments), or a JSON file that
    cannot be read.
    """
    if not str(file.value).endswith(".json"):
        return False
    try:
        with run.found(str(file.value)).open("rb") as stream:
            return not stream.read(64).lstrip().startswith(b"{")
    except OSError:
        return True


def _with_file(run: RunSettings, file: ConfigValue, lenient: bool) -> RunSettings:
    """Return `run` with the arguments in `file` added.

    Arguments of the command override arguments in the file with the same names.
    """
    path = run.found(str(file.value))
    given = {name: each for name, each in run.given.items() if each is not file}
    try:
        text = run.documents.get(str(file.value)) or read_text(path, "config")
        document = parse_yaml(text, source=str(path), lenient=lenient)
    except BadRequest as error:
        run.findings.wrong.append(f"{file.place}: {file.title}: {error}")
        return replace(run, given=given)
    add_repairs(run.findings, document)
    inside = {
        name: ConfigValue(name, document.title((name,)), document.location((name,)), value)
        for name, value in document.tree.items()
        if value is not None
    }
    if (TRAINERS_OWN | TRL_OWN).isdisjoint(inside):
        run.findings.unsupported.append(
            f"{file.place}: {file.title}: {path} has settings of the program, which are not "
            "read; run the program with --as script"
        )
        return replace(run, given=given)
    run.findings.rows.append(
        ReportRow(KeyOutcome.MAPPED, file.title, file.place, str(path), None, "its arguments")
    )
    _apply_mode(inside)
    deepspeed = inside.pop("deepspeed", None)
    return replace(
        run,
        given={**inside, **given},
        defaults=TRAINER_DEFAULTS,
        deepspeed=run.deepspeed or (deepspeed if deepspeed and deepspeed.value else None),
    )


def _with_adapter_file(run: RunSettings, lenient: bool) -> RunSettings:
    """Return `run` with the LoRA settings from the JSON file that `lora_config` names.

    The keys of the file are BELLE's or peft's.
    """
    file = run.given.get("lora_config")
    if file is None or not isinstance(file.value, str):
        return run
    path = run.found(file.value)
    if file.value not in run.documents and not path.is_file():
        run.findings.steps.append(
            f"{file.value} was not found; set lora.rank, lora.alpha and lora.target_modules to "
            "the values in this file"
        )
        return run
    given = {name: each for name, each in run.given.items() if each is not file}
    try:
        text = run.documents.get(file.value) or read_text(path, "config")
        document = parse_yaml(text, source=str(path), lenient=lenient)
    except BadRequest as error:
        run.findings.wrong.append(f"{file.place}: {file.title}: {error}")
        return run
    add_repairs(run.findings, document)
    names = {"r": "lora_r"}
    for key, value in document.tree.items():
        place, title = document.location((key,)), document.title((key,))
        given.setdefault(names.get(key, key), ConfigValue(key, title, place, value))
    run.findings.rows.append(
        ReportRow(KeyOutcome.MAPPED, file.title, file.place, str(path), None, "its adapters")
    )
    return replace(run, given=given)


def _apply_mode(inside: dict[str, ConfigValue]) -> None:
    """Replace Firefly's argument `train_mode` in the arguments `inside` by the equivalent arguments
    `use_lora` and `load_in_4bit`.
    """
    given = inside.get("train_mode")
    if given is None or given.value not in ("full", "lora", "qlora"):
        return
    del inside["train_mode"]
    inside["use_lora"] = replace(given, name="use_lora", value=given.value != "full")
    if given.value == "qlora":
        inside["load_in_4bit"] = replace(given, name="load_in_4bit", value=True)


def _document(run: RunSettings) -> Document:
    """Convert the arguments of a command to the equivalent YAML document."""
    given = run.given
    lines: dict[Trail, int] = {
        (name,): int(line)
        for name, each in given.items()
        if (line := each.place.rpartition(":")[2]).isdecimal()
    }
    return Document(
        run.source,
        {name: _scalar(each.value) for name, each in given.items()},
        lines,
        titles={(name,): each.title for name, each in given.items()},
    )


def _joined(run: RunSettings, own: RunSettings) -> RunSettings:
    """Return the settings `own` with the launcher settings of `run` added.

    `own` was read from the program's arguments, and `run` from the launch line.
    """
    run.findings.extend(own.findings)
    return replace(
        own,
        deepspeed=own.deepspeed or run.deepspeed,
        accelerate=run.accelerate,
        accelerate_file=run.accelerate_file,
        ranks=run.ranks,
        launcher=run.launcher,
        numa=run.numa,
        documents=run.documents,
        program=run.program,
        findings=run.findings,
    )


def _report_loose(run: RunSettings, loose: Sequence[ConfigValue]) -> None:
    for each in loose:
        why = "the program may use this argument, but it has no name"
        row = ReportRow(KeyOutcome.UNKNOWN, each.title, each.place, None, None, why)
        run.findings.rows.append(row)


def _scalar(value: Any) -> Any:
    words = {"true": True, "false": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value


def read_swift(run: RunSettings, method: str) -> RunSettings:
    """Return the training arguments of the command `swift METHOD`.

    If the method is not `sft` or `pt`, an error is added to the findings.
    """
    given = {SWIFT_NAMES.get(name, name): each for name, each in run.given.items()}
    place = run.source if run.program is None else run.program.place
    if method not in ("sft", "pt"):
        run.findings.unsupported.append(
            f"{place}: swift {method} trains on rewards or preferences; write such a job by hand "
            "(zerotools help learn-from-preferences), or run the program with --as script"
        )
    for name in [name for name in given if name in SWIFT_IGNORED]:
        each = given.pop(name)
        row = ReportRow(KeyOutcome.IGNORED, each.title, each.place, None, None, SWIFT_IGNORED[name])
        run.findings.rows.append(row)
    defaults: dict[str, Any] = dict(SWIFT_DEFAULTS)
    kind = given.pop("train_type", None)
    adapts = kind is None or kind.value == "lora"
    if kind is not None and kind.value not in ("lora", "full"):
        what = f"{kind.label} = {format_value(kind.value)}: is not supported; supported: lora, full"
        run.findings.unsupported.append(what)
    given["use_lora"] = replace(
        kind or ConfigValue("use_lora", "(no train_type)", place, None), value=adapts
    )
    if adapts:
        defaults["learning_rate"] = SWIFT_LORA_RATE
        given.setdefault(
            "lora_target_modules",
            ConfigValue("lora_target_modules", "(no target_modules)", place, "all-linear"),
        )
    _read_precision(run, given)
    if "gradient_accumulation_steps" not in given:
        micro = given.get("per_device_train_batch_size")
        defaults["gradient_accumulation_steps"] = _accumulation(run, micro)
    found = {name: replace(each, name=name) for name, each in given.items()}
    named = run.deepspeed
    stage = None if named is None else str(named.value).removeprefix("default-")
    if named is not None and stage and stage.removesuffix(_OFFLOAD) in _STAGES:
        found["zero_stage"] = replace(named, name="zero_stage", value=stage[4])
        if stage.endswith(_OFFLOAD):
            found["offload"] = replace(named, name="offload", value=True)
        named = None
    return replace(
        run,
        given=found,
        defaults=defaults,
        who="ms-swift",
        deepspeed=named,
        examples=method != "pt",
    )


def _accumulation(run: RunSettings, micro: ConfigValue | None) -> int:
    size, ranks = (_whole(each) for each in (micro, run.ranks))
    return max(1, -(-_EXAMPLES_A_STEP // (size * ranks)))


def _whole(given: ConfigValue | None) -> int:
    text = "" if given is None else str(given.value)
    return int(text) if text.isdecimal() and 0 < len(text) < 7 and int(text) else 1


def _read_precision(run: RunSettings, given: dict[str, ConfigValue]) -> None:
    kind = given.pop("torch_dtype", None)
    precisions: Mapping[str, str] = SWIFT_PRECISIONS
    if kind is None or "bf16" in given or "fp16" in given:
        return
    name = precisions.get(str(kind.value))
    if name is None:
        listed = ", ".join(precisions)
        what = f"{kind.label} = {format_value(kind.value)}: is not supported; supported: {listed}"
        run.findings.unsupported.append(what)
    elif name:
        given[name] = replace(kind, value=True)

"""Read launch lines of programs that do not take the Trainer's arguments: LLaMA-Factory, axolotl,
ms-swift.

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
from zerotools.jobs.imports.programs.program_arguments import Recipe
from zerotools.jobs.imports.programs.trainer_programs import SCRIPTS, is_unread_trl, read_as_known
from zerotools.jobs.imports.reading.import_report import KeyOutcome, ReportRow, note_mends
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
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
from zerotools.jobs.text.document import Document, Trail, read_text
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


def read_as_of(
    recipe: Recipe,
    launcher: str,
    program: str,
    loose: Sequence[ConfigValue],
    *,
    lenient: bool = False,
) -> Recipe:
    """Convert the arguments in `recipe` from those of `program` to those of the Trainer, and
    return the new recipe.

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
        return _of_yaml(recipe, config, others, reader, lenient)
    if kind not in CONSOLE_PROGRAMS and not is_factory:
        named = [given for name in _ARGUMENT_FILES if (given := recipe.given.get(name))]
        if program.startswith(SCRIPTS):  # its parser opens the file by any name
            named = [each for each in named if isinstance(each.value, str)]
        else:
            named = [each for each in named if str(each.value).endswith(_YAML)]
        file = next(iter(named), config)
        if file is not None and not (file is config and _is_data(recipe, file)):
            recipe = _with_file(recipe, file, lenient)
            loose = [each for each in loose if each is not file]
    recipe = _with_adapter_file(recipe, lenient)
    _report_loose(recipe, loose)
    if is_factory or sum(name in recipe.given for name in _OF_FACTORY) > 1:
        return _joined(recipe, read_llamafactory(_document(recipe), recipe.beside))
    if kind == "swift":
        return read_swift(recipe, program)
    if kind in ("xtuner", "litgpt", "axolotl"):
        recipe.findings.unsupported.append(_no_settings(recipe, kind))
    if kind not in CONSOLE_PROGRAMS:
        recipe = read_as_known(recipe, program)
    if program.startswith(_OPENRLHF) or is_unread_trl(program):
        recipe.findings.unsupported.append(
            f"{_place(recipe)}: the arguments of {program} are not read; run the program with "
            "--as script"
        )
    return recipe


def _place(recipe: Recipe) -> str:
    return recipe.source if recipe.program is None else recipe.program.place


def _no_settings(recipe: Recipe, kind: str) -> str:
    place = _place(recipe)
    if kind == "xtuner":
        return (
            f"{place}: the settings of xtuner are Python, which is not read; run the program with "
            "--as script"
        )
    if kind == "litgpt":
        return f"{place}: the arguments of litgpt are not read; run the program with --as script"
    return f"{place}: names no YAML file with the settings of {kind}; add it after the command"


def _of_yaml(
    recipe: Recipe,
    config: ConfigValue,
    others: Sequence[ConfigValue],
    reader: Callable[[Document, Path], Recipe],
    lenient: bool,
) -> Recipe:
    name = str(config.value)
    path = recipe.found(name)
    try:
        text = recipe.documents.get(name) or read_text(path, "config")
        document = parse_yaml(text, source=str(path), lenient=lenient)
        tree: dict[str, Any] = {**document.tree}
        for each in others:
            key, equals, value = str(each.value).partition("=")
            if equals:
                tree[key.lstrip("-")] = _scalar(value)
            else:
                _report_loose(recipe, [each])
        tree |= {key: _scalar(given.value) for key, given in recipe.given.items()}
        whole = replace(document, tree=tree)
        own = reader(whole, path.parent)
    except BadRequest as error:
        recipe.findings.wrong.append(f"{config.place}: {error}")
        return replace(recipe, given={})
    return _joined(recipe, own)


def _is_data(recipe: Recipe, file: ConfigValue) -> bool:
    """Return whether a JSON file contains data rather than arguments: it has records, or cannot
    be read.
    """
    if not str(file.value).endswith(".json"):
        return False
    try:
        with recipe.found(str(file.value)).open("rb") as stream:
            return not stream.read(64).lstrip().startswith(b"{")
    except OSError:
        return True


def _with_file(recipe: Recipe, file: ConfigValue, lenient: bool) -> Recipe:
    """Return `recipe` with the arguments in `file` added.

    An argument of the command overrides the same argument in the file.
    """
    path = recipe.found(str(file.value))
    given = {name: each for name, each in recipe.given.items() if each is not file}
    try:
        text = recipe.documents.get(str(file.value)) or read_text(path, "config")
        document = parse_yaml(text, source=str(path), lenient=lenient)
    except BadRequest as error:
        recipe.findings.wrong.append(f"{file.place}: {file.title}: {error}")
        return replace(recipe, given=given)
    note_mends(recipe.findings, document)
    inside = {
        name: ConfigValue(name, document.title((name,)), document.place((name,)), value)
        for name, value in document.tree.items()
        if value is not None
    }
    if (TRAINERS_OWN | TRL_OWN).isdisjoint(inside):
        recipe.findings.unsupported.append(
            f"{file.place}: {file.title}: {path} has settings of the program, which are not "
            "read; run the program with --as script"
        )
        return replace(recipe, given=given)
    recipe.findings.rows.append(
        ReportRow(KeyOutcome.MAPPED, file.title, file.place, str(path), None, "its arguments")
    )
    _apply_mode(inside)
    deepspeed = inside.pop("deepspeed", None)
    return replace(
        recipe,
        given={**inside, **given},
        defaults=TRAINER_DEFAULTS,
        deepspeed=recipe.deepspeed or (deepspeed if deepspeed and deepspeed.value else None),
    )


def _with_adapter_file(recipe: Recipe, lenient: bool) -> Recipe:
    """Return `recipe` with the LoRA settings from the JSON file that `lora_config` names.

    The file has BELLE's or peft's names.
    """
    file = recipe.given.get("lora_config")
    if file is None or not isinstance(file.value, str):
        return recipe
    path = recipe.found(file.value)
    if file.value not in recipe.documents and not path.is_file():
        recipe.findings.steps.append(
            f"{file.value} is not here; set lora.rank, lora.alpha and lora.target_modules by it"
        )
        return recipe
    given = {name: each for name, each in recipe.given.items() if each is not file}
    try:
        text = recipe.documents.get(file.value) or read_text(path, "config")
        document = parse_yaml(text, source=str(path), lenient=lenient)
    except BadRequest as error:
        recipe.findings.wrong.append(f"{file.place}: {file.title}: {error}")
        return recipe
    note_mends(recipe.findings, document)
    names = {"r": "lora_r"}
    for key, value in document.tree.items():
        place, title = document.place((key,)), document.title((key,))
        given.setdefault(names.get(key, key), ConfigValue(key, title, place, value))
    recipe.findings.rows.append(
        ReportRow(KeyOutcome.MAPPED, file.title, file.place, str(path), None, "its adapters")
    )
    return replace(recipe, given=given)


def _apply_mode(inside: dict[str, ConfigValue]) -> None:
    """Replace Firefly's argument `train_mode` in `inside` by the equivalent switches."""
    given = inside.get("train_mode")
    if given is None or given.value not in ("full", "lora", "qlora"):
        return
    del inside["train_mode"]
    inside["use_lora"] = replace(given, name="use_lora", value=given.value != "full")
    if given.value == "qlora":
        inside["load_in_4bit"] = replace(given, name="load_in_4bit", value=True)


def _document(recipe: Recipe) -> Document:
    """Convert the arguments of a command to the equivalent YAML document."""
    given = recipe.given
    lines: dict[Trail, int] = {
        (name,): int(line)
        for name, each in given.items()
        if (line := each.place.rpartition(":")[2]).isdecimal()
    }
    return Document(
        recipe.source,
        {name: _scalar(each.value) for name, each in given.items()},
        lines,
        titles={(name,): each.title for name, each in given.items()},
    )


def _joined(recipe: Recipe, own: Recipe) -> Recipe:
    """Return the recipe `own`, which was read from a program's arguments, with the launcher
    settings of the launch line's `recipe` added.
    """
    recipe.findings.take(own.findings)
    return replace(
        own,
        deepspeed=own.deepspeed or recipe.deepspeed,
        accelerate=recipe.accelerate,
        accelerate_file=recipe.accelerate_file,
        ranks=recipe.ranks,
        launcher=recipe.launcher,
        numa=recipe.numa,
        documents=recipe.documents,
        program=recipe.program,
        findings=recipe.findings,
    )


def _report_loose(recipe: Recipe, loose: Sequence[ConfigValue]) -> None:
    for each in loose:
        why = "an argument of the program without a name"
        row = ReportRow(KeyOutcome.UNKNOWN, each.title, each.place, None, None, why)
        recipe.findings.rows.append(row)


def _scalar(value: Any) -> Any:
    words = {"true": True, "false": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value


def read_swift(recipe: Recipe, method: str) -> Recipe:
    """Return the training arguments of the command `swift METHOD`.

    If the method is not `sft` or `pt`, an error is added to the findings.
    """
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
        what = f"{kind.said} = {format_value(kind.value)}: is not supported; supported: lora, full"
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
        what = f"{kind.said} = {format_value(kind.value)}: is not supported; supported: {listed}"
        recipe.findings.unsupported.append(what)
    elif name:
        given[name] = replace(kind, value=True)

"""Read LLaMA-Factory's YAML: arguments of the Trainer, and names of datasets that
dataset_info.json describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.programs.run_settings import RunSettings, YamlSettings
from zerotools.jobs.imports.reading.check_deepspeed_keys import ConfigValue
from zerotools.jobs.imports.reading.import_report import KeyOutcome
from zerotools.jobs.launcher_keys.program_keys import (
    LLAMAFACTORY_DEFAULTS,
    LLAMAFACTORY_IGNORED,
    LLAMAFACTORY_METHODS,
    LLAMAFACTORY_NAMES,
    LLAMAFACTORY_STAGES,
)
from zerotools.jobs.text.config_document import Document, read_text
from zerotools.jobs.text.expand_home import expand_home
from zerotools.jobs.text.json_parser import parse_json

REGISTER = "dataset_info.json"
_COLUMNS = {"prompt": "prompt_column", "response": "response_column", "history": "history_column"}
_DPO = "dpo"
_ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}


def read_llamafactory(document: Document, file_directory: Path) -> RunSettings:
    """Return the training arguments in LLaMA-Factory's YAML `document`.

    `file_directory` is the directory of the file. Raises BadRequest if the YAML is not
    LLaMA-Factory's.
    """
    others = {"base_model": "if it is axolotl's config, use --axolotl"}
    others |= {"distributed_type": "if it is accelerate's config, use --accelerate"}
    yaml = YamlSettings(document, "LLaMA-Factory", "model_name_or_path", others)
    stage = yaml.remaining.get("stage")
    is_dpo = stage is not None and stage.value == _DPO
    examples = yaml.choice("stage", LLAMAFACTORY_STAGES, "sft")
    adapters = yaml.choice("finetuning_type", LLAMAFACTORY_METHODS, "lora")
    found = {**_data(yaml, file_directory, is_dpo=is_dpo), **_switches(yaml)}
    loss = yaml.pop("pref_loss")
    if is_dpo and loss is not None and loss.value != "sigmoid":
        yaml.refuse(loss, "is not supported; supported: sigmoid")
    yaml.ignore(LLAMAFACTORY_IGNORED)
    named = yaml.pop("deepspeed")
    given = {**yaml.renamed(LLAMAFACTORY_NAMES), **found}
    place = document.location(("finetuning_type",))
    given["use_lora"] = ConfigValue("use_lora", "finetuning_type", place, adapters)
    if adapters and "lora_target_modules" not in given:
        given["lora_target_modules"] = ConfigValue("", "(no lora_target)", place, "all")
    return RunSettings(
        document.source,
        given,
        file_directory,
        LLAMAFACTORY_DEFAULTS,
        "LLaMA-Factory",
        deepspeed=named if named is not None and named.value else None,
        launcher="llamafactory-cli",
        examples=examples,
        preferences=is_dpo,
        findings=yaml.findings,
    )


def _data(yaml: YamlSettings, file_directory: Path, *, is_dpo: bool) -> dict[str, ConfigValue]:
    """Return the data files of the datasets named by the key `dataset`, as Trainer arguments."""
    directory = yaml.remaining.get("dataset_dir")
    root = _found("data" if directory is None else str(directory.value), file_directory)
    given: dict[str, ConfigValue] = {}
    for key, name in (("dataset", "train_file"), ("eval_dataset", "validation_file")):
        named = yaml.pop(key)
        if named is None or not named.value:
            continue
        files = [
            _file(yaml, named, str(entry), root, given, is_dpo=is_dpo)
            for entry in _names(named.value)
        ]
        known = [file for file in files if file is not None]
        if known and len(known) == len(files):
            given[name] = replace(named, name=name, value=known)
    return given


def _switches(yaml: YamlSettings) -> dict[str, ConfigValue]:
    """Return the Trainer arguments that are equivalent to LLaMA-Factory's enabled switches."""
    given = {}
    for key, name, value in (
        ("neat_packing", "packing", True),
        ("mask_history", "loss_on", "last"),
    ):
        named = yaml.pop(key)
        if named is not None and named.value:
            given[name] = replace(named, value=value)
        elif named is not None:
            yaml.row(KeyOutcome.IGNORED, named, None, "is off")
    return given


def _names(value: Any) -> list[Any]:
    entries = value if isinstance(value, list) else str(value).split(",")
    return [str(entry).strip() for entry in entries if str(entry).strip()]


def _found(name: str, file_directory: Path) -> Path:
    path = expand_home(name)
    return path if path.is_dir() or not (file_directory / path).is_dir() else file_directory / path


def _file(
    yaml: YamlSettings,
    named: ConfigValue,
    name: str,
    root: Path,
    given: dict[str, ConfigValue],
    *,
    is_dpo: bool,
) -> str | None:
    """Return the file of the dataset `name`.

    The settings in its entry of dataset_info.json are added to `given`.
    """
    key = "data.preferences" if is_dpo else "data.examples"
    if not (root / REGISTER).exists():
        why = f"{root / REGISTER}, which names the dataset's file, does not exist; set {key}"
        yaml.row(KeyOutcome.IGNORED, replace(named, value=name), None, why)
        return None
    try:
        tree = parse_json(read_text(root / REGISTER, "register of datasets"), source=REGISTER).tree
    except BadRequest as error:
        yaml.findings.wrong.append(str(error))
        return None
    entry = tree.get(name)
    if not isinstance(entry, Mapping):
        yaml.findings.wrong.append(
            f"{named.label}: {root / REGISTER} has no dataset {name}; correct the name"
        )
        return None
    file = entry.get("file_name")
    if not isinstance(file, str):
        why = f"{name} is on a hub and is not downloaded; set {key}"
        yaml.row(KeyOutcome.IGNORED, replace(named, value=name), None, why)
        return None
    if bool(entry.get("ranking")) != is_dpo:
        kind = "pairs of answers" if entry.get("ranking") else "single answers"
        yaml.refuse(named, f"{name} has {kind}, but stage is {'' if is_dpo else 'not '}{_DPO}")
    elif is_dpo:
        _pairs(yaml, named, entry, given)
    else:
        _form(yaml, named, entry, given)
    return str(root / file)


def _pairs(
    yaml: YamlSettings, named: ConfigValue, entry: Mapping[str, Any], given: dict[str, ConfigValue]
) -> None:
    """Add the column names of preference data to the arguments `given`.

    `entry` is the dataset's entry in dataset_info.json.
    """
    columns = entry.get("columns")
    columns = columns if isinstance(columns, Mapping) else {}
    if columns.get("query") or columns.get("history"):
        yaml.refuse(
            named, "the dataset has its prompt in several columns; join them into one column"
        )
    talks = entry.get("formatting") == "sharegpt"
    prompt = ("messages", "conversations") if talks else ("prompt", "instruction")
    for name, column in (
        ("prompt_column", columns.get(*prompt)),
        ("chosen_column", columns.get("chosen", "chosen")),
        ("rejected_column", columns.get("rejected", "rejected")),
    ):
        if name in given and given[name].value != column:
            yaml.refuse(
                named,
                f"the datasets have different names for {name}, but a job reads "
                "one; rename the columns",
            )
        given[name] = replace(named, name=name, value=column)


def _form(
    yaml: YamlSettings, named: ConfigValue, entry: Mapping[str, Any], given: dict[str, ConfigValue]
) -> None:
    columns = entry.get("columns")
    columns = columns if isinstance(columns, Mapping) else {}
    form = "messages" if entry.get("formatting") == "sharegpt" else "alpaca"
    own = {
        key: columns[key] for key in _COLUMNS if key in columns and columns[key] != _ALPACA.get(key)
    }
    if form == "messages" and isinstance(columns.get("messages"), str):
        given["messages_column"] = replace(named, value=columns["messages"])
    elif form == "alpaca" and own:
        form = "columns"
        for key, name in _COLUMNS.items():
            if isinstance(columns.get(key), str):
                given[name] = replace(named, value=columns[key])
    before = given.get("data_format")
    if before is not None and before.value != form:
        yaml.refuse(
            named, f"has datasets of the forms {before.value} and {form}, but a job reads one form"
        )
    given["data_format"] = replace(named, value=form)

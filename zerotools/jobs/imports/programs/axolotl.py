"""Read axolotl's YAML.

Most of its keys are arguments of the Trainer under other names; its datasets are a list of tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.programs.run_settings import RunSettings, YamlSettings
from zerotools.jobs.imports.reading.check_deepspeed_keys import ConfigValue
from zerotools.jobs.imports.reading.import_report import KeyOutcome
from zerotools.jobs.launcher_keys.program_keys import (
    AXOLOTL_ADAPTERS,
    AXOLOTL_DEFAULTS,
    AXOLOTL_IGNORED,
    AXOLOTL_NAMES,
    AXOLOTL_PAIR_FIELDS,
    AXOLOTL_PAIRS,
    EXAMPLE_TYPES,
    NOT_PACKED,
)
from zerotools.jobs.text.config_document import Document

_OF_8_BITS = "llm_int8_"
_READ = ("path", "type", "data_files", "ds_type")


def read_axolotl(document: Document, file_directory: Path) -> RunSettings:
    """Return the training arguments in axolotl's YAML `document`.

    `file_directory` is the directory of the file. Raises BadRequest if the YAML is not axolotl's.
    """
    others = {"model_name_or_path": "if it is LLaMA-Factory's config, use --llamafactory"}
    others |= {"distributed_type": "if it is accelerate's config, use --accelerate"}
    yaml = YamlSettings(document, "axolotl", "base_model", others)
    adapter = yaml.remaining.get("adapter")
    adapters = yaml.choice("adapter", AXOLOTL_ADAPTERS, "")
    preference = yaml.pop("rl")
    pairs = preference is not None and bool(preference.value)
    found, examples = (_pairs(yaml), True) if pairs else _data(yaml)
    packed = yaml.remaining.get("load_in_4bit")
    if adapter is not None and adapter.value == "qlora" and not (packed and packed.value):
        yaml.refuse(adapter, "needs load_in_4bit: true, as axolotl itself does")
    linear = yaml.pop("lora_target_linear")
    if preference is not None and pairs and preference.value not in ("dpo", True):
        yaml.refuse(preference, "is not supported; supported: dpo")
    for name in ("reward_model", "relora_steps", "lora_model_dir", "peft_use_dora"):
        given = yaml.pop(name)
        if given is not None and given.value:
            yaml.refuse(given, "the engine torch does not support this yet")
    yaml.ignore({**AXOLOTL_IGNORED, **({"sample_packing": NOT_PACKED} if pairs else {})})
    named = yaml.pop("deepspeed")
    _unpack(yaml, document)
    given_all = {**yaml.renamed(AXOLOTL_NAMES), **found}
    if adapters and adapter is not None:
        given_all["use_lora"] = replace(adapter, name="use_lora", value=True)
        if linear is not None and linear.value:
            given_all["lora_target_modules"] = replace(linear, value="all")
    elif "lora_rank" in given_all:  # other programs would train adapters with it alone
        given_all["use_lora"] = ConfigValue(
            "use_lora", "(no adapter)", document.location(()), False
        )
    if linear is not None and not adapters:
        yaml.row(KeyOutcome.IGNORED, linear, None, "no adapters are trained")
    _floor(yaml, given_all)
    return RunSettings(
        document.source,
        given_all,
        file_directory,
        AXOLOTL_DEFAULTS,
        "axolotl",
        deepspeed=named if named is not None and named.value else None,
        launcher="axolotl",
        examples=examples,
        preferences=pairs,
        findings=yaml.findings,
    )


def _unpack(yaml: YamlSettings, document: Document) -> None:
    """Move the options in the table `bnb_config_kwargs` (bitsandbytes) to the top level."""
    table = yaml.pop("bnb_config_kwargs")
    if table is None or not table.value:
        return
    if not isinstance(table.value, Mapping):
        yaml.refuse(table, "must be a table")
        return
    for name, value in table.value.items():
        title, place = f"{table.title}.{name}", document.location((table.name, name))
        given = ConfigValue(name, title, place, value)
        if name in yaml.remaining:
            what = (
                f"{given.label} and {yaml.remaining[name].label} say the same; remove one of them"
            )
            yaml.findings.wrong.append(what)
        elif name.startswith(_OF_8_BITS):
            yaml.row(KeyOutcome.IGNORED, given, None, "has an effect only on weights of 8 bits")
        else:
            yaml.remaining[name] = given


def _floor(yaml: YamlSettings, given: dict[str, ConfigValue]) -> None:
    ratio = given.pop("cosine_min_lr_ratio", None)
    if ratio is None or not ratio.value:
        return
    options = {"min_lr_rate": ratio.value}
    kind = given.get("lr_scheduler_type", replace(ratio, value="cosine"))
    given["lr_scheduler_type"] = replace(kind, value="cosine_with_min_lr")
    given["lr_scheduler_kwargs"] = replace(ratio, value=options)


def _data(yaml: YamlSettings) -> tuple[dict[str, ConfigValue], bool]:
    """Return the files of `datasets` or `pretraining_dataset` as Trainer arguments, and the kind of
    data: True for examples, False for plain text.
    """
    given: dict[str, ConfigValue] = {}
    text = yaml.pop("pretraining_dataset")
    listed = yaml.pop("datasets") if text is None else text
    if listed is None:
        return given, True
    entries = listed.value if isinstance(listed.value, list) else [listed.value]
    tables = [entry if isinstance(entry, Mapping) else {"path": entry} for entry in entries]
    kinds = {"" if text is not None else _kind(yaml, listed, table) for table in tables}
    if len(kinds) > 1:
        names = ", ".join(format_value(kind or "text") for kind in sorted(kinds))
        yaml.findings.unsupported.append(
            f"{listed.label}: has datasets of the forms {names}, but a job reads one form; remove "
            "the datasets of the other forms"
        )
    found = [_files(yaml, listed, table) for table in tables]
    files = [file for each in found for file in each] if all(found) else []
    for table in tables:
        _report_rest(yaml, listed, table)
    if files:
        given["train_file"] = replace(listed, name="train_file", value=files)
    kind = kinds.pop() if kinds else ""
    if kind and files:
        given["data_format"] = replace(listed, value=kind)
    return given, bool(kind)


def _pairs(yaml: YamlSettings) -> dict[str, ConfigValue]:
    """Return the preference data in `datasets` as Trainer arguments: the files, and the names
    of their columns.
    """
    listed = yaml.pop("datasets")
    if listed is None:
        return {}
    entries = listed.value if isinstance(listed.value, list) else [listed.value]
    tables = [entry if isinstance(entry, Mapping) else {"path": entry} for entry in entries]
    columns = [_columns(yaml, listed, table) for table in tables]
    if any(each != columns[0] for each in columns):
        yaml.refuse(
            listed,
            "the datasets have different column names, but a job reads one set of "
            "names; rename them",
        )
    found = [_files(yaml, listed, table) for table in tables]
    for table in tables:
        _report_rest(yaml, listed, table, (*_READ, *AXOLOTL_PAIR_FIELDS))
    given = {name: replace(listed, name=name, value=each) for name, each in columns[0].items()}
    if found and all(found):
        files = [file for each in found for file in each]
        given["train_file"] = replace(listed, name="train_file", value=files)
    return given


def _columns(
    yaml: YamlSettings, listed: ConfigValue, table: Mapping[str, Any]
) -> Mapping[str, str]:
    kind = table.get("type", "chat_template.default")
    own = {**kind, "type": None} if isinstance(kind, Mapping) else table
    name = "prompt_pairs" if isinstance(kind, Mapping) else str(kind).rpartition(".")[2]
    if name not in AXOLOTL_PAIRS or own.get("prompt_format") or own.get("chosen_format"):
        known = ", ".join(AXOLOTL_PAIRS)
        yaml.findings.unsupported.append(
            f"{listed.label}: type = {format_value(kind) if isinstance(kind, str) else 'a table'}: "
            "is "
            f"not supported; the supported types end with {known}; set data.prompt_column, "
            "data.chosen_column and data.rejected_column"
        )
        return {}
    fields = AXOLOTL_PAIR_FIELDS.items()
    named = {column: str(own[field]) for field, column in fields if own.get(field)}
    return {**AXOLOTL_PAIRS[name], **named}


def _kind(yaml: YamlSettings, listed: ConfigValue, table: Mapping[str, Any]) -> str:
    kind = table.get("type", "alpaca")
    name = str(kind).split(".")[0].split(":")[0]
    if isinstance(kind, str) and name in EXAMPLE_TYPES:
        return EXAMPLE_TYPES[name]
    yaml.findings.unsupported.append(
        f"{listed.label}: type = {format_value(kind) if isinstance(kind, str) else 'a table'}: is "
        "not "
        f"supported; supported types: {', '.join(EXAMPLE_TYPES)}; set data.format and its "
        "columns"
    )
    return ""


def _report_rest(
    yaml: YamlSettings,
    listed: ConfigValue,
    table: Mapping[str, Any],
    read: tuple[str, ...] = _READ,
) -> None:
    for name, value in table.items():
        if name not in read and (name, value) != ("split", "train"):
            title = f"{listed.title}.{name}"
            why = "is not imported; set its values in [data]"
            yaml.row(KeyOutcome.UNKNOWN, replace(listed, title=title, value=value), None, why)


def _files(yaml: YamlSettings, listed: ConfigValue, table: Mapping[str, Any]) -> list[str]:
    named = table.get("data_files") or table.get("path")
    names = named if isinstance(named, list) else [named]
    files = [str(name) for name in names if name]
    local = [name for name in files if Path(name).suffix or Path(name).exists()]
    for name in files:
        if name not in local:
            why = "zerotools downloads no data from a hub; name files in data.examples or data.text"
            yaml.row(KeyOutcome.IGNORED, replace(listed, value=name), None, why)
    return local if len(local) == len(files) else []

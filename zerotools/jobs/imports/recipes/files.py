"""The paths in the arguments of a program: model, data, output."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from zerotools.jobs.imports.reading.report import KeyOutcome
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.imports.recipes.argument_values import ArgumentReading
from zerotools.jobs.launcher_keys.key_kinds import ValueKind

_OF_EXAMPLES = ("prompt_column", "response_column", "history_column", "max_source_length")
_BEGIN = 1 << 16
_ON_HUB = "no such directory here: a model is not downloaded; give the directory that has it"


def read_files(reading: ArgumentReading) -> None:
    """Map model, tokenizer, data, output directory and the checkpoint to resume from."""
    _read_model(reading)
    examples = reading.recipe.examples
    if any(reading.config.peek(name) is not None for name in _OF_EXAMPLES):
        examples = True
    _read_data(reading, examples)
    held_out = reading.config.take("validation_file")
    if held_out is not None:
        _map_paths(reading, held_out, "eval.files")
    output = reading.typed("output_dir", ValueKind.TEXT)
    if output is not None:
        reading.path(output, "output_dir", new=True)
    _read_resume(reading)
    _read_fraction(reading)


def _read_model(reading: ArgumentReading) -> None:
    given = reading.typed("model_name_or_path", ValueKind.TEXT)
    if given is not None:
        found = reading.recipe.found(str(given.value))
        if found.is_dir():
            reading.path(given, "model.path")
        else:
            reading.config.map(given, "model.path", str(given.value), _ON_HUB)
    config = reading.typed("config_name", ValueKind.TEXT)
    if config is not None and given is None:
        found = reading.recipe.found(str(config.value))
        inside = found / "config.json" if found.is_dir() else found
        reading.path(replace(config, value=str(inside)), "model.config")
    elif config is not None:
        reading.config.row(KeyOutcome.IGNORED, config, None, "the model's own config is read")
    tokenizer = reading.typed("tokenizer_name", ValueKind.TEXT)
    if tokenizer is not None:
        reading.path(tokenizer, "data.tokenizer")


def _read_data(reading: ArgumentReading, examples: bool | None) -> None:
    given = reading.config.take("train_file")
    if given is not None:
        if examples is None:
            examples = _holds_examples(reading, given)
        _map_paths(reading, given, "data.examples" if examples else "data.text")
    for name in ("dataset_name", "dataset_config_name"):
        hub = reading.config.take(name)
        if hub is not None:
            why = "data of a hub is not downloaded; name files in data.text or data.examples"
            reading.config.row(KeyOutcome.IGNORED, hub, None, why)


def _holds_examples(reading: ArgumentReading, given: ConfigValue) -> bool:
    """Whether the first file holds records without a text: run_clm.py trains on the column
    `text`, programs of conversations and instructions on others."""
    name = str(given.value[0] if isinstance(given.value, list) else given.value)
    kind = Path(name).suffix.lower()
    if kind not in (".json", ".jsonl", ".csv", ".tsv", ".parquet"):
        return False
    if kind == ".parquet" or given.title.endswith("data_path"):
        return given.title.endswith("data_path")
    try:
        with reading.recipe.found(name).open("rb") as stream:
            begin = stream.read(_BEGIN)
    except OSError:
        return True
    if kind in (".csv", ".tsv"):
        return b"text" not in re.split(rb'[,\t"\r]+', begin.partition(b"\n")[0])
    return re.search(rb'"text"\s*:', begin) is None


def _map_paths(reading: ArgumentReading, given: ConfigValue, key: str) -> None:
    names = given.value if isinstance(given.value, list) else [given.value]
    if not names or not all(isinstance(name, str) and name for name in names):
        what = f"{given.said}: must be the path of a file, or several"
        reading.config.findings.wrong.append(what)
        return
    found = [reading.recipe.found(name) for name in names]
    missing = [str(path) for path in found if not path.exists() and "*" not in str(path)]
    why = f"{missing[0]} is not there now" if missing else ""
    paths = [str(Path.cwd() / path) for path in found]
    reading.config.map(replace(given, value=paths), key, paths, why)


def _read_resume(reading: ArgumentReading) -> None:
    given = reading.config.take("resume_from_checkpoint")
    if given is None:
        return
    if isinstance(given.value, str) and given.value.lower() not in ("true", "false", "", "none"):
        reading.path(given, "resume_from")
    else:
        why = "zerotools retry continues a job from its last checkpoint"
        reading.config.row(KeyOutcome.IGNORED, given, None, why)


def _read_fraction(reading: ArgumentReading) -> None:
    """The part of the data that is held out; a number of examples is none."""
    given = reading.typed("eval_fraction", ValueKind.NUMBER)
    if given is None:
        return
    if 0 < given.value < 1:
        reading.config.map(given, "eval.fraction", given.value)
    elif given.value:
        why = "a number of examples; set eval.fraction or eval.files"
        reading.config.row(KeyOutcome.IGNORED, given, None, why)
    else:
        reading.config.row(KeyOutcome.IGNORED, given, None, "nothing is held out")

"""Read the paths in a program's arguments: model, data, output directory, checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.io.huggingface.config_json import config_of_model
from zerotools.jobs.imports.programs.typed_arguments import ArgumentReading
from zerotools.jobs.imports.reading.check_deepspeed_keys import ConfigValue
from zerotools.jobs.imports.reading.import_report import KeyOutcome
from zerotools.jobs.launcher_keys.config_key import ValueKind

_OF_EXAMPLES = ("prompt_column", "response_column", "history_column", "max_source_length")
_BEGIN = 1 << 16
_NUMBERED = ("optimizer.pt", "optimizer.bin")
"""Names of the files in which the Trainer and accelerate save optimizer state.

In these files, parameters are numbered in the order of the model.
"""
_DATA = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".txt", ".arrow", ".gz", ".zst")


_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ALONE = re.compile(r"[A-Za-z0-9][\w.-]*")
OWN_CODE = re.compile(
    r"(?i)(?:^|/)(?:chatglm[23]?-6b|qwen-(?:1_8b|7b|14b|72b)|baichuan2?-|internlm2?-|moss-|yi-vl-)"
)
"""Pattern for names of models that need their own Python code, because transformers does not
contain them.
"""
_DIRECTORIES = frozenset(
    (
        *("checkpoint", "checkpoints", "ckpt", "ckpts", "data", "dataset", "datasets"),
        *("model", "models", "out", "output", "outputs", "pretrained", "result", "results"),
        *("train", "weights"),
    )
)
"""Names of local directories. A path that begins with one of them is not a name on a hub."""
_WITH_MODELSCOPE = "ms-swift"


def read_files(reading: ArgumentReading) -> None:
    """Translate the paths of model, tokenizer, data, output directory, and checkpoint to resume
    from to keys of the job file.
    """
    _read_model(reading)
    examples = reading.run.examples
    if any(reading.config.peek(name) is not None for name in _OF_EXAMPLES):
        examples = True
    _read_data(reading, examples)
    _claim_tokenizer(reading)
    held_out = reading.config.pop("validation_file")
    if held_out is not None:
        _map_paths(reading, held_out, "eval.files")
    output = reading.typed("output_dir", ValueKind.TEXT)
    if output is not None:
        reading.path(output, "output_dir", new=True)
    _read_resume(reading)
    _read_fraction(reading)


def _claim_tokenizer(reading: ArgumentReading) -> None:
    """For text data, set the job's tokenizer to that of the model.

    Without this, the job's default would be one token per byte.
    """
    claims = reading.config.claims
    model = claims.of("model.path")
    has_other = any(claims.of(key) for key in ("data.examples", "data.preferences"))
    is_text = claims.of("data.text") is not None or reading.run.data_key == "data.text"
    if model is not None and is_text and not has_other:
        claims.add("data.tokenizer", model.value, f"{model.place}, its tokenizer", weak=True)


def _read_model(reading: ArgumentReading) -> None:
    given = reading.typed("model_name_or_path", ValueKind.TEXT)
    if given is not None:
        _map_model(reading, given)
    config = reading.typed("config_name", ValueKind.TEXT)
    if config is not None and given is None:
        found = reading.run.found(str(config.value))
        inside = found / "config.json" if found.is_dir() else found
        reading.path(replace(config, value=str(inside)), "model.config")
    elif config is not None:
        reading.config.row(
            KeyOutcome.IGNORED, config, None, "the config in the model directory is read instead"
        )
    tokenizer = reading.typed("tokenizer_name", ValueKind.TEXT)
    if tokenizer is not None:
        reading.path(tokenizer, "data.tokenizer")


def _map_model(reading: ArgumentReading, given: ConfigValue) -> None:
    """Set the job's model to the directory that the argument `given` names, or to a copy in the
    local cache of the hub. If neither exists, the report's next steps get the command for the
    download."""
    name = str(given.value)
    found = reading.run.found(name)
    fetched = None if found.exists() else config_of_model(name)
    if found.is_dir():
        reading.path(given, "model.path")
        has_own_code = _has_own_code(found)
    elif fetched is not None:
        directory = str(fetched.parent)
        why = "found in the local cache of the Hub"
        reading.config.map(replace(given, value=directory), "model.path", directory, why)
        has_own_code = _has_own_code(fetched.parent)
    else:
        directory = str(Path.cwd() / found)
        reading.config.map(replace(given, value=directory), "model.path", directory)
        steps = reading.config.findings.steps
        if is_on_hub(name, reading.run.found):
            steps.append(fetch_command(name, kind="model", who=reading.run.who))
            steps.append(f"if {name} is already on this machine, set model.path to its directory")
        else:
            steps.append(f"{name} was not found; set model.path to the directory of the model")
        has_own_code = OWN_CODE.search(name) is not None
    if has_own_code:
        reading.config.findings.differences.append(
            f"model: zerotools does not run the Python code that {name} contains; if submit "
            "refuses the job, use --as script"
        )


def _has_own_code(directory: Path) -> bool:
    try:
        return "auto_map" in json.loads((directory / "config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError, TypeError):
        return False


def _read_data(reading: ArgumentReading, examples: bool | None) -> None:
    given = reading.config.pop("train_file")
    if given is not None:
        if examples is None:
            examples = _contains_examples(reading, given)
        key = replace(reading.run, examples=examples).data_key
        names = given.value if isinstance(given.value, list) else [given.value]
        if names and all(isinstance(n, str) and _is_hub_data(reading, n) for n in names):
            _name_hub_data(reading, given, names, key)
        else:
            _map_paths(reading, given, key)
    hub = reading.config.pop("dataset_name")
    if hub is not None:
        names = hub.value if isinstance(hub.value, list) else str(hub.value).split(",")
        is_file = bool(names) and reading.run.found(str(names[0])).is_file()
        if is_file and reading.run.who == "TRL" and not reading.run.preferences:
            examples = _contains_examples(reading, replace(hub, value=names))
        _name_hub_data(reading, hub, names, replace(reading.run, examples=examples).data_key)
    held_out = reading.config.pop("eval_dataset_name")
    if held_out is not None:
        names = held_out.value if isinstance(held_out.value, list) else [held_out.value]
        _name_hub_data(reading, held_out, names, "eval.files")
    part = reading.config.pop("dataset_config_name")
    if part is not None:
        why = "names a part of a dataset on the Hub; name the files of this part instead"
        reading.config.row(KeyOutcome.IGNORED, part, None, why)


def _name_hub_data(
    reading: ArgumentReading, given: ConfigValue, names: Sequence[Any], key: str
) -> None:
    """Set the data `key` of the job if all of `names` are local files.

    Otherwise the report's next steps get the commands that download the missing data.
    """
    plain = [str(name).split("#")[0].strip() for name in names]
    found = [reading.run.found(name) for name in plain]
    if all(path.exists() for path in found):
        _map_paths(reading, replace(given, value=[str(path) for path in found]), key)
        return
    why = f"the job downloads no data from a hub; download the data and set {key}"
    reading.config.row(KeyOutcome.IGNORED, given, None, why)
    steps = reading.config.findings.steps
    for name, path in zip(plain, found, strict=True):
        if not path.exists():
            steps.append(fetch_command(name, kind="dataset", who=reading.run.who))
    listed = ", ".join(f'"{name}/**/*.parquet"' for name in plain)
    steps.append(f"set {key} to the files of the data, such as [{listed}]")


def _is_hub_data(reading: ArgumentReading, name: str) -> bool:
    return not name.lower().endswith(_DATA) and is_on_hub(name, reading.run.found)


def _contains_examples(reading: ArgumentReading, given: ConfigValue) -> bool:
    """Guess whether the first data file contains examples, and not text.

    A JSON, CSV or TSV file contains examples if it has no column `text`, on which run_clm.py
    trains.
    """
    name = str(given.value[0] if isinstance(given.value, list) else given.value)
    kind = Path(name).suffix.lower()
    if not kind and given.title.endswith("data_path") and not reading.run.found(name).exists():
        return True  # FastChat and programs derived from it
    if kind not in (".json", ".jsonl", ".csv", ".tsv", ".parquet"):
        return False
    if kind == ".parquet" or given.title.endswith("data_path"):
        return given.title.endswith("data_path")
    try:
        with reading.run.found(name).open("rb") as stream:
            begin = stream.read(_BEGIN)
    except OSError:
        return True
    if kind in (".csv", ".tsv"):
        return b"text" not in re.split(rb'[,\t"\r]+', begin.partition(b"\n")[0])
    try:
        first = json.loads(begin.partition(b"\n")[0])
    except (ValueError, RecursionError):  # an array of several lines, or a line that was cut
        first = None
    if isinstance(first, dict):
        return "text" not in first
    return re.search(rb'"text"\s*:', begin) is None


def _map_paths(reading: ArgumentReading, given: ConfigValue, key: str) -> None:
    names = given.value if isinstance(given.value, list) else [given.value]
    if not names or not all(isinstance(name, str) and name for name in names):
        what = f"{given.label}: must be one path of a file, or a list of paths"
        reading.config.findings.wrong.append(what)
        return
    found = [reading.run.found(name) for name in names]
    missing = [str(path) for path in found if not path.exists() and "*" not in str(path)]
    for name in missing:
        reading.config.findings.steps.append(
            f"{name} was not found; copy the file there, or set {key}"
        )
    paths = [str(Path.cwd() / path) for path in found]
    reading.config.map(replace(given, value=paths), key, paths)


def _read_resume(reading: ArgumentReading) -> None:
    given = reading.config.pop("resume_from_checkpoint")
    if given is None:
        return
    if isinstance(given.value, str) and given.value.lower() not in ("true", "false", "", "none"):
        reading.path(given, "resume_from")
        checkpoint = reading.run.found(given.value)
        if any((checkpoint / name).is_file() for name in _NUMBERED):
            reading.config.claims.add("resume_order", "model", given.label)
    else:
        why = "zerotools retry continues a job from its last checkpoint"
        reading.config.row(KeyOutcome.IGNORED, given, None, why)


def _read_fraction(reading: ArgumentReading) -> None:
    """Translate the fraction of the data that is held out for evaluation. If the value is a number
    of examples, it is ignored with a remark.
    """
    given = reading.typed("eval_fraction", ValueKind.NUMBER)
    if given is None:
        return
    if 0 < given.value < 1:
        reading.config.map(given, "eval.fraction", given.value)
    elif given.value:
        why = "is a number of examples, not a fraction; set eval.fraction or eval.files"
        reading.config.row(KeyOutcome.IGNORED, given, None, why)
    else:
        reading.config.row(KeyOutcome.IGNORED, given, None, "no data is held out")


def is_hub_name(name: str) -> bool:
    """Return whether `name` has the form OWNER/NAME, as names on a model hub have."""
    owner = name.partition("/")[0]
    return _NAME.fullmatch(name) is not None and owner.lower() not in _DIRECTORIES


def is_on_hub(name: str, found: Callable[[str], Path]) -> bool:
    """Return whether `name` is the name of a model or data set on a hub: the name has the form
    OWNER/NAME, and no local directory OWNER exists.

    `found` returns the local path of a name.
    """
    owner = name.partition("/")[0]
    return is_hub_name(name) and not (found(name).exists() or found(owner).exists())


def fetch_command(name: str, *, kind: str, who: str) -> str:
    """Return the command that downloads `name` into a local directory with the same name, or advice
    if `name` is not on a hub.

    `kind` is `model` or `dataset`; `who` is the program that uses the download.
    """
    if who == _WITH_MODELSCOPE:
        return f"modelscope download --{kind} {name} --local_dir {name}"
    if _ALONE.fullmatch(name) is None and not is_hub_name(name):
        return f"{name} was not found; copy it there"
    option = " --repo-type dataset" if kind == "dataset" else ""
    return f"hf download{option} {name} --local-dir {name}"

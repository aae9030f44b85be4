"""The checks of a job's model directory and tokenizer before the job is accepted.

Only configs and the headers of the weight files are checked here. The ranks later check digests and
values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.safetensors.header import Header, read_header
from zerotools.io.huggingface.model_index import read_index
from zerotools.jobs.jobfile_tables.data import BYTES, tokenizer_of
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.preflight.checkpoint_check import quantised_refusal

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
)
INDEX = "model.safetensors.index.json"
WEIGHTS = ("model.safetensors", INDEX)
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")
_FETCH = (
    "; models are not downloaded: download it first, such as by hf download NAME --local-dir "
    "DIRECTORY"
)
CONFIG = "config.json"
ADAPTER = "adapter_config.json"


def check_tokenizer(spec: JobSpec) -> Iterator[str]:
    """Yield the errors of the tokenizer's directory."""
    named = tokenizer_of(spec.data, spec.model.path)
    if named is None or named == BYTES:
        return
    directory = Path(named)
    key = "data.tokenizer" if spec.data.tokenizer is not None else "model.path"
    if not directory.exists():
        if key == "data.tokenizer":
            yield f"{key} = {named}: no such file or directory"
    elif not directory.is_dir():
        yield f"{key} = {named}: a tokenizer is a directory with a tokenizer.json, this is a file"
    elif any((directory / name).is_file() for name in TOKENIZER_FILES):
        yield from _check_template(spec, directory)
    else:
        yield (
            f"{key} = {named}: contains no tokenizer (no tokenizer.json, and none of the "
            "older files); name one with data.tokenizer"
        )


def _check_template(spec: JobSpec, directory: Path) -> Iterator[str]:
    if spec.data.chat_template != "on" or (directory / "chat_template.jinja").is_file():
        return
    if (directory / "chat_templates").is_dir():
        return
    with_one = ("tokenizer_config.json", "chat_template.json", "processor_config.json")
    if not any("chat_template" in _tree(directory / name) for name in with_one):
        yield (
            f'data.chat_template = "on": the tokenizer in {directory} has no chat template; '
            "add its chat_template.jinja there, or remove the key"
        )


def _tree(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file `path`; an empty dict without a file or an object."""
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def check_model(spec: JobSpec) -> Iterator[str]:
    """Yield the errors of the model's config or directory."""
    model = spec.model
    if isinstance(model.config, str) and not Path(model.config).is_file():
        yield f"model.config = {model.config}: no such file"
    elif isinstance(model.config, str):
        yield from _check_config(Path(model.config))
    if model.path is None:
        return
    directory = Path(model.path)
    if not directory.is_dir():
        yield f"model.path = {directory}: no such directory{_FETCH}"
    elif (directory / ADAPTER).is_file() and not any(
        (directory / name).is_file() for name in WEIGHTS
    ):
        yield (
            f"model.path = {directory}: holds the adapters of a model ({ADAPTER}), not the model: "
            "merge them into it first (merge_and_unload and save_pretrained of peft)"
        )
    elif not (directory / CONFIG).is_file():
        yield f"model.path = {directory}: contains no config.json"
    else:
        yield from _check_config(directory / CONFIG)
        if spec.resume_from is None or spec.lora.packs_frozen:
            yield from _check_weights(directory)


def _check_config(path: Path) -> Iterator[str]:
    if not isinstance(_tree(path).get("model_type"), str):
        yield f'{path}: is not a JSON object with a model_type, such as "llama"'


def _check_weights(directory: Path) -> Iterator[str]:
    if any((directory / name).is_file() for name in WEIGHTS):
        yield from _damage(directory)
    elif any(next(directory.glob(pattern), None) for pattern in _OTHER_WEIGHTS):
        other = directory.with_name(f"{directory.name}-safetensors")
        yield (
            f"model.path = {directory}: its weights are not safetensors: convert them with "
            f"zerotools convert {directory} {other} --to safetensors"
        )
    else:
        yield (
            f"model.path = {directory}: contains no weights: to start from random ones, set "
            f'model.config = "{directory / CONFIG}" instead'
        )


def _damage(directory: Path) -> Iterator[str]:
    """Yield the errors in the weight files' headers: missing, truncated or quantised files."""
    index = directory / INDEX
    try:
        held = read_index(index) if index.is_file() else {}
        headers = {
            name: _header(directory / name) for name in sorted(set(held.values())) or WEIGHTS[:1]
        }
    except (BadFile, Unsupported) as error:
        yield f"model.path: {error}"
        return
    lost = [name for name, file in held.items() if name not in headers[file].entries]
    if lost:
        where = directory / held[lost[0]]
        yield f"model.path: {where} lacks {lost[0]}, which {INDEX} lists for it"
    tensors = (
        (directory / file, name, entry.dtype)
        for file, header in headers.items()
        for name, entry in header.entries.items()
    )
    sentence = quantised_refusal(tensors, _tree(directory / CONFIG))
    if sentence is not None:
        yield sentence


def _header(path: Path) -> Header:
    try:
        return read_header(path)
    except FileNotFoundError:
        raise BadFile(
            f"{path} is missing, but {INDEX} lists it; copy or download it again"
        ) from None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None

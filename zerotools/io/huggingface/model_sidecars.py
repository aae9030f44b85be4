"""Small files next to the weights of a model, and optimizer files of the Trainer and accelerate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from zerotools.core.errors import BadRequest
from zerotools.io.files.regular_files import refused_link_target
from zerotools.io.huggingface.model_code import CONFIGS, SUFFIX, code_files

_Found = TypeVar("_Found")
CONFIG = "config.json"
_NAME = (
    r"config\.json|generation_config\.json|tokenizer[^/]*|vocab[.-][^/]*|merges\.txt"
    r"|special_tokens_map\.json|added_tokens\.json|chat_template\.[^/]*|spiece\.model"
    r"|sentencepiece[^/]*|[^/]*\.tiktoken|(video_)?preprocessor_config\.json|processor_config\.json"
    # Of single families: ChatGLM, DeBERTa, Marian, Mistral, PhoBERT, Whisper, ...
    r"|audio_tokenizer_config\.json|bpe\.codes|byte_maps\.json|dict\.txt|emoji\.json"
    r"|(entity|target)_vocab\.json|ice_text\.model|normalizer\.json|prophetnet\.tokenizer"
    r"|(source|target)\.spm|spm(_char)?\.model|tekken\.json|tiktoken\.model"
    r"|word_(pronunciation|shape)\.json"
    # Of sentence-transformers: how the model's outputs become one vector.
    r"|modules\.json|sentence_\w+_config\.json|config_sentence_transformers\.json"
)
# Directories of a model: more chat templates, and modules of sentence-transformers.
_TEMPLATES = "additional_chat_templates"
_DIRECTORY = rf"{_TEMPLATES}|\d+_\w+"
_IN_DIRECTORY = r"[\w-]+\.jinja|config\.json"
# Names of a part of a checkpoint, or of one checkpoint of a run. Files of the model may be one
# directory above, as after trainer.save_model(), after accelerate's save_state, and in jobs.
_PART = (
    r"dcp|_?actor|model|sharded|checkpoints?(_\w+)?|pytorch_model_fsdp_\d+|latest|best"
    r"|(best_)?(checkpoint|step|global_step|epoch|iter)[-_]?\d+(_universal)?"
)
# verl; NeMo, torch's HuggingFaceStorageWriter.
_INSIDE = ("huggingface", ".hf_metadata")
# OpenRLHF: next to a checkpoint, or next to _actor, the model of the same step.
_BESIDE = "_hf"
_MAX_LEVELS = 4


def model_sidecars(directory: Path) -> dict[str, Path]:
    """Return file name -> path of the config and tokenizer files in `directory`, and of the code
    that they name. A name may begin with the name of a subdirectory.
    """
    there = {path.name: path for path in sorted(directory.iterdir())}
    found = {
        name: path for name, path in there.items() if re.fullmatch(_NAME, name) and path.is_file()
    }
    if any(re.fullmatch(_DIRECTORY, name) for name in there):
        found |= _below(there, is_of_sentences="modules.json" in found)
    if any(name.endswith(SUFFIX) for name in there):
        found |= code_files([found[name] for name in CONFIGS if name in found], there)
    return found


def _below(there: Mapping[str, Path], *, is_of_sentences: bool) -> dict[str, Path]:
    """Return the sidecar files in subdirectories. A link to another place is left out."""
    found = {}
    for name, directory in there.items():
        is_usual = re.fullmatch(_DIRECTORY, name) and (name == _TEMPLATES or is_of_sentences)
        if not is_usual or directory.is_symlink() or not directory.is_dir():
            continue
        for path in sorted(directory.iterdir()):
            is_own = path.is_file() and refused_link_target(path, chosen_name=True) is None
            if is_own and re.fullmatch(_IN_DIRECTORY, path.name):
                found[f"{name}/{path.name}"] = path
    return found


def find_model_sidecars(path: Path) -> dict[str, Path]:
    """Return the config and tokenizer files of the model with a checkpoint at `path`.

    They are searched in this order: in the directory (`path`, or the directory of the file `path`),
    in its usual subdirectories for such files, and in the directories above it that belong to the
    run. For each kind of file (`sidecar_kind`), the nearest directory that has it is used.
    """
    found: dict[str, Path] = {}
    for there in _search_upwards(path, model_sidecars):
        found |= of_other_kinds(there, found)
    return found


def find_config(path: Path) -> Path | None:
    """Return the path of the config.json of the checkpoint at `path`, as `find_model_sidecars`
    finds it, or None if there is no such file."""
    return find_nearest(path, CONFIG)


def find_nearest(path: Path, name: str) -> Path | None:
    """Return the nearest file with this name in the directories that `find_model_sidecars`
    searches."""

    def file_in(directory: Path) -> Path | None:
        return place if (place := directory / name).is_file() else None

    return next((found for found in _search_upwards(path, file_in) if found is not None), None)


def _search_upwards(path: Path, find: Callable[[Path], _Found]) -> Iterator[_Found]:
    """Yield the results of `find` for each directory that may contain files of the model at `path`,
    the nearest first.

    A directory above the checkpoint is skipped if it cannot be accessed.
    """
    root = path if path.is_dir() else path.parent
    root = place = root.absolute()
    for _ in range(_MAX_LEVELS):
        for directory in (place, *(place / name for name in (*_INSIDE, root.name + _BESIDE))):
            try:
                if directory.is_dir():
                    yield find(directory)
            except (PermissionError, BadRequest):
                if place == root:
                    raise
        if not re.fullmatch(_PART, place.name):
            break
        place = place.parent


def of_other_kinds(more: Mapping[str, Path], known: Iterable[str]) -> dict[str, Path]:
    """Return the files of `more` with a kind (`sidecar_kind`) that no file in `known` has."""
    kinds = {sidecar_kind(name) for name in known}
    return {name: path for name, path in more.items() if sidecar_kind(name) not in kinds}


def sidecar_kind(name: str) -> str:
    """Return the kind of a sidecar file: `config`, `generation`, `processor`, or `tokenizer` for
    all others.

    Files of one kind must all be from the same model.
    """
    if name == "generation_config.json":
        return "generation"
    for kind, pattern in _KINDS.items():
        if pattern.match(name):
            return kind
    return "tokenizer"


_KINDS = {
    "processor": re.compile(
        r".*processor_config|audio_tokenizer_config|.*process\w*\.py|feature_extract\w*\.py"
    ),
    "config": re.compile(
        r"config\.json|(?!tokeniz)\w+\.py|modules\.json|sentence_\w+_config|config_sentence|\d+_"
    ),
}


_OPTIMIZER = re.compile(r"optimizer(_\d+)?\.(pt|bin)")


def optimizer_files(directory: Path) -> frozenset[str]:
    """Return the names of the files in `directory` that contain the state of an optimizer."""
    names = (entry.name for entry in directory.iterdir() if entry.is_file())
    return frozenset(name for name in names if _OPTIMIZER.fullmatch(name))

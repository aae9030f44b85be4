"""Small files next to the weights of a model, and optimizer files of the Trainer and accelerate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from zerotools.core.errors import BadRequest

_Found = TypeVar("_Found")
CONFIG = "config.json"
_NAME = re.compile(
    r"config\.json|generation_config\.json|tokenizer[^/]*|vocab\.[^/]*|merges\.txt"
    r"|special_tokens_map\.json|added_tokens\.json|chat_template\.[^/]*|spiece\.model"
    r"|sentencepiece[^/]*|[^/]*\.tiktoken|(video_)?preprocessor_config\.json|processor_config\.json"
)
# A part of a checkpoint, or one of a run's: what belongs to the model may lie one directory up, as
# after trainer.save_model(), accelerate's save_state and in jobs.
_PART = re.compile(
    r"dcp|_?actor|model|sharded|checkpoints?(_\w+)?|pytorch_model_fsdp_\d+|latest|best"
    r"|(best_)?(checkpoint|step|global_step|epoch|iter)[-_]?\d+(_universal)?"
)
# verl; NeMo, torch's HuggingFaceStorageWriter.
_INSIDE = ("huggingface", ".hf_metadata")
# OpenRLHF: next to a checkpoint, or next to _actor, the model of the same step.
_BESIDE = "_hf"
_MAX_LEVELS = 4


def model_sidecars(directory: Path) -> dict[str, Path]:
    """Return the config and tokenizer files in `directory`, by name."""
    return {
        path.name: path
        for path in sorted(directory.iterdir())
        if _NAME.fullmatch(path.name) and path.is_file()
    }


def find_model_sidecars(path: Path) -> dict[str, Path]:
    """Return the config and tokenizer files of a model with a checkpoint at `path`. They are next
    to it if it is a file, in it if it is a directory, else in a directory of it made for them, else
    in the run's directory that it lies in. Of each kind the nearest are taken."""
    found: dict[str, Path] = {}
    for there in _around(path, model_sidecars):
        found |= of_other_kinds(there, found)
    return found


def find_config(path: Path) -> Path | None:
    """Return the config.json of the checkpoint at `path`: next to a file, else in the directory or
    one of it made for the config, else above it in the run; or None."""
    return find_beside(path, CONFIG)


def find_beside(path: Path, name: str) -> Path | None:
    """Return the nearest file of this name, where `find_model_sidecars` looks."""

    def look(directory: Path) -> Path | None:
        return place if (place := directory / name).is_file() else None

    return next((found for found in _around(path, look) if found is not None), None)


def _around(path: Path, look: Callable[[Path], _Found]) -> Iterator[_Found]:
    """Yield what `look` finds in each directory that may hold files of the model at `path`, the
    nearest first. A directory above it without access is skipped."""
    root = path if path.is_dir() else path.parent
    root = place = root.absolute()
    for _ in range(_MAX_LEVELS):
        for directory in (place, *(place / name for name in (*_INSIDE, root.name + _BESIDE))):
            try:
                if directory.is_dir():
                    yield look(directory)
            except (PermissionError, BadRequest):
                if place == root:
                    raise
        if not _PART.fullmatch(place.name):
            break
        place = place.parent


def of_other_kinds(more: Mapping[str, Path], known: Iterable[str]) -> dict[str, Path]:
    """Return the files of `more` with kinds that none of `known` has."""
    kinds = {sidecar_kind(name) for name in known}
    return {name: path for name, path in more.items() if sidecar_kind(name) not in kinds}


def sidecar_kind(name: str) -> str:
    """Return the kind of a sidecar file, so that files of two models are never mixed within one
    kind: `config`, `generation`, `processor`, or `tokenizer` for all others."""
    if name == CONFIG:
        return "config"
    if name == "generation_config.json":
        return "generation"
    return "processor" if "processor_config" in name else "tokenizer"


_OPTIMIZER = re.compile(r"optimizer(_\d+)?\.(pt|bin)")


def optimizer_files(directory: Path) -> frozenset[str]:
    """Return the names of the files in `directory` that hold the state of an optimizer."""
    names = (entry.name for entry in directory.iterdir() if entry.is_file())
    return frozenset(name for name in names if _OPTIMIZER.fullmatch(name))

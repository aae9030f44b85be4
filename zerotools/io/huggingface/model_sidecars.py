"""The small files of a model directory that belong to the model and not to its weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

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
# OpenRLHF: beside a checkpoint, or beside _actor, the model of the same step.
_BESIDE = "_hf"
_MAX_LEVELS = 4


def model_sidecars(directory: Path) -> dict[str, Path]:
    """The config and tokenizer files in `directory`, by name."""
    return {
        path.name: path
        for path in sorted(directory.iterdir())
        if _NAME.fullmatch(path.name) and path.is_file()
    }


def find_model_sidecars(root: Path) -> dict[str, Path]:
    """The config and tokenizer files of a model whose checkpoint lies at `root`: those in it, else
    in a directory of it that is there for them, else in the run's directory that it lies in. Of
    each kind the nearest are taken."""
    found: dict[str, Path] = {}
    for directory in _around(root):
        found |= of_other_kinds(model_sidecars(directory), found)
    return found


def find_beside(root: Path, name: str) -> Path | None:
    """The nearest file of this name, where `find_model_sidecars` looks."""
    places = (directory / name for directory in _around(root))
    return next((path for path in places if path.is_file()), None)


def _around(root: Path) -> Iterator[Path]:
    place = root.absolute()
    for _ in range(_MAX_LEVELS):
        for directory in (place, *(place / name for name in (*_INSIDE, root.name + _BESIDE))):
            if directory.is_dir():
                yield directory
        if not _PART.fullmatch(place.name):
            break
        place = place.parent


def of_other_kinds(more: Mapping[str, Path], known: Iterable[str]) -> dict[str, Path]:
    """Those of `more` whose kind none of `known` is of."""
    kinds = {sidecar_kind(name) for name in known}
    return {name: path for name, path in more.items() if sidecar_kind(name) not in kinds}


def sidecar_kind(name: str) -> str:
    """What a sidecar file belongs to, so that files of two models are never mixed within one kind:
    `config`, `generation`, `processor`, or `tokenizer` for all the others."""
    if name == CONFIG:
        return "config"
    if name == "generation_config.json":
        return "generation"
    return "processor" if "processor_config" in name else "tokenizer"

"""Find the sidecar files of a model (config.json, tokenizer) that are copied to an output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest
from zerotools.core.target import Target
from zerotools.io.huggingface.model_code import lacking_code
from zerotools.io.huggingface.model_sidecars import (
    CONFIG,
    find_model_sidecars,
    model_sidecars,
    of_other_kinds,
)


def requested_sidecars(directory: Path) -> dict[str, Path]:
    """Return the sidecar files (config.json, tokenizer) in the directory that the user named, keyed
    by file name.

    `directory` may also be the path of a config.json, which stands for its directory. The directory
    needs no weights.

    Raises:
        BadRequest: the directory does not exist, or has no such files.
    """
    if directory.name == CONFIG and directory.is_file():
        directory = directory.parent
    if not directory.exists():
        raise BadRequest(f"{directory} does not exist")
    if not directory.is_dir():
        raise BadRequest(f"{directory} is a file; pass the directory that has {CONFIG}")
    found = model_sidecars(directory)
    if not found:
        raise BadRequest(
            f"{directory} has no config.json and no tokenizer; name the directory of the model"
        )
    return found


def with_sidecars(
    source: Checkpoint, config_dir: Path | None, like: Mapping[str, Path]
) -> tuple[Checkpoint, list[str]]:
    """Return `source` with the model's sidecar files, and notes on files from other directories.

    Config files and tokenizer files each come from one source. It is the first that has any of
    them: `config_dir`, the checkpoint, `like`, the directories near the checkpoint where trainers
    write them.

    Raises:
        BadRequest: `config_dir` has no such files.
    """
    chosen = {} if config_dir is None else requested_sidecars(config_dir)
    for more in (source.model_sidecars, like):
        chosen |= of_other_kinds(more, chosen)
    path = source.origin.path
    place = source.root if path.is_dir() else path
    around = of_other_kinds(find_model_sidecars(place), chosen)
    notes = []
    places = {name: path.parents[name.count("/")] for name, path in around.items()}
    for directory in dict.fromkeys(places.values()):
        names = [name for name, place in places.items() if place == directory]
        notes.append(f"took {', '.join(names)} from {directory}")
    return replace(source, model_sidecars={**chosen, **around}), notes


def lacking_config(source: Checkpoint, target: Target) -> str | None:
    """Return a warning if the output has no config.json, or lacks the model's own code. No program
    can load such an output. Return None if nothing is missing."""
    if CONFIG in target.files:
        return _lacking_code(source, target)
    return (
        f"{CONFIG} is not in {source.origin.path} or next to it, and from_pretrained needs it to "
        f"load the weights; pass --config-dir DIR, a directory with the model's {CONFIG} and "
        "tokenizer (it needs no weights), or copy them into the output"
    )


def _lacking_code(source: Checkpoint, target: Target) -> str | None:
    beside = {name: path for name, path in source.model_sidecars.items() if name in target.files}
    lacking = lacking_code(beside)
    if not lacking:
        return None
    it = "it" if len(lacking) == 1 else "them"
    return (
        f"{' and '.join(lacking)}, the code of the model that {CONFIG} or the tokenizer names, is "
        f"not in {beside[CONFIG].parent}, and from_pretrained needs {it} to load the output: copy "
        f"{it} into the output"
    )

"""Find the sidecar files of a model (config.json, tokenizer) that are copied to an output, and list
the files and tensors of a checkpoint that the output does not hold."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.names_of_dropped_parts import LOOSE, WEIGHTS
from zerotools.core.target import Dropped, Target
from zerotools.formats import FORMATS, FormatTable, format_of
from zerotools.io.huggingface.model_sidecars import (
    CONFIG,
    find_model_sidecars,
    model_sidecars,
    of_other_kinds,
)
from zerotools.io.output.files_without_tensors import RANDOM_STATE
from zerotools.io.output.output_marker import MARKER
from zerotools.runs.checkpoint_job_record import RNG_PER_RANK
from zerotools.runs.optimizer_name_record import NAMED_ORDER


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
        raise BadRequest(f"{directory} is a file; name the directory that has {CONFIG}")
    found = model_sidecars(directory)
    if not found:
        raise BadRequest(f"{directory} has no config.json and no tokenizer")
    return found


def with_sidecars(
    source: Checkpoint, config_dir: Path | None, like: Mapping[str, Path]
) -> tuple[Checkpoint, list[str]]:
    """Return `source` with the model's sidecar files, and notes on files that were found in other
    directories.

    Files of each kind are taken from the first of these sources that has them: `config_dir`, the
    checkpoint, `like`, the directories near the checkpoint where trainers write them. Files of the
    same kind never come from two sources.

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
    for directory in dict.fromkeys(path.parent for path in around.values()):
        names = [name for name, path in around.items() if path.parent == directory]
        notes.append(f"took {', '.join(names)} from {directory}")
    return replace(source, model_sidecars={**chosen, **around}), notes


def lacking_config(source: Checkpoint, target: Target) -> str | None:
    """Return a warning if no program can load the output because no file names the model, else
    None."""
    if CONFIG in target.files:
        return None
    return (
        f"{CONFIG} is not in {source.origin.path} or next to it, and from_pretrained needs it to "
        f"load the weights: pass --config-dir DIR, a directory with the model's {CONFIG} and "
        "tokenizer (it needs no weights), or copy them into the output"
    )


RANDOM = "random state"
_MAX_NAMED = 5


def undeclared_losses(source: Checkpoint, scalars: Container[Key], target: Target) -> list[Dropped]:
    """Return the tensors of the source that the target neither holds nor lists as dropped, so that
    the user learns of every loss. Numbers in `scalars` are not checked, because a target may store
    them as plain values.

    Raises:
        Unsupported: a weight would be lost.
    """
    held = {_as_weight(key) for key in (*target.checkpoint.tensors, *target.carried)}
    said = {dropped.what for dropped in target.dropped}
    said |= {LOOSE} if "client" in said else set()
    lost: dict[str, list[str]] = {}
    for key in (key for key in source.tensors if key not in scalars):
        there = target.target_keys.get(key, (key,))
        if key.role not in said and any(_as_weight(each) not in held for each in there):
            lost.setdefault(key.role, []).append(key.name)
    for role in WEIGHTS:
        if role in lost:
            raise Unsupported(
                f"{source.origin.path}: {Key(lost[role][0], role)} cannot be stored in "
                f"{target.checkpoint.origin.format}, so it is not written"
            )
    return [
        Dropped(role, f"{names[0]} and {len(names) - 1} others cannot be stored in it")
        for role, names in lost.items()
    ]


def _as_weight(key: Key) -> Key:
    return Key(key.name, "param") if key.role == "buffer" else key


def left_behind(
    source: Checkpoint, target: Target, table: FormatTable = FORMATS
) -> tuple[list[Dropped], list[str]]:
    """Return the parts of the checkpoint that the target lacks: the random number state of the
    ranks, if there is one, and a sentence that names the other files that are not copied."""
    names = [name for name in _names(source, table) if name not in target.files]
    random = [name for name in names if RANDOM_STATE.fullmatch(name)]
    rest = [name for name in names if name not in random]
    job = format_of(source, table).job_record(source)
    per_rank = job is not None and job.rng == RNG_PER_RANK
    why = "it belongs to the ranks that saved it"
    dropped = [Dropped(RANDOM, why)] if random or per_rank else []
    if not rest:
        return dropped, []
    more = f" and {len(rest) - _MAX_NAMED} more" if rest[_MAX_NAMED:] else ""
    some = ", ".join(rest[:_MAX_NAMED])
    return dropped, [f"files next to the checkpoint are not copied: {some}{more}"]


def _names(source: Checkpoint, table: FormatTable) -> list[str]:
    """Return the names of files next to the checkpoint that neither belong to it nor are sidecar
    files of the model."""
    directory = format_of(source, table).run_directory(source)
    if directory is None:
        return []
    own = {MARKER, NAMED_ORDER, *source.model_sidecars}.union(
        *(form.sidecar_names for form in table.values())
    )
    if directory == source.root:
        own |= source.files.keys()
    return sorted(
        path.name
        for path in directory.iterdir()
        if path.is_file() and path.name not in own and not path.name.endswith(".index.json")
    )

"""Choose the safetensors files at a path that hold the model.

If a directory has `model.safetensors`, only this file is read, as in transformers. Otherwise the
files in the index are read; without an index, all files. Numbered files must all exist, with or
without an index: a number that is missing means that a weight is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.checkpoint import Problem
from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats.safetensors.merge_rank_shards import SHARD, shard_numbers
from zerotools.io.huggingface.model_index import (
    part_of_a_set,
    readable_index,
    refuse_missing,
    refuse_unlisted,
)

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
_PREFERRED = "model.safetensors"


@dataclass(frozen=True, slots=True)
class FileChoice:
    """The files of the model that will be read.

    `weight_map` is tensor name -> file name, from the index; None if there is no index. `notes` are
    sentences for the user.
    """

    names: list[str]
    weight_map: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def choose_files(path: Path) -> FileChoice:
    """Return the files of the model at `path`.

    Raises:
        BadRequest: there is nothing at `path`, or there are several indexes.
        BadFile: a file is missing, or an index is damaged.
    """
    if not path.exists():
        raise BadRequest(f"{path} does not exist")
    if not path.is_dir():
        of_a_rank = SHARD.fullmatch(path.name)
        return FileChoice([path.name], problems=() if of_a_rank else part_of_a_set(path))
    names = sorted(entry.name for entry in path.iterdir() if entry.name.endswith(SUFFIX))
    if _PREFERRED in names:
        return FileChoice(
            [_PREFERRED], notes=_notes_on_unread(names, [_PREFERRED], f"{_PREFERRED} was taken")
        )
    indexes = sorted(e.name for e in path.iterdir() if e.name.endswith(INDEX_SUFFIX))
    if len(indexes) > 1:
        raise BadRequest(
            f"{path} has several indexes: pass the path of one of {', '.join(indexes)}"
        )
    weight_map = readable_index(path / indexes[0]) if indexes else None
    if weight_map is not None and (
        not shard_numbers(names) or set(weight_map.values()) & set(names)
    ):
        return _indexed(path, indexes[0], weight_map, names)
    if not names:
        raise BadFile(f"{path} has no *{SUFFIX} file; name a directory that has one")
    if shard_numbers(names):
        return FileChoice([name for name in names if SHARD.fullmatch(name)])
    refuse_missing(path, names)
    return FileChoice(names)


def _indexed(path: Path, index: str, weight_map: Mapping[str, str], names: list[str]) -> FileChoice:
    listed = sorted(set(weight_map.values()))
    refuse_missing(path, listed)
    refuse_unlisted(path, index, listed, names)
    return FileChoice(
        listed, weight_map, _notes_on_unread(names, listed, f"{index} does not list them")
    )


def _notes_on_unread(names: list[str], taken: list[str], why: str) -> tuple[str, ...]:
    others = [name for name in names if name not in taken]
    return (f"not read, because {why}: {', '.join(others)}",) if others else ()

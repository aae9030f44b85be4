"""Reads the index of a Hugging Face model directory, and finds missing weight files.

Weights are in one file or in several with an index, next to config and tokenizer files. Names of
several files have numbers, such as `model-00003-of-00009.safetensors`: Hugging Face counts from 1,
some tools from 0.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Problem
from zerotools.core.errors import BadFile
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.io.files.read_json import read_json
from zerotools.io.files.tolerated_damage import (
    is_tolerated,
    raise_or_record,
    record_lost_tensor,
    record_lost_unnamed,
)

_LARGEST_INDEX = 2**28


def readable_index(path: Path) -> dict[str, str] | None:
    """Return the result of `read_index`. If the index is damaged and lost bytes are tolerated,
    return None.
    """
    try:
        return read_index(path)
    except BadFile as error:
        raise_or_record(path, error)
        record_lost_unnamed(path)
        return None


def unread_tensor(path: Path, tensor: str, why: str) -> Iterator[Problem]:
    """Yield a problem which says that the values of `tensor` cannot be read, with the sentence
    `why`. Only the tensor's name is known, from the file at `path` or from the index.

    If lost bytes are tolerated, record the tensor as lost instead.
    """
    if is_tolerated():
        raise_or_record(path, BadFile(why))
        record_lost_tensor(path, tensor)
        return
    exclude = f"--exclude {shlex.quote(tensor)}"
    yield Problem(f"{why}; export the rest with {exclude}", tensor=tensor, is_unread=True)


def read_index(path: Path) -> dict[str, str]:
    """Return the `weight_map` of the index at `path`: tensor name -> file.

    Raises:
        BadFile: the file is not an index, or names files outside of its directory.
    """
    try:
        tree: Any = read_json(path, _LARGEST_INDEX)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path} is not JSON: {error!s:.200}; copy or download it again") from None
    weight_map = tree.get("weight_map") if isinstance(tree, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadFile(f"{path} has no weight_map; copy or download it again")
    for name in weight_map.values():
        if not isinstance(name, str) or not stays_below_root(name):
            raise BadFile(
                f"{path} names {name!r:.80}, which is not a file below its directory; copy or "
                "download it again"
            )
    return weight_map


_NUMBERED = re.compile(r"(?P<stem>.*-)(?P<number>\d{1,9})-of-(?P<count>\d{1,9})(?P<end>\.\w+)")
_MAX_FILES = 100_000


def set_of(name: str) -> tuple[str, str, str] | None:
    """Split the name of a numbered file. Return the parts that the names of all files of one model
    share: stem, number of files, and suffix.

    Return None if `name` has no number, or if the model has only one file.
    """
    match = _NUMBERED.fullmatch(name)
    if match is None or int(match["count"]) < 2:
        return None
    return match["stem"], match["count"], match["end"]


def missing_files(names: Iterable[str]) -> list[str]:
    """Return the names of the files that are missing, according to the numbers in `names`."""
    found: dict[tuple[str, str, str], dict[int, str]] = {}
    for name in names:
        match, whole = _NUMBERED.fullmatch(name), set_of(name)
        if match is not None and whole is not None:
            found.setdefault(whole, {})[int(match["number"])] = match["number"]
    return [name for whole, numbers in found.items() for name in _missing(whole, numbers)]


def _missing(whole: tuple[str, str, str], numbers: dict[int, str]) -> Iterable[str]:
    stem, count, end = whole
    first, width = min(1, *numbers), len(next(iter(numbers.values())))
    for number in range(first, first + min(int(count), _MAX_FILES)):
        if number not in numbers:
            yield f"{stem}{number:0{width}d}-of-{count}{end}"


def refuse_missing(directory: Path, names: Iterable[str]) -> None:
    """Raise an error if files of a model are missing, according to the numbers in `names`.

    Raises:
        BadFile: names the first missing file. If lost bytes are tolerated, all missing files are
            recorded instead.
    """
    missing = missing_files(names)
    if missing:
        whole = set_of(missing[0])
        count = int(whole[1]) if whole else 0
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        error = BadFile(
            f"{directory / missing[0]} is missing{more}: according to the other names, the "
            f"model has {count} files; copy or download all of them"
        )
        for name in missing:
            raise_or_record(directory / name, error)
            record_lost_unnamed(directory / name)


def refuse_unlisted(
    directory: Path, index: str, listed: Collection[str], present: Iterable[str]
) -> None:
    """Raise an error if the index omits a file that belongs to the same model according to its
    number.

    Raises:
        BadFile: names the first such file.
    """
    sets = {whole for name in listed if (whole := set_of(name)) is not None}
    for name in present:
        if name not in listed and set_of(name) in sets:
            raise BadFile(
                f"{directory / index} does not list {name}, which belongs to the same model "
                "according to its number: the two files are from different saves; copy or "
                "download the model again"
            )


def part_of_a_set(path: Path) -> tuple[Problem, ...]:
    """Return the problem that `path` is only one of several files of a model; empty if it is the
    only file.
    """
    whole = set_of(path.name)
    if whole is None:
        return ()
    message = f"{path} is one of the {int(whole[1])} files of a model; name its directory"
    return (Problem(message, path.name),)

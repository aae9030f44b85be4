"""Files of one model that number themselves: `model-00003-of-00009.safetensors`.

Hugging Face counts from 1; some tools count from 0.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from zerotools.core.checkpoint import Problem
from zerotools.core.errors import BadFile
from zerotools.io.files.damage import lose_unnamed, tolerate

_NUMBERED = re.compile(r"(?P<stem>.*-)(?P<number>\d{1,9})-of-(?P<count>\d{1,9})(?P<end>\.\w+)")
_MAX_FILES = 100_000


def set_of(name: str) -> tuple[str, str, str] | None:
    """Return the common part of the names of all files of one model; None without a number, or for
    only one file."""
    match = _NUMBERED.fullmatch(name)
    if match is None or int(match["count"]) < 2:
        return None
    return match["stem"], match["count"], match["end"]


def missing_files(names: Iterable[str]) -> list[str]:
    """Return the missing files, by the numbers in `names`."""
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
    """Raise an error for a model with missing files, by the numbers in the names.

    Raises:
        BadFile: the first missing one is named. If lost bytes are tolerated, all are recorded.
    """
    missing = missing_files(names)
    if missing:
        whole = set_of(missing[0])
        count = int(whole[1]) if whole else 0
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        error = BadFile(
            f"{directory / missing[0]} is missing{more}: according to the other names, the model "
            f"has {count} files; fetch them all"
        )
        for name in missing:
            tolerate(directory / name, error)
            lose_unnamed(directory / name)


def refuse_unlisted(
    directory: Path, index: str, listed: Collection[str], present: Iterable[str]
) -> None:
    """Raise an error for an index that omits a file with the same numbering as its files.

    Raises:
        BadFile: the first of them is named.
    """
    sets = {whole for name in listed if (whole := set_of(name)) is not None}
    for name in present:
        if name not in listed and set_of(name) in sets:
            raise BadFile(
                f"{directory / index} does not list {name}, which belongs to the same model "
                "according to its number: one of them is from another save"
            )


def part_of_a_set(path: Path) -> tuple[Problem, ...]:
    """Return the problem with taking one of several files for a model."""
    whole = set_of(path.name)
    if whole is None:
        return ()
    message = f"{path} is one of the {int(whole[1])} files of a model; name its directory"
    return (Problem(message, path.name),)

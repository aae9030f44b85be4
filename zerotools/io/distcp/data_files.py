"""Whether the files next to `.metadata` all exist, and are from the save that it describes.

Two saves of one model have files of the same names and, mostly, of the same sizes. What tells them
apart is an optimizer's `step`, of which torch spreads one per parameter over the ranks: a file
whose steps agree with each other and not with the others' is of another save.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from zerotools.core.checkpoint import Key, Problem, Tensor
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.distcp.metadata import Metadata
from zerotools.io.files.sources import note_source
from zerotools.io.numeric.scalars import read_scalar

# A parameter that was not always trained has another step; two of a file alike are not accident.
_FEWEST_STEPS = 2


def data_files(root: Path, metadata: Metadata) -> tuple[dict[str, int], list[Problem]]:
    """Sizes of the data files, and what is wrong with them. torch writes items one after the other
    and nothing behind them, so that a file is as long as its last item says."""
    ends: dict[str, tuple[int, str]] = {}
    for key, item in metadata.items:
        end = item.offset + item.length
        if end > ends.get(item.file, (-1, ""))[0]:
            ends[item.file] = end, key
    files = sizes(root, sorted(ends))
    problems = []
    for file, (end, key) in ends.items():
        if file not in files:
            problems.append(Problem(f"{root / file} is missing; the metadata names it", file))
        elif end > files[file]:
            message = (
                f"{root / file} has {files[file]} bytes and {key} ends at {end}: it is truncated"
            )
            problems.append(Problem(message, file, key, is_loss=True))
        elif metadata.ends.get(file, end) < files[file]:
            message = (
                f"{root / file} has {files[file]} bytes and its last value ends at "
                f"{metadata.ends[file]}: it is from another save than the metadata"
            )
            problems.append(Problem(message, file))
    return files, problems


def sizes(root: Path, names: Iterable[str]) -> dict[str, int]:
    """The sizes of those files that are there."""
    return {name: note_source(root / name) for name in names if (root / name).is_file()}


def mixed_saves(
    root: Path, metadata: Metadata, keys: Mapping[str, Key], tensors: Mapping[Key, Tensor]
) -> list[Problem]:
    """Files of another step than most of the others. Two numbers of each file are read; where they
    differ, all."""
    found = _steps_by_file(metadata, keys)
    if len(found) < 2:
        return []
    try:
        sampled = _read(root, {file: [each[0], each[-1]] for file, each in found.items()}, tensors)
        if len(set().union(*sampled.values())) < 2:
            return []
        every = _read(root, found, tensors)
    except (BadFile, Unsupported):
        return []  # the tensor itself is damaged, and whoever reads it is told
    if any(len(values) > 1 for values in every.values()):
        return []
    steps = {file: next(iter(values)) for file, values in every.items()}
    (usual, _), *_ = Counter(steps.values()).most_common(1)
    return [
        Problem(
            f"{root / file} is from step {step:g} and other files are from step {usual:g}: files "
            "of two saves are mixed; take another checkpoint",
            file,
            blocks=True,
        )
        for file, step in steps.items()
        if step != usual
    ]


def _steps_by_file(metadata: Metadata, keys: Mapping[str, Key]) -> dict[str, list[Key]]:
    found: dict[str, list[Key]] = {}
    for flat, key in keys.items():
        saved = metadata.tensors[flat]
        if key.role == "step" and not saved.shape and saved.parts:
            found.setdefault(saved.parts[0][1].file, []).append(key)
    return {file: each for file, each in found.items() if len(each) >= _FEWEST_STEPS}


def _read(
    root: Path, keys: Mapping[str, list[Key]], tensors: Mapping[Key, Tensor]
) -> dict[str, set[int | float]]:
    return {
        file: {read_scalar(root, tensors[key]).value for key in each} for file, each in keys.items()
    }

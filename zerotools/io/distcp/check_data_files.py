"""Checks that the files next to `.metadata` all exist, and are from the save that it describes.

A file is checked in two ways:

1. Its size. torch writes one item after the other, so a file normally ends with its last item. With
   mcore-bridge, a file may have more bytes: two ranks write the same norm, and the metadata names
   only one of the two copies. torch ignores the unused bytes. A longer file is therefore accepted
   if each item in it is a complete archive. If an item is not a complete archive, the items are not
   at the positions in the metadata, and the file is from another save.
2. Its optimizer steps. Two saves of one model usually have files of the same names and sizes, so
   sizes do not show that files of two saves are mixed. But the optimizer has a number `step` for
   each parameter, and these numbers are spread over the files. If the steps in one file agree with
   each other but differ from the steps in the other files, this file is from another save.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import cast

from zerotools.core.checkpoint import Key, Problem, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.distcp.metadata import Metadata
from zerotools.io.files.open_source import FarSource, RemotePath
from zerotools.io.files.regular_files import source_file
from zerotools.io.files.source_stamps import record_source_path
from zerotools.io.numeric.scalar_tensors import read_scalar
from zerotools.io.torchzip.file_range import FileRange
from zerotools.io.torchzip.zip_directory import frame_of, is_framed

# A single parameter may have another step, because it was not trained all the time. Two parameters
# of a file with the same other step show that the file is from another save.
_FEWEST_STEPS = 2


@dataclass(frozen=True, slots=True)
class DataFiles:
    """The data files of a DCP.

    Attributes:
        sizes: name -> size in bytes of each existing file.
        problems: the defects of the files.
        notes: sentences about deviations that are not defects.
    """

    sizes: dict[str, int]
    problems: list[Problem]
    notes: tuple[str, ...] = ()


def data_files(root: Path, metadata: Metadata) -> DataFiles:
    """Return the data files below `root` that `metadata` names, with their problems. If a file is
    longer than its items, the first and last bytes of each of its items are read.
    """
    ends: dict[str, tuple[int, str]] = {}
    for key, item in metadata.items:
        end = item.offset + item.length
        if end > ends.get(item.file, (-1, ""))[0]:
            ends[item.file] = end, key
    last = metadata.ends()
    files = existing_sizes(root, sorted(last))
    problems, longer = list[Problem](), dict[str, int]()
    for file, (end, key) in ends.items():
        if file not in files:
            problems.append(
                Problem(
                    f"{root / file} is missing, but the metadata lists it; copy or download it "
                    "again",
                    file,
                )
            )
        elif end > files[file]:
            message = (
                f"{root / file} has {files[file]} bytes, but {key} ends at byte {end}: it is "
                "truncated; copy or download it again"
            )
            problems.append(Problem(message, file, key, is_loss=True))
        elif last[file] < files[file]:
            longer[file] = last[file]
    strange = _files_with_non_archives(root, metadata, longer)
    for file in strange:
        message = (
            f"{root / file} has {files[file]} bytes, but its last value ends at byte "
            f"{longer[file]}, and byte {strange[file]} does not begin the archive that the "
            "metadata lists there: the file and the metadata are from different saves; take "
            "another checkpoint"
        )
        problems.append(Problem(message, file))
    left = {file: files[file] - end for file, end in longer.items() if file not in strange}
    return DataFiles(files, problems, _unlisted_bytes(left))


def _unlisted_bytes(bytes_of: Mapping[str, int]) -> tuple[str, ...]:
    if not bytes_of:
        return ()
    first, more = next(iter(bytes_of)), len(bytes_of) - 1
    others = f" and {count_text(more, 'other file')}" if more else ""
    counts = count_text(sum(bytes_of.values()), "byte")
    return (
        f"after the last value of {first}{others} there are {counts} that the metadata does not "
        "list: torch ignores them, and so does zerotools",
    )


def _files_with_non_archives(
    root: Path, metadata: Metadata, files: Collection[str]
) -> dict[str, int]:
    """Return each of `files` that has an item which is not a complete archive, with the byte offset
    of the first such item.
    """
    places: dict[str, set[tuple[int, int]]] = {file: set() for file in files}
    for _, item in metadata.items if places else ():
        if item.file in places:
            places[item.file].add((item.offset, item.length))
    found = ((file, _first_non_archive(root / file, sorted(each))) for file, each in places.items())
    return {file: at for file, at in found if at is not None}


def _first_non_archive(path: Path, places: Sequence[tuple[int, int]]) -> int | None:
    """Return the byte offset of the first item that is not an archive. `places` are the (offset,
    length) of each item, in bytes.

    Return None if all items are archives, or if the file cannot be read: a later read of a value
    reports that.
    """
    try:
        with source_file(path) as source:
            if isinstance(path, RemotePath):
                cast(FarSource, source).expect([*chain.from_iterable(map(frame_of, places))])
            windows = (FileRange(source, path, at, length) for at, length in places)
            return next((each.offset for each in windows if not is_framed(each)), None)
    except (OSError, BadFile):
        return None


def existing_sizes(root: Path, names: Iterable[str]) -> dict[str, int]:
    """Return the size in bytes of each of the files that exists, keyed by name."""
    return {name: record_source_path(root / name) for name in names if (root / name).is_file()}


def mixed_saves(
    root: Path, metadata: Metadata, keys: Mapping[str, Key], tensors: Mapping[Key, Tensor]
) -> list[Problem]:
    """Return a problem for each file with optimizer steps that differ from the steps in most files.
    The result is empty if the steps within one file differ.

    All steps are read only if the first and last steps of the files differ.
    """
    found = _steps_by_file(metadata, keys)
    if len(found) < 2:
        return []
    try:
        sampled = _read(root, {file: [each[0], each[-1]] for file, each in found.items()}, tensors)
        if len(set().union(*sampled.values())) < 2:
            return []
        every = _read(root, found, tensors)
    except (BadFile, Unsupported):
        return []  # the tensor is damaged; reading it reports that
    if any(len(values) > 1 for values in every.values()):
        return []
    steps = {file: next(iter(values)) for file, values in every.items()}
    (usual, _), *_ = Counter(steps.values()).most_common(1)
    return [
        Problem(
            f"{root / file} is from step {step:g} and other files are from step {usual:g}: files "
            "of two saves are mixed; take another checkpoint",
            file,
            prevents_output=True,
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

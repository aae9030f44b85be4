"""The entries of files in the journals of parts, and checksums of files that several parts
wrote."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from zerotools.core.target import Target
from zerotools.io.files.open_files import OpenFiles
from zerotools.ops.execution.checksums import ChecksummedRange, checksums, crc_of, known_parts
from zerotools.ops.execution.execute import are_losses


@dataclass(frozen=True)
class FileNote:
    """`losses` as a journal has them; `checksummed` are the parts of checksums that are known."""

    losses: Sequence[Any]
    checksummed: Sequence[ChecksummedRange] = ()


def noted_of(noted: Any, *, is_cut: bool) -> FileNote | None:
    """Return the journal's entry of a file that several parts write, or only one; None: it is not
    such an entry."""
    if not is_cut:
        return FileNote(noted) if are_losses(noted) else None
    if not isinstance(noted, dict) or not are_losses(noted.get("losses")):
        return None
    ranges = noted.get("checksummed")
    if not isinstance(ranges, list) or not all(_is_range(each) for each in ranges):
        return None
    return FileNote(noted["losses"], [ChecksummedRange(*each) for each in ranges])


def _is_range(each: Any) -> bool:
    return isinstance(each, list) and len(each) == 3 and all(isinstance(n, int) for n in each)


def write_checksums(
    target: Target, directory: Path, done: Sequence[Mapping[str, FileNote]], cut: Collection[str]
) -> None:
    """Write the checksums of the files in `cut`; `done` has the entries of each part."""
    with OpenFiles(directory, os.O_RDWR) as files:
        for file in (name for name in cut if target.files[name].checksums):
            plan = target.files[file]
            parts = [each for own in done if file in own for each in own[file].checksummed]
            parts += known_parts(plan, partial(crc_of, files, file))
            for offset, data in checksums(plan.checksums, parts):
                files.write_at(file, offset, data)
            files.sync(file)

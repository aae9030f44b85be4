"""Whether a checkpoint without a manifest is complete, from its metadata only."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Problem
from zerotools.core.errors import ZerotoolsError
from zerotools.formats import FORMATS, FormatTable, UnfinishedCheckpoint, detect, format_of, read
from zerotools.io.torchzip.file_names import SUFFIXES
from zerotools.ops.inspection.inspect import prove
from zerotools.runs.thinned import is_workspace

_ZIP = b"PK\x03\x04"
_TRAINER, _TRAINER_LAST = "training_args.bin", "trainer_state.json"


@dataclass(frozen=True, slots=True)
class Completeness:
    """What there is to say of a path. `is_checkpoint`: it is in a format that zerotools reads;
    `step`: the checkpoint says it itself; `problem`: why it is not complete, in one sentence."""

    is_checkpoint: bool
    step: int | None = None
    problem: str | None = None


def check_completeness(path: Path, table: FormatTable = FORMATS) -> Completeness:
    """Read the metadata of the checkpoint at `path`, and prove that it covers every tensor."""
    try:
        detect(path, table=table)
    except ZerotoolsError as error:
        return Completeness(isinstance(error, UnfinishedCheckpoint), problem=str(error))
    try:
        problem = next(_torn(path), None)
        checkpoint = read(path, table=table)
    except (ZerotoolsError, OSError) as error:
        return Completeness(True, problem=str(error))
    found = next(
        (p for p in prove(checkpoint).problems if not _is_left_over(p, checkpoint, table)), None
    )
    if problem is None and found is not None:
        problem = found.message
    return Completeness(True, checkpoint.origin.step, problem)


def _is_left_over(problem: Problem, checkpoint: Checkpoint, table: FormatTable) -> bool:
    """Whether a problem is a file of another save under the same name, which takes nothing away
    from this one."""
    file, root = problem.file, checkpoint.root
    if not format_of(checkpoint, table).may_hold_leftovers or file is None:
        return False
    if problem.blocks or problem.tensor:
        return False
    used = (chunk.file for tensor in checkpoint.tensors.values() for chunk in tensor.chunks)
    return (root / file).exists() and file not in used


def _torn(path: Path) -> Iterator[str]:
    """What of the files around the tensors was not written to its end."""
    found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    files = [p for p in found if not any(map(is_workspace, p.relative_to(path).parts))]
    names = {file.name for file in files if file.parent == path}
    if _TRAINER in names and _TRAINER_LAST not in names:
        yield f"{path} has {_TRAINER} but no {_TRAINER_LAST}, which the Trainer writes last"
    for file in files:
        if file.name.endswith(SUFFIXES) and _is_cut_off(file):
            yield f"{file} is truncated: the end of the zip archive is missing"


def _is_cut_off(file: Path) -> bool:
    with file.open("rb") as stream:
        # Before torch 1.6 it was not a zip file, and nothing in it says where it ends.
        return stream.read(4) == _ZIP and not zipfile.is_zipfile(stream)

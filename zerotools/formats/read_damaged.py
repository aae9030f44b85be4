"""Read the readable part of a damaged checkpoint, of any format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Problem
from zerotools.formats import FORMATS, FormatTable, detect, read_any, require_model
from zerotools.io.files.tolerated_damage import Damage, tolerating_damage


@dataclass(frozen=True)
class DamagedCheckpoint:
    """A checkpoint that was read although data is lost. The lost elements are holes: they have no
    chunk, or a chunk in a missing or truncated file.

    The problems of `checkpoint` list the losses. `lost_names` maps each tensor that lost data, and
    has a known name, to the file that held the data. `unnamed` are lost files with unknown content:
    they may have held tensors or tied names that no other file lists. File names are relative to
    the checkpoint's root if they are below it.
    """

    checkpoint: Checkpoint
    lost_names: Mapping[str, str]
    unnamed: tuple[str, ...]


def read_damaged(
    path: Path,
    *,
    tag: str | None = None,
    layout: Path | None = None,
    section: str | None = None,
    stand_in: Path | None = None,
    table: FormatTable = FORMATS,
) -> DamagedCheckpoint:
    """Read a checkpoint that may have lost bytes, with the arguments of `formats.read`.

    `stand_in` may be the path of another checkpoint of the same run. If lists of names and shapes
    are lost, they are taken from it.

    Raises:
        BadRequest: `path` does not exist, or it has several models and none is selected.
        BadFile: nothing can be read, or the list of tensors is lost.
        Unsupported: its format is not read.
    """
    other = None if stand_in is None else detect(stand_in, table=table).path
    with tolerating_damage(other) as damage:
        checkpoint = read_any(path, tag=tag, layout=layout, section=section, table=table)
    require_model(checkpoint)
    lost = [
        problem
        for problem in checkpoint.problems
        if problem.blocks and _is_lost(checkpoint, problem)
    ]
    names = {problem.tensor: problem.file or "" for problem in lost if problem.tensor is not None}
    names |= {name: _relative(checkpoint, file) for name, file in damage.names.items()}
    unnamed = [_relative(checkpoint, file) for file in damage.unnamed]
    unnamed += [problem.file for problem in lost if problem.file is not None]
    return DamagedCheckpoint(_with_faults(checkpoint, damage), names, tuple(dict.fromkeys(unnamed)))


def _is_lost(checkpoint: Checkpoint, problem: Problem) -> bool:
    """Return whether a problem means that bytes are lost; False if bytes exist but are wrong."""
    is_gone = problem.file is not None and not (checkpoint.root / problem.file).exists()
    return problem.is_loss or is_gone


def _with_faults(checkpoint: Checkpoint, damage: Damage) -> Checkpoint:
    """Return the checkpoint with a problem for every damaged file.

    The problem of a file that is certainly lost is marked as a loss.
    """
    problems = [
        replace(problem, is_loss=_is_lost(checkpoint, problem)) for problem in checkpoint.problems
    ]
    told = {problem.file for problem in problems}
    for path, message in damage.faults.items():
        file = _relative(checkpoint, path)
        if file not in told:
            problems.append(Problem(message, file, is_loss=True))
    return replace(checkpoint, problems=problems)


def _relative(checkpoint: Checkpoint, path: Path) -> str:
    root = checkpoint.root.absolute()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)

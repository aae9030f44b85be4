"""What is left of a damaged checkpoint, in whichever format it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Problem
from zerotools.formats import FORMATS, FormatTable, detect, read_any, require_model
from zerotools.io.files.damage import Damage, tolerating


@dataclass(frozen=True)
class Remains:
    """A checkpoint with holes: elements of tensors that no chunk has, or chunks that lie in a file
    that is missing or ends before them. Its problems say what is lost.

    `lost_names` are tensors of which nothing but the name is known, with the file that held them.
    `unnamed` are lost files that may have held tensors, or names that are tied to others, of which
    nothing tells; all relative to the checkpoint's root where they lie below it.
    """

    checkpoint: Checkpoint
    lost_names: Mapping[str, str]
    unnamed: tuple[str, ...]


def read_remains(
    path: Path,
    *,
    tag: str | None = None,
    layout: Path | None = None,
    section: str | None = None,
    stand_in: Path | None = None,
    table: FormatTable = FORMATS,
) -> Remains:
    """As `formats.read`, of a checkpoint of which bytes may be lost. `stand_in` may be another
    checkpoint of the same run: lists of names and shapes that are lost are taken from there.

    Raises:
        BadRequest: there is nothing at `path`, or it has several models and none is meant.
        BadFile: nothing can be read, or what says which tensors there are is lost.
        Unsupported: it is in a format that is not read.
    """
    other = None if stand_in is None else detect(stand_in, table=table).path
    with tolerating(other) as damage:
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
    return Remains(_with_faults(checkpoint, damage), names, tuple(dict.fromkeys(unnamed)))


def _is_lost(checkpoint: Checkpoint, problem: Problem) -> bool:
    """Whether a problem is that bytes are lost, and not that they are others than they should."""
    is_gone = problem.file is not None and not (checkpoint.root / problem.file).exists()
    return problem.is_loss or is_gone


def _with_faults(checkpoint: Checkpoint, damage: Damage) -> Checkpoint:
    """With a problem for every file that was damaged; of those that are lost for certain, the
    problem says so."""
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

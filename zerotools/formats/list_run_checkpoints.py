"""List all checkpoints of a program's run, and mark the checkpoint that is read. No checkpoint is
opened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from zerotools.core.errors import ZerotoolsError
from zerotools.formats import FORMATS, FormatTable
from zerotools.formats.detect import Detection
from zerotools.formats.format import ReadOptions
from zerotools.formats.match_run_directory import ProgramRun, RunEntry, runs_at
from zerotools.io.files.directory_entries import names_if_readable
from zerotools.io.files.open_source import RemotePath

_LEVELS_ABOVE = 4


@dataclass(frozen=True, slots=True)
class RunCheckpoint:
    """One checkpoint of a run.

    Attributes:
        name: its name in the run's directory.
        step: the training step in the name; None if the name has no step.
        format: the name of its format.
        fault: the reason why the checkpoint cannot be read; None if it can.
        models: the names of the models in the checkpoint.
    """

    name: str
    step: int | None
    format: str | None
    fault: str | None
    is_taken: bool
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunListing:
    """The checkpoints of a run in the directory `path`, newest first.

    `program` is the name of the program that saved the checkpoints. If `wraps_models` is True,
    tensor names begin with the name of the attribute that holds the model.
    """

    program: str
    path: Path
    checkpoints: tuple[RunCheckpoint, ...]
    wraps_models: bool = False


def find_run_listing(path: Path, chosen: Path, table: FormatTable = FORMATS) -> RunListing | None:
    """Return the list of checkpoints of the run in `path` or in a directory above it.

    A run in a directory above `path` must contain `chosen`, the checkpoint that was read. Return
    None if no known program made such a run.
    """
    places = [path] if isinstance(path, RemotePath) else list(_upwards(path.absolute()))
    for place in places:
        surveys = (
            RunListing(
                run.layout.program,
                path if place == places[0] else place,
                tuple(_surveyed(run, entry, chosen, table) for entry in reversed(run.entries)),
                run.layout.wraps_models,
            )
            for run in _runs_at(place)
        )
        first = next(surveys, None)
        if first is None:
            continue
        for each in chain((first,), surveys):
            if any(row.is_taken for row in each.checkpoints):
                return each
        if place == places[0]:
            return first
    meant = path.resolve()  # programs link to their newest or best checkpoint
    return None if meant == path.absolute() else find_run_listing(meant, chosen.resolve(), table)


def _upwards(path: Path) -> Iterator[Path]:
    yield path
    yield from list(path.parents)[:_LEVELS_ABOVE]


def _runs_at(path: Path) -> Iterator[ProgramRun]:
    try:
        yield from runs_at(path, names_if_readable(path)) if path.is_dir() else ()
    except (ZerotoolsError, OSError):
        return


def _surveyed(run: ProgramRun, entry: RunEntry, chosen: Path, table: FormatTable) -> RunCheckpoint:
    form = None
    fault = run.fault_of(entry)
    if fault is None:
        try:
            found = Detection(table, ReadOptions()).finished_entry(run, entry)
        except (ZerotoolsError, OSError) as error:
            fault = str(error)
        else:
            form = None if found is None else found.format
            fault = "its save was not finished" if found is None else None
    root, own = chosen.absolute(), (run.path / entry.name).absolute()
    model, others = run.model_of(entry)
    models = (model, *others) if model else ()
    return RunCheckpoint(
        entry.name, entry.step, form, fault, root == own or root.is_relative_to(own), models
    )

"""All checkpoints of a program's run, and which of them was taken; by names alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import ZerotoolsError
from zerotools.formats import FORMATS, FormatTable
from zerotools.formats.detect import Detection
from zerotools.formats.format import ReadOptions
from zerotools.formats.program_run import ProgramRun, RunEntry, run_at
from zerotools.io.files.listing import names_if_readable
from zerotools.io.files.open_source import RemotePath

_LEVELS_ABOVE = 4


@dataclass(frozen=True, slots=True)
class SurveyedCheckpoint:
    """One of a run's: its name in the run's directory, the step that the name says, the name of its
    format, and what is wrong with it; `models` are those that it has."""

    name: str
    step: int | None
    format: str | None
    fault: str | None
    is_taken: bool
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunSurvey:
    """The run of `program` in the directory `path`: its checkpoints, newest first. `wraps_models`
    as in `RunLayout`."""

    program: str
    path: Path
    checkpoints: tuple[SurveyedCheckpoint, ...]
    wraps_models: bool = False


def survey_around(path: Path, taken: Path, table: FormatTable = FORMATS) -> RunSurvey | None:
    """The run whose directory is `path` or lies above it, where the checkpoint at `taken` is one of
    the run's or its final weights; None: no program that is known makes such directories."""
    places = [path] if isinstance(path, RemotePath) else list(_upwards(path.absolute()))
    for place in places:
        run = _run_at(place)
        if run is None:
            continue
        rows = tuple(_surveyed(run, entry, taken, table) for entry in reversed(run.entries))
        if place == places[0] or any(row.is_taken for row in rows):
            shown = path if place == places[0] else place
            return RunSurvey(run.layout.program, shown, rows, run.layout.wraps_models)
    meant = path.resolve()  # programs link to their newest or best checkpoint
    return None if meant == path.absolute() else survey_around(meant, taken.resolve(), table)


def _upwards(path: Path) -> Iterator[Path]:
    yield path
    yield from list(path.parents)[:_LEVELS_ABOVE]


def _run_at(path: Path) -> ProgramRun | None:
    try:
        return run_at(path, names_if_readable(path)) if path.is_dir() else None
    except (ZerotoolsError, OSError):
        return None


def _surveyed(
    run: ProgramRun, entry: RunEntry, taken: Path, table: FormatTable
) -> SurveyedCheckpoint:
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
    root, own = taken.absolute(), (run.path / entry.name).absolute()
    model, others = run.model_of(entry)
    models = (model, *others) if model else ()
    return SurveyedCheckpoint(
        entry.name, entry.step, form, fault, root == own or root.is_relative_to(own), models
    )

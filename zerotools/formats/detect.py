"""Detect the format of a path from file names only: no file of a checkpoint is opened.

Only this module chooses between formats in one directory, and between the checkpoints of a run.
`Detected.notes` describes the choice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.formats.format import FormatTable, Found, ReadOptions, UnfinishedCheckpoint
from zerotools.formats.match_run_directory import ProgramRun, RunEntry, checkpoints_at, run_at
from zerotools.io.distcp.dcp_file_names import METADATA
from zerotools.io.files.directory_entries import names_in
from zerotools.io.files.open_source import RemotePath
from zerotools.io.files.regular_files import check_regular
from zerotools.io.files.tolerated_damage import raise_or_record
from zerotools.io.output.store_write_record import WRITING
from zerotools.runs.job_checkpoint_file_names import MANIFEST, RECORD
from zerotools.runs.thinning_record import WORKSPACE_SUFFIX

UNFINISHED = re.compile(rf"\.tmp-.*|.*\.partial|\..*{re.escape(WORKSPACE_SUFFIX)}")
# Names of a run's checkpoints in zerotools and torchtitan (step-), the HF Trainer (checkpoint-),
# verl (global_step_) and accelerate (the other three).
_NUMBERED = re.compile(r"(?P<kind>step-|checkpoint-|global_step_|checkpoint_|step_|epoch_)(\d+)")
# Directories with a run's checkpoints, or with the model that users usually want.
_FURTHER_IN = ("checkpoint", "checkpoints", "actor", "model", "sharded")
_LEVELS = 2
_COMPLETE: ContextVar[Path | None] = ContextVar("complete", default=None)


@contextmanager
def allow_unfinished_name(path: Path) -> Iterator[None]:
    """Within this context, allow reading the checkpoint at `path` although its name marks it as
    unfinished. The caller renames the checkpoint afterwards.
    """
    token = _COMPLETE.set(path)
    try:
        yield
    finally:
        _COMPLETE.reset(token)


@dataclass(frozen=True, slots=True)
class Detected:
    """A detected checkpoint: its format, its path, and notes for the user that explain the choice.

    The path may be below the path that the user named.
    """

    format: str
    path: Path
    notes: tuple[str, ...] = ()


def detect_in(path: Path, table: FormatTable, options: ReadOptions) -> Detected:
    """Find the checkpoint at `path` among the formats in `table`; return its format and its own
    path.

    If `path` is the directory of a run, the newest finished checkpoint in it is returned.

    Raises:
        BadRequest: `path` does not exist, or holds several checkpoints to choose from.
        UnfinishedCheckpoint: the save of the checkpoint did not finish.
        BadFile: `path` is not a checkpoint.
    """
    return Detection(table, options).at(path)


def formats_in(path: Path, names: set[str], table: FormatTable) -> list[str]:
    """Return the names of all formats in `table` that recognise the directory `path`, which
    contains `names`. The directory is read in the first of these formats.
    """
    return [name for name, _ in Detection(table, ReadOptions()).every(path, names)]


@dataclass(frozen=True, slots=True)
class Detection:
    """A search for a checkpoint in any format of `table`. It reads file names only."""

    table: FormatTable
    options: ReadOptions

    def at(self, path: Path) -> Detected:
        """Find the checkpoint at `path`, as `detect_in` describes."""
        if not path.exists():
            raise BadRequest(f"{path} does not exist")
        if isinstance(path, RemotePath):
            _refuse_part_of_unfinished(path)
        if not path.is_dir():
            return self._file(path)
        names = names_in(path)
        found = self._here(path, names) or self._of_run(path, names)
        if found is not None:
            more = [*self._also_below(found, names)]
            if isinstance(path, RemotePath) and path.listing_problem:
                more.append(f"{path.listing_problem}; only files that an index names are read")
            return replace(found, notes=(*found.notes, *more))
        for form in self.table.values():
            form.refuse_unfinished(path, names)
        return self._below(path, names)

    def every(self, path: Path, names: set[str]) -> list[tuple[str, Found]]:
        """Return (format name, checkpoint) for each format that recognises the directory. The
        format with the highest priority comes first.
        """
        asked = [(name, form) for name, form in self.table.items() if form.may_be_in(names)]
        found = [
            (name, there)
            for name, form in asked
            if (there := form.find(path, names, self.options)) is not None
        ]
        return [each for each in found if each[1].is_sole] or found

    def _file(self, path: Path) -> Detected:
        check_regular(path)
        for name, form in self.table.items():
            if (found := form.find_file(path)) is not None:
                return Detected(name, found.path, found.notes)
        suffixes = ", ".join(self._suffixes())
        raise BadFile(
            f"{path} is not a checkpoint: it is neither a directory nor a {suffixes} file; name a "
            "checkpoint"
        )

    def _suffixes(self) -> list[str]:
        return [suffix for form in self.table.values() for suffix in form.suffixes]

    def _here(self, path: Path, names: set[str]) -> Detected | None:
        """Return the checkpoint in the directory `path` itself, not below it, or None."""
        if UNFINISHED.fullmatch(path.name) and names and path != _COMPLETE.get():
            from zerotools.io.output.advice_to_continue import advice_to_continue

            going_on = advice_to_continue(path)
            raise UnfinishedCheckpoint(
                f"{path} {going_on}"
                if going_on is not None
                else f"{path} is an unfinished checkpoint; take an older one"
            )
        if WRITING in names:
            refuse_being_written(path)
        if _is_unfinished_job(names):
            error = UnfinishedCheckpoint(
                f"{path} has {RECORD} but no {MANIFEST}, which is written last: the save was not "
                "finished; take an older checkpoint"
            )
            raise_or_record(path / MANIFEST, error)
        every = self.every(path, names)
        if not every:
            return None
        (taken, found), *others = every
        title = self.table[taken].title
        beside = [
            f"took {title} in {path}, not {self.table[other].title} next to it"
            for other, _ in others
        ]
        return Detected(taken, found.path, (*beside, *found.notes))

    def _of_run(self, path: Path, names: set[str]) -> Detected | None:
        """Return the checkpoint named by a file in a run's directory, such as `latest`, or None."""
        for name, form in self.table.items():
            if (found := form.find_in_run(path, names)) is not None:
                return Detected(name, found.path, found.notes)
        return None

    def _also_below(self, found: Detected, names: set[str]) -> Iterator[str]:
        """Yield a note if `found` are the final weights of a run and its directory has checkpoints
        too.
        """
        if not self.table[found.format].is_weights_format:
            return
        finished = sorted(
            name for name in names if _NUMBERED.fullmatch(name) and (found.path / name).is_dir()
        )
        if finished and any(self._finished(found.path / name) for name in finished):
            yield (
                f"took the weights in {found.path} itself; to read the checkpoint in "
                f"{finished[0]}, pass its path"
            )

    def _below(self, path: Path, names: set[str]) -> Detected:
        """Return the checkpoint to read in the output directory of a run or of a zerotools job. If
        the checkpoints are numbered, this is the newest finished one.
        """
        numbered = _numbered(path, names)
        run = run_at(path, names)
        if run is not None:
            return self._of_program(run)
        if numbered:
            return self._newest(path, numbered)
        for own, entry in checkpoints_at(path, names):
            if (found_there := self.finished_entry(own, entry)) is not None:
                return _with_others(own, entry, found_there, ())
        inside = [name for name in sorted(names) if self._finished(path / name) is not None]
        known = [name for name in _FURTHER_IN if name in inside or _has_numbered(path / name)]
        if {*names} == {*inside} and len(inside) == 1:  # there is only one candidate
            return self.at(path / inside[0])
        if known:
            found = self.at(path / known[0])
            others = [name for name in inside if name != known[0]]
            note = (f"took {known[0]}; {path} holds {', '.join(others)} too",) if others else ()
            return replace(found, notes=(*note, *found.notes))
        if inside:
            raise BadRequest(
                f"{path} is not a checkpoint, but contains some: pass the path of "
                f"{' or '.join(inside)} in it"
            )
        if any(map(UNFINISHED.fullmatch, names)):
            raise UnfinishedCheckpoint(
                f"{path} holds only an unfinished checkpoint; take another checkpoint"
            )
        for name, form in self.table.items():
            if (numbered_files := form.find_by_number(path, names)) is not None:
                return Detected(name, numbered_files.path, numbered_files.notes)
        raise self._refusal(path, names)

    def _refusal(self, path: Path, names: set[str]) -> ZerotoolsError:
        for form in self.table.values():
            files = sorted(name for name in names if name.endswith(form.suffixes))
            if files and form.suffixes:
                named = " or ".join(str(path / name) for name in files[:9])
                return BadRequest(f"{path} is not a known layout of {form.title}; name {named}")
        *signs, last = (sign for form in self.table.values() for sign in form.signs)
        return BadFile(
            f"{path} is not a checkpoint: it has no {', '.join(signs)} or {last}, and no step-* or "
            "checkpoint-* directories that have them"
        )

    def _of_program(self, run: ProgramRun) -> Detected:
        """Return the checkpoint that the training program would resume from: the one that its
        tracker file names, else the newest finished one.
        """
        tracked = run.tracked()
        newest_first = list(reversed(run.entries))
        if tracked is None:
            unfinished: list[str] = []
            for entry in newest_first:
                if (found := self.finished_entry(run, entry)) is not None:
                    said = _say(entry.name, len(run.entries), unfinished)
                    return _with_others(run, entry, found, said)
                unfinished.append(entry.name)
            raise UnfinishedCheckpoint(
                f"the save of {run.path / unfinished[0]} was not finished, and {run.path} has no "
                f"other checkpoint of {run.layout.program}; take another directory"
            )
        named = next((entry for entry in run.entries if entry.name == tracked), None)
        found = None if named is None else self.finished_entry(run, named)
        if named is None or found is None:
            what = "not there" if named is None else "not finished"
            others = [e.name for e in newest_first if self.finished_entry(run, e) is not None]
            take = (
                f"pass the path of {' or '.join(others[:3])}"
                if others
                else "it has no other checkpoint"
            )
            raise BadFile(
                f"{run.path}: {run.tracker_file} names {tracked}, which is {what}; {take}"
            )
        newer = newest_first[: newest_first.index(named)]
        passed_over = f", not {', '.join(entry.name for entry in newer)}" if newer else ""
        taken = f"took {tracked}, which {run.tracker_file} names{passed_over}"
        said = (taken,) if len(run.entries) > 1 else ()
        return _with_others(run, named, found, said)

    def finished_entry(self, run: ProgramRun, entry: RunEntry) -> Detected | None:
        """Return the checkpoint in one entry of a run's directory, or None if its save did not
        finish.
        """
        if run.fault_of(entry) is not None:
            return None
        for path in run.paths_of(entry):
            if not path.is_dir():
                return self._file(path)
            names = names_in(path)
            if (found := self._here(path, names) or self._of_run(path, names)) is not None:
                return found
        return None

    def _newest(self, path: Path, steps: list[tuple[int, str]]) -> Detected:
        unfinished: list[str] = []
        for _, name in reversed(steps):
            found = self._finished(path / name)
            if found is not None:
                notes = (*_say(name, len(steps), unfinished), *found.notes)
                return Detected(found.format, found.path, notes)
            unfinished.append(name)
        raise UnfinishedCheckpoint(
            f"the save of {path / unfinished[0]} was not finished, and {path} has no other "
            "checkpoint; take another directory"
        )

    def _finished(self, path: Path) -> Detected | None:
        """Return the checkpoint at `path`; None if it does not exist, or is not finished. A job's
        checkpoint is finished if it has its manifest.
        """
        if not path.is_dir() or UNFINISHED.fullmatch(path.name):
            return None
        names = names_in(path)
        if RECORD in names and MANIFEST not in names:
            return None
        below = path / "actor"
        return self._here(path, names) or (self._finished(below) if "actor" in names else None)


def _with_others(
    run: ProgramRun, entry: RunEntry, found: Detected, notes: tuple[str, ...]
) -> Detected:
    """Return `found` with `notes` and with notes on other models of the run, which are not read."""
    model, others = run.model_of(entry)
    if others:
        notes += (f"took {model}; {run.path / entry.name} holds {', '.join(others)} too",)
    if run.others:
        notes += (f"took {run.place or run.path}; {run.path} holds {', '.join(run.others)} too",)
    return replace(found, notes=(*notes, *found.notes))


def _is_unfinished_job(names: set[str]) -> bool:
    """Return whether a directory with the files `names` is a zerotools job's checkpoint that was
    not saved completely.

    A directory that contains `.metadata` is not a job's checkpoint, because the DCP of a job is in
    the directory `dcp`.
    """
    return RECORD in names and MANIFEST not in names and METADATA not in names


def refuse_being_written(path: Path) -> None:
    """Raise an error if the directory `path` in a store is the output of a command that did not
    finish.

    Raises:
        UnfinishedCheckpoint: the directory contains the record that marks an unfinished output.
    """
    from zerotools.io.output.store_write_record import is_written

    if path != _COMPLETE.get() and not is_written(path):
        raise UnfinishedCheckpoint(
            f"{path} is not complete: it has {WRITING}, which marks an unfinished output. Run the "
            "command that writes it with --resume, or take another checkpoint"
        )


def _refuse_part_of_unfinished(path: Path) -> None:
    for parent in list(path.parents)[:_LEVELS]:
        if len(parent.parts) <= 2:
            return
        try:
            is_there = (parent / WRITING).is_file()
        except BadRequest:  # the user may have access only to a part of a bucket
            return
        if is_there:
            refuse_being_written(parent)


def _numbered(path: Path, names: set[str]) -> list[tuple[int, str]]:
    """Return (number, name) of each numbered checkpoint of a run, oldest first.

    Raises:
        BadRequest: the names have several patterns, so their numbers cannot be compared.
    """
    kinds: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        if (match := _NUMBERED.fullmatch(name)) and (path / name).is_dir():
            kinds.setdefault(match["kind"], []).append((int(match[2]), name))
    if len(kinds) > 1:
        some = " or ".join(max(steps)[1] for steps in kinds.values())
        raise BadRequest(f"{path} holds checkpoints of {len(kinds)} kinds: pass the path of {some}")
    return sorted(next(iter(kinds.values()), []))


def _has_numbered(path: Path) -> bool:
    return path.is_dir() and any(map(_NUMBERED.fullmatch, names_in(path)))


def _say(taken: str, count: int, unfinished: list[str]) -> tuple[str, ...]:
    notes = (
        [f"took {taken}, the newest of {count} checkpoints"] if count > 1 and not unfinished else []
    )
    if unfinished:
        notes.append(f"took {taken}, because the save of {', '.join(unfinished)} was not finished")
    return tuple(notes)

"""Find the checkpoints in the run directory of a program, according to the rules in
`run_directory_layouts`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats.run_directory_layouts import HERE, PROGRAMS, RunLayout
from zerotools.io.files.directory_entries import names_if_readable
from zerotools.io.files.regular_files import read_regular

_LARGEST_TRACKER = 4096
_LOOKED_AT = 4


class NamesBelow:
    """The names of the files and directories below a directory, and each directory is listed
    once.
    """

    def __init__(self, path: Path, names: set[str]) -> None:
        self.path = path
        self._names = {HERE: names}

    def at(self, place: str) -> Path:
        """Return the path of `place`, which is relative to the run's directory."""
        return self.path / place if place else self.path

    def names(self, place: str) -> set[str]:
        """Return the names in the directory `place`; an empty set if it does not exist."""
        if place not in self._names:
            above, _, own = place.rpartition("/")
            is_there = own in self.names(above) and self.at(place).is_dir()
            self._names[place] = names_if_readable(self.at(place)) if is_there else set()
        return self._names[place]


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One checkpoint of a run: its `name` in the run's directory, and the `step` in this name."""

    name: str
    step: int | None


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """A run that a known program saved in the directory `path`.

    Attributes:
        entries: the checkpoints of the run, oldest first.
        place: the directory below `path` that contains all these checkpoints.
        others: directories with checkpoints of other models of the run.
    """

    layout: RunLayout
    path: Path
    place: str
    entries: tuple[RunEntry, ...]
    others: tuple[str, ...]
    listing: NamesBelow = field(repr=False, compare=False)

    @property
    def tracker_file(self) -> str | None:
        """The file in the run's directory that names the checkpoint to continue from, or None."""
        tracker = self.layout.tracker
        return None if tracker is None else relative_entry(self.place, tracker.file)

    def tracked(self) -> str | None:
        """Return the entry that the program's tracker file names as the checkpoint to continue
        from. This entry may not exist.

        Return None if the program writes no tracker file, or if the file does not exist.

        Raises:
            BadFile: the tracker file does not contain the name of an entry.
        """
        tracker = self.layout.tracker
        if tracker is None or tracker.file not in self.listing.names(self.place):
            return None
        file = self.listing.at(relative_entry(self.place, tracker.file))
        try:
            data = read_regular(file, _LARGEST_TRACKER, is_source=False)
            text = data.decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadFile(f"{file} cannot be read: {error!s:.200}") from None
        if not re.fullmatch(r"[\w.-]{1,200}", text):
            raise BadFile(
                f"{file} has {text!r:.80}, which is not the name of a checkpoint; pass the "
                "path of a checkpoint instead"
            )
        return relative_entry(self.place, tracker.name.format(text))

    def model_of(self, entry: RunEntry) -> tuple[str, tuple[str, ...]]:
        """Return the directory of the model to read inside an entry (`HERE` for the entry itself),
        and the directories of the other models in the entry.
        """
        there = [
            model
            for model in self.layout.models
            if model and model in self.listing.names(entry.name)
        ]
        return (there[0], tuple(there[1:])) if there else (HERE, ())

    def paths_of(self, entry: RunEntry) -> list[Path]:
        """Return the paths that may hold the model of an entry, the most likely first."""
        model, _ = self.model_of(entry)
        root = relative_entry(entry.name, model)
        return [
            self.listing.at(relative_entry(root, inside))
            for inside in self.layout.inside
            if not inside or self.listing.names(relative_entry(root, inside))
        ]

    def fault_of(self, entry: RunEntry) -> str | None:
        """Return a sentence that says why the save of an entry is unfinished, or None if it is
        finished."""
        last, suffix = self.layout.written_last, self.layout.unfinished_suffix
        if last is not None and last not in self.listing.names(entry.name):
            return f"it has no {last}, which is written last"
        above, _, own = entry.name.rpartition("/")
        marker = f"{own.removesuffix('.ckpt')}{suffix}"
        if suffix is not None and marker in self.listing.names(above):
            return f"{marker} is next to it"
        return None


def relative_entry(place: str, name: str) -> str:
    """Return the relative path of the entry `name` in the directory `place`, as text."""
    return "/".join(filter(None, (place, name)))


def run_at(path: Path, names: set[str]) -> ProgramRun | None:
    """Return the run in the directory `path`, which contains `names`; None if no known program
    made it.

    Raises:
        BadRequest: the directory has several runs.
    """
    return next(runs_at(path, names), None)


def runs_at(path: Path, names: set[str]) -> Iterator[ProgramRun]:
    """Yield every run that the directory `path` may belong to, the most likely first.

    There are several candidates if several programs, or one program with several settings, use the
    same names.

    Raises:
        BadRequest: the directory has several runs of a program.
    """
    listing = NamesBelow(path, names)
    for layout in PROGRAMS:
        pattern = layout.next_to_checkpoints
        if pattern is None or any(re.fullmatch(pattern, name) for name in names):
            found = _run(layout, listing)
            if found is not None:
                yield found


def checkpoints_at(path: Path, names: set[str]) -> Iterator[tuple[ProgramRun, RunEntry]]:
    """Yield (run, checkpoint) for each program that may have saved `path`. `path` is the
    checkpoint, or the directory of a model inside it.

    A checkpoint is recognised by the program's files in it, not by its name or position.
    """
    for layout in PROGRAMS:
        models = layout.models
        holds = layout.holds
        if holds is None or not any(re.fullmatch(holds, name) for name in names):
            if path.name not in layout.models:
                continue
            models = (HERE,)
        entry = RunEntry(HERE, None)
        listing = NamesBelow(path, names)
        yield ProgramRun(replace(layout, models=models), path, HERE, (entry,), (), listing), entry


def _run(layout: RunLayout, listing: NamesBelow) -> ProgramRun | None:
    places: dict[str, tuple[RunEntry, ...]] = {}
    for pattern in layout.places:
        found = {place: _entries(layout, listing, place) for place in _matching(listing, pattern)}
        found = {place: entries for place, entries in found.items() if entries}
        if len(found) > 1 and not places:
            several = " or ".join(str(listing.at(place)) for place in found)
            raise BadRequest(
                f"{listing.path} holds {len(found)} runs of {layout.program}: name {several}"
            )
        places |= found
    if not places:
        return None
    (place, entries), *others = places.items()
    beside = tuple(other for other, _ in others)
    return ProgramRun(layout, listing.path, place, entries, beside, listing)


def _matching(listing: NamesBelow, pattern: str) -> Iterator[str]:
    """Yield the directories in `listing` that match a pattern. Each part of a directory's path must
    match the corresponding part of the pattern."""
    found = [HERE]
    for part in filter(None, pattern.split("/")):
        matches = re.compile(part).fullmatch
        found = [
            relative_entry(place, name)
            for place in found
            for name in sorted(filter(matches, listing.names(place)), key=_by_numbers)
        ]
    yield from found


def _entries(layout: RunLayout, listing: NamesBelow, place: str) -> tuple[RunEntry, ...]:
    """Return the checkpoints in the directory `place`, oldest first. The result is empty if no file
    shows that this program saved them.
    """
    matches = {name: re.fullmatch(layout.numbered, name) for name in listing.names(place)}
    found = sorted((_age(match, name), name) for name, match in matches.items() if match)
    kept = [
        RunEntry(relative_entry(place, name), step if step >= 0 else None)
        for (_, step, *_), name in found
        if layout.files or listing.at(relative_entry(place, name)).is_dir()
    ]
    holds = layout.holds
    is_marked = holds is None or any(
        re.fullmatch(holds, name)
        for entry in kept[::-1][:_LOOKED_AT]
        for name in listing.names(entry.name)
    )
    return tuple(kept) if is_marked else ()


def _age(match: re.Match[str], name: str) -> tuple[bool, int, bool, list[tuple[int, str]]]:
    """Return the sort key of a checkpoint name; the newest checkpoint has the largest key.

    `last` without a step is the newest name of all. A name with a step and `last` is the newest
    name with this step.
    """
    groups = match.groupdict()
    step = -1 if groups.get("step") is None else int(groups["step"])
    is_last = bool(groups.get("last"))
    return is_last and step < 0, step, is_last, _by_numbers(name)


def _by_numbers(name: str) -> list[tuple[int, str]]:
    return [(int(number or 0), text) for number, text in re.findall(r"(\d+)|(\D+)", name)]

"""Orbax as a `Format`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile
from zerotools.core.training_state import TrainingState
from zerotools.formats.format import (
    Format,
    Found,
    ReadOptions,
    UnfinishedCheckpoint,
    WriteOptions,
)
from zerotools.formats.orbax.file_names import (
    COMMITTED,
    DATABASE,
    ITEMS,
    PROCESS,
    STEP,
    TREE,
    UNFINISHED,
    step_number,
)
from zerotools.io.files.directory_entries import names_if_readable, names_in

if TYPE_CHECKING:
    from zerotools.core.target import Target


_LARGEST_STEP_METADATA = 2**24


class OrbaxFormat(Format):
    """Orbax, the format of JAX programs such as MaxText."""

    name = "orbax"
    title = "Orbax"
    signs = (f"{TREE} (Orbax)",)
    entry_names = "|".join((TREE, STEP, *ITEMS))
    needs_map = True
    names_state = True
    writes_state = False
    write_options = frozenset({"max_shard_bytes"})
    sidecar_names = frozenset({TREE, STEP, COMMITTED, DATABASE, "_sharding"})

    def find(self, path: Path, names: set[str], options: ReadOptions) -> Found | None:
        """Return the item (saved tree) in `path` or, if `path` is the directory of a step, the item
        that holds the model. Return None if its save did not finish.
        """
        if _fault(path, names) is not None:
            return None
        if TREE in names:
            return Found(path)
        inside = _items(path, names)
        if not inside:
            return None
        taken, *others = inside
        if _fault(path / taken, names_if_readable(path / taken)) is not None:
            return None
        note = f"took {taken}; {path} holds {', '.join(others)} too"
        return Found(path / taken, (note,) if others else ())

    def find_in_run(self, path: Path, names: set[str]) -> Found | None:
        """Return the newest finished step in the directory of a `CheckpointManager`, or None."""
        steps = sorted(
            (number, name)
            for name in names
            if (number := step_number(name)) is not None and (path / name).is_dir()
        )
        inside = [
            (name, found)
            for _, name in steps
            if (found := self.find(path / name, names_in(path / name), ReadOptions())) is not None
        ]
        if not inside:
            return None
        name, found = inside[-1]
        note = (f"took {name}, the newest of {len(inside)} checkpoints",) if len(inside) > 1 else ()
        return Found(found.path, (*note, *found.notes))

    def refuse_unfinished(self, path: Path, names: set[str]) -> None:
        for directory in (path, *_saves_in(path, names)):
            fault = _fault(directory, names_if_readable(directory))
            if fault is not None:
                raise UnfinishedCheckpoint(
                    f"{directory} is a save that Orbax did not finish: {fault}; take an older "
                    "checkpoint"
                )

    def read(self, path: Path, options: ReadOptions) -> Checkpoint:
        from zerotools.formats.orbax.read import read

        return read(path, self.name)

    def training_of(self, checkpoint: Checkpoint) -> TrainingState:
        from zerotools.formats.orbax.training_state import training_of

        return training_of(checkpoint)

    def lay_out(
        self, source: Checkpoint, training: TrainingState, destination: Path, options: WriteOptions
    ) -> Target:
        from zerotools.formats.orbax.lay_out import DEFAULT_MAX_CHUNK_BYTES, lay_out

        most = options.max_shard_bytes
        return lay_out(
            source,
            destination,
            self.name,
            max_chunk_bytes=DEFAULT_MAX_CHUNK_BYTES if most is None else most,
        )


def _items(path: Path, names: set[str]) -> list[str]:
    """Return the items (saved trees) in the directory of a step, the item with the model first."""
    usual = [name for name in ITEMS if name in names]
    asked = [*usual, *sorted(names - {*usual})] if STEP in names else usual
    return [name for name in asked if (path / name / TREE).is_file()]


def _saves_in(path: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yield the directories in `path` that Orbax may have saved, according to their names: items,
    and the newest step with its items.
    """
    steps = [name for name in names if UNFINISHED in name or step_number(name) is not None]
    newest = sorted(steps, key=lambda name: step_number(name.partition(UNFINISHED)[0]) or 0)[-1:]
    for name in (*(item for item in ITEMS if item in names), *newest):
        if (path / name).is_dir():
            yield path / name
            yield from (path / name / item for item in ITEMS if (path / name / item).is_dir())


def _is_our_output(item: Path) -> bool:
    """Return whether zerotools wrote the item. Then its step has no commit_success.txt."""
    from zerotools.io.output.output_marker import MARKER

    return (item / MARKER).is_file()


def _fault(path: Path, names: set[str]) -> str | None:
    """Return a phrase that names the evidence that the save of an item or a step did not finish;
    None if there is no such evidence.

    Orbax renames a directory when it is complete. An object store cannot rename, so there Orbax
    writes commit_success.txt last; newer releases write this file everywhere, and older ones write
    the time of the commit into _CHECKPOINT_METADATA. An OCDBT database is complete when the
    databases of all processes have been merged.
    """
    if UNFINISHED in path.name:
        return f"its name has {UNFINISHED}"
    if TREE in names and (fault := _fault_of_step(path.absolute().parent)) is not None:
        return fault
    processes = sorted(name for name in names if PROCESS.fullmatch(name))
    if processes and DATABASE not in names:
        return f"it has {processes[0]} but no {DATABASE}, which is written later"
    if COMMITTED not in names:
        inside = (name for name in _items(path, names) if (path / name / COMMITTED).is_file())
        item = next(inside, None)
        if item is not None and not _is_our_output(path / item):
            return f"{item} has {COMMITTED}, but the step has none"
        if STEP in names and not _has_commit_time(path / STEP):
            return f"{STEP} has no time of the commit, and there is no {COMMITTED}"
    if TREE not in names and DATABASE in names:
        return f"it has {DATABASE} but no {TREE}"
    return None


def _fault_of_step(path: Path) -> str | None:
    """Return a phrase that names the evidence that the save of the step in the directory `path` did
    not finish; None if there is no such evidence.
    """
    if UNFINISHED in path.name:
        return f"the name of its directory has {UNFINISHED}"
    if not (path / STEP).is_file() or (path / COMMITTED).is_file() or _has_commit_time(path / STEP):
        return None
    return f"{path / STEP} has no time of the commit, and {COMMITTED} is missing"


def _has_commit_time(path: Path) -> bool:
    """Return False if the metadata of a step says that it was begun and not committed."""
    from zerotools.io.files.read_json import read_json

    try:
        tree = read_json(path, _LARGEST_STEP_METADATA)
    except (OSError, ValueError, BadFile):
        return True  # it proves nothing: the other files are checked
    if not isinstance(tree, dict) or tree.get("init_timestamp_nsecs") is None:
        return True
    return tree.get("commit_timestamp_nsecs") is not None

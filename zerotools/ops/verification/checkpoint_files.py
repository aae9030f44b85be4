"""The files of a checkpoint, and the archives in them.

They are the files with its tensors, the files read to find these, and the files next to them in
directories of the checkpoint.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.formats import FORMATS, FormatTable, format_of
from zerotools.io.distcp.items import BlobTrees, archives_of
from zerotools.io.files.allowance import data_of
from zerotools.io.files.filenames import stays_below_root
from zerotools.io.files.listing import folders_below
from zerotools.io.output.marker import is_in_output

SIDECAR_SUFFIX = ".zerotools.json"
_ABOUT_WRITING = ".zerotools-"
_NO_STATE = (".py", ".md", ".txt", ".png", ".jpg", ".svg")
_NO_STATE_NAMES = ("LICENSE", "NOTICE", ".gitattributes", ".gitignore")


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """`subject` is the directory or the file that is the checkpoint; `names` are its files with
    their sizes in bytes, relative to `base`. Damage to one of `essential` changes a tensor or the
    state of the run: they are all but what describes the model or only loads it."""

    subject: Path
    base: Path
    names: Mapping[str, int]
    essential: frozenset[str]

    def on_disk(self) -> int:
        """Return how many bytes they take on the disk."""
        return data_of(self.base / name for name in self.names)

    def name_of(self, path: Path) -> str:
        """Return the name of a file by its path, which is below `base`."""
        return path.relative_to(self.base).as_posix()


def files_of(
    checkpoint: Checkpoint, table: FormatTable = FORMATS, subject: Path | None = None
) -> CheckpointFiles:
    """Return the files of a checkpoint as `read` returned it, without missing ones. `subject` is
    the path of the checkpoint, if it cannot be determined yet."""
    subject = subject or subject_of(checkpoint)
    base = subject if subject.is_dir() else subject.parent
    paths = {checkpoint.root / name for name in checkpoint.files}
    read = {path for path in checkpoint.stamps if _is_below(path, base.absolute())}
    paths |= {base / path.relative_to(base.absolute()) for path in read}
    needed = frozenset(paths)
    if subject.is_dir():
        named = format_of(checkpoint, table).sidecar_names
        paths |= {path for path in _beside(checkpoint, base, table) if path.name not in named}
    describing = set(checkpoint.model_sidecars.values())
    sizes, essential = {}, set()
    for path in sorted(paths):
        size = _regular_size(path)
        if size is None or not _is_below(path, base):
            continue
        name = path.relative_to(base).as_posix()
        sizes[name] = size
        if path in needed or not (
            path in describing or path.suffix in _NO_STATE or path.name in _NO_STATE_NAMES
        ):
            essential.add(name)
    return CheckpointFiles(subject, base, sizes, frozenset(essential))


def subject_of(checkpoint: Checkpoint) -> Path:
    """Return the directory that is exactly this checkpoint, or its only file. For a file that
    zerotools wrote it is the whole output, with all files next to it."""
    path = checkpoint.origin.path
    if not path.is_dir():
        return path.parent if is_in_output(path) else path
    return checkpoint.root if checkpoint.origin.other_tags else path


def archives_in(checkpoint: Checkpoint) -> dict[str, dict[int, int]]:
    """Return archives that lie one behind another in a file: {file: {offset: length}}, in bytes."""
    found = archives_of(checkpoint)
    if isinstance(checkpoint.state, BlobTrees):
        for item in checkpoint.state.places():
            found.setdefault(item.file, {})[item.offset] = item.length
    return found


def _beside(checkpoint: Checkpoint, base: Path, table: FormatTable) -> Iterator[Path]:
    """Yield files in the directories that belong to the checkpoint."""
    directories = {base, checkpoint.root}
    if format_of(checkpoint, table).run_directory(checkpoint) is None:
        directories |= {folder for folder, _ in folders_below(base)}
    for directory in directories:
        for entry in directory.iterdir():
            if not entry.name.startswith(_ABOUT_WRITING) and not entry.name.endswith(
                SIDECAR_SUFFIX
            ):
                yield entry


def _regular_size(path: Path) -> int | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _is_below(path: Path, base: Path) -> bool:
    return path.is_relative_to(base) and stays_below_root(path.relative_to(base).as_posix())

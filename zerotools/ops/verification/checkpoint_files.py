"""Find the files of a checkpoint, and the zip archives in them with the CRC-32 of each record.

The files of a checkpoint are those with its tensors, those that were read to find the tensors, and
other files in the checkpoint's directories.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats import FORMATS, FormatTable, format_of
from zerotools.io.distcp.item_chunks import BlobTrees, archives_of
from zerotools.io.files.directory_entries import folders_below, stays_below_root
from zerotools.io.files.metadata_memory_limit import data_of
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.files.tolerated_damage import raise_or_record
from zerotools.io.output.manifest_path import SIDECAR_SUFFIX
from zerotools.io.output.output_marker import is_in_output
from zerotools.io.torchzip.archive import records_of
from zerotools.io.torchzip.file_range import FileRange
from zerotools.io.torchzip.zip_directory import ZipEntry, payload_of
from zerotools.ops.verification.file_scan import Record, ScannedFile

_ABOUT_WRITING = ".zerotools-"
_NO_STATE = (".py", ".md", ".txt", ".png", ".jpg", ".svg")
_NO_STATE_NAMES = ("LICENSE", "NOTICE", ".gitattributes", ".gitignore")


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The files of one checkpoint.

    Attributes:
        subject: the directory or the file that is the checkpoint.
        base: `subject`, or its directory if it is a file.
        names: the size in bytes of each file, keyed by its name relative to `base`.
        essential: the files with tensors or training state. The other files only describe the model
            or load it.
    """

    subject: Path
    base: Path
    names: Mapping[str, int]
    essential: frozenset[str]

    def on_disk(self) -> int:
        """The number of bytes that the files take on the disk."""
        return data_of(self.base / name for name in self.names)

    def name_of(self, path: Path) -> str:
        return path.relative_to(self.base).as_posix()


def files_of(
    checkpoint: Checkpoint, table: FormatTable = FORMATS, subject: Path | None = None
) -> CheckpointFiles:
    """Return the existing files of a checkpoint that was read. `subject` is the path of the
    checkpoint; None: `subject_of` determines it."""
    subject = subject or subject_of(checkpoint)
    base = subject if subject.is_dir() else subject.parent
    paths = {checkpoint.root / name for name in checkpoint.files}
    read = {path for path in checkpoint.stamps if _is_below(path, base.absolute())}
    paths |= {base / path.relative_to(base.absolute()) for path in read}
    needed = frozenset(paths)
    if subject.is_dir():
        named = format_of(checkpoint, table).sidecar_names
        paths |= {
            path
            for path in _files_in_directories(checkpoint, base, table)
            if path.name not in named
        }
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
    """Return the directory of this checkpoint, or its file if it has only one. For a file in an
    output of zerotools, return the directory of the output."""
    path = checkpoint.origin.path
    if not path.is_dir():
        return path.parent if is_in_output(path) else path
    return checkpoint.root if checkpoint.origin.other_tags else path


def archives_in(checkpoint: Checkpoint) -> dict[str, dict[int, int]]:
    """Return the positions in bytes of archives that lie one after another in a file, as {file:
    {offset: length}}."""
    found = archives_of(checkpoint)
    if isinstance(checkpoint.state, BlobTrees):
        for item in checkpoint.state.places():
            found.setdefault(item.file, {})[item.offset] = item.length
    return found


def _files_in_directories(checkpoint: Checkpoint, base: Path, table: FormatTable) -> Iterator[Path]:
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


_BEGIN, _END, _END_BYTES = b"PK\x03\x04", b"PK\x05\x06", 22
NO_CHECKSUMS = "no checksums"


@dataclass
class FilesToScan:
    """The files to read. `faults` are pairs of a file and a sentence. `unchecked` maps files
    without checksums to the reason."""

    files: list[ScannedFile] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)


def files_to_scan(checkpoint: Checkpoint, files: CheckpointFiles) -> FilesToScan:
    """Find the records and checksums in all files. This reads zip directories and headers, but no
    tensor data."""
    found = FilesToScan()
    archives = archives_in(checkpoint)
    with OpenFiles(files.base) as opened:
        for name, size in files.names.items():
            path = files.base / name
            own = claimed_as(checkpoint, path)
            windows = archives.get(own or name, {})
            records: list[Record] = []
            try:
                with opened.source(name) as source:
                    whole = FileRange(source, path, 0, size)
                    records = sorted(_records(whole, windows, found, name), key=lambda r: r.begin)
            except (BadFile, OSError) as error:
                found.faults.append((name, str(error)))
            found.files.append(ScannedFile(name, size, records, own))
    return found


def claimed_as(checkpoint: Checkpoint, path: Path) -> str | None:
    """Return the name of the file `path` in the checkpoint's tensors; None if no tensor is
    in it."""
    for root in (checkpoint.root, checkpoint.root.absolute()):
        if path.is_relative_to(root):
            name = path.relative_to(root).as_posix()
            return name if name in checkpoint.files else None
    return None


def _records(
    whole: FileRange, windows: Mapping[int, int], found: FilesToScan, name: str
) -> Iterator[Record]:
    if not windows and not _is_zip(whole):
        found.unchecked[name] = NO_CHECKSUMS
        return
    for begin, length in sorted(windows.items()) or [(0, whole.length)]:
        if begin + length > whole.length:
            continue  # the proof of its tensor reports the truncation
        window = FileRange(whole.source, whole.path, begin, length)
        try:
            yield from _of_archive(window, found, name)
        except BadFile as error:
            found.faults.append((name, str(error)))
        except Unsupported as error:
            found.unchecked[name] = str(error)


def _is_zip(whole: FileRange) -> bool:
    """Return whether a file is a zip archive.

    Raises:
        BadFile: the file ends like a zip archive, but does not begin like one.
    """
    if whole.read(0, min(len(_BEGIN), whole.length)) == _BEGIN:
        return True
    if whole.length > _END_BYTES and whole.read(whole.length - _END_BYTES, 4) == _END:
        raise BadFile(
            f"{whole.path} ends like a zip archive, but does not begin like one: its first bytes "
            "have changed since it was saved; copy or download it again"
        )
    return False


def _of_archive(window: FileRange, found: FilesToScan, name: str) -> Iterator[Record]:
    entries = records_of(window)
    for entry in entries.values():
        if not entry.has_crc:
            found.unchecked[name] = NO_CHECKSUMS
            return
        try:
            yield _record(window, entry)
        except BadFile as error:
            raise_or_record(window.path, error)


def _record(window: FileRange, entry: ZipEntry) -> Record:
    begin = window.offset + payload_of(window, entry)
    return Record(begin, entry.length, entry.crc, entry.name)

"""The records of the zip archives in a checkpoint's files, and the CRC-32 that each should have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.files.damage import tolerate
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.torchzip.archive import records_of
from zerotools.io.torchzip.window import FileRange
from zerotools.io.torchzip.zip_directory import ZipEntry, payload_of
from zerotools.ops.verification.checkpoint_files import CheckpointFiles, archives_in
from zerotools.ops.verification.file_scan import Record, ScannedFile

_BEGIN, _END, _END_BYTES = b"PK\x03\x04", b"PK\x05\x06", 22
NO_CHECKSUMS = "no checksums"


@dataclass
class FilesToScan:
    """`faults` are (file, sentence); `unchecked` are files that contain no checksums, with the
    reason."""

    files: list[ScannedFile] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)


def files_to_scan(checkpoint: Checkpoint, files: CheckpointFiles) -> FilesToScan:
    """Read the zip directories and headers of all files; no data."""
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
    """Return the name of a file in a checkpoint's tensors, or None if it is not one of theirs."""
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
        BadFile: it ends like one and does not begin like one.
    """
    if whole.read(0, min(len(_BEGIN), whole.length)) == _BEGIN:
        return True
    if whole.length > _END_BYTES and whole.read(whole.length - _END_BYTES, 4) == _END:
        raise BadFile(
            f"{whole.path} ends as a zip archive, but does not begin as one: its first bytes have "
            "changed since it was saved; take another copy"
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
            tolerate(window.path, error)


def _record(window: FileRange, entry: ZipEntry) -> Record:
    begin = window.offset + payload_of(window, entry)
    return Record(begin, entry.length, entry.crc, entry.name)

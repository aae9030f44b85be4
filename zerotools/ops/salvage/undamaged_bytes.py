"""Find the undamaged bytes of a checkpoint's files.

A record of a torch archive is undamaged if its bytes have the recorded CRC-32. Otherwise the whole
record counts as lost, because the checksum does not show the position of the damage. Bytes of an
archive outside of undamaged records count as lost too. A file without checksums is used completely
and reported as unchecked, unless a digest in a manifest shows that its bytes have changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile
from zerotools.io.files.tolerated_damage import tolerating_damage
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.verification.checkpoint_files import CheckpointFiles, FilesToScan, files_to_scan
from zerotools.ops.verification.digest_manifest import DigestManifest
from zerotools.ops.verification.file_scan import ClaimedBytes, FileScan, scan_files
from zerotools.runs.manifest import MANIFEST, read_manifest, verify_manifest


@dataclass(frozen=True)
class SoundFile:
    """The undamaged bytes of a file of `size` bytes.

    `records` are the ranges [begin, end) of its undamaged records, in order; None if the file has
    no checksums. `is_proved` is True if a manifest records the same digest of the file.
    """

    size: int
    records: Sequence[tuple[int, int]] | None = None
    is_proved: bool = False

    def sound_bytes(self, begin: int, end: int) -> int:
        """Return the number of undamaged bytes at the beginning of the range [begin, end).

        In a record of an archive, either all bytes or no bytes count as undamaged.
        """
        if self.records is None:
            return max(0, min(end, self.size) - begin)
        at = bisect_right(self.records, (begin, self.size)) - 1
        if at < 0 or end > self.records[at][1]:
            return 0
        return end - begin


@dataclass(frozen=True)
class SoundFiles:
    """The undamaged bytes of all files of a checkpoint.

    `files` are keyed by the names that the checkpoint's tensors use. Lost files are not among them.
    `faults` are pairs of a file and a sentence. `metadata` are files that record the positions of
    tensors, and that no checksum proves to be unchanged.
    """

    files: Mapping[str, SoundFile]
    faults: Sequence[tuple[str, str]] = ()
    metadata: tuple[str, ...] = ()

    def sound_bytes(self, file: str, begin: int, end: int) -> int:
        """Return `SoundFile.sound_bytes` of the file with this name."""
        found = self.files.get(file)
        return 0 if found is None else found.sound_bytes(begin, end)

    def bytes_there(self, file: str, begin: int, end: int) -> int:
        """Return the number of bytes of the range [begin, end) that exist in the file, damaged or
        not."""
        found = self.files.get(file)
        return 0 if found is None else max(0, min(end, found.size) - begin)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """The files that neither a checksum nor a manifest proves."""
        return tuple(
            name for name, f in self.files.items() if f.records is None and not f.is_proved
        )


def files_with_tensors(checkpoint: Checkpoint, files: CheckpointFiles) -> FilesToScan:
    """Return the files that hold tensors, with their records. No tensor data is read.

    If a file has lost its zip directory, the records are found by their headers.
    """
    with tolerating_damage():
        found = files_to_scan(checkpoint, files)
    found.files = [file for file in found.files if file.claimed_as is not None]
    return found


def sound_files(
    files: CheckpointFiles,
    to_scan: FilesToScan,
    manifest: DigestManifest | None,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None] = lambda _: None,
    metadata: Sequence[str] = (),
) -> SoundFiles:
    """Read every byte of the files of `to_scan`, and return the undamaged bytes. `metadata` are
    files that record the positions of tensors and have no checksums."""
    digests = manifest is not None
    scans, _ = scan_files(
        files.base, to_scan.files, ClaimedBytes(), budget, on_bytes, digests=digests
    )
    faults = dict(to_scan.faults)
    by_job = _JobManifest(files) if to_scan.unchecked else None
    found: dict[str, SoundFile] = {}
    for each in scans:
        name, own = each.file.name, each.file.claimed_as
        assert own is not None, "only files that hold tensors are read"
        if each.error is not None:
            faults.setdefault(name, each.error)
        if each.error is not None and not each.file.records:
            continue
        if name not in to_scan.unchecked:
            if each.damaged:
                faults.setdefault(name, _damaged(files, each))
            is_proved = _has_digest(each, manifest)
            found[own] = SoundFile(each.file.size, _sound_records(each), is_proved)
        elif by_job is not None and (fault := by_job.faults.get(name)) is not None:
            faults.setdefault(name, fault)
        else:
            is_proved = _has_digest(each, manifest) or (by_job is not None and name in by_job.sound)
            found[own] = SoundFile(each.file.size, None, is_proved)
    unsure = []
    for name in metadata:
        if by_job is not None and name in by_job.faults:
            faults.setdefault(name, by_job.faults[name])
        elif manifest is None and (by_job is None or name not in by_job.sound):
            unsure.append(name)  # a manifest has every name, shape and digest
    return SoundFiles(found, tuple(faults.items()), tuple(unsure))


def _sound_records(found: FileScan) -> list[tuple[int, int]]:
    damaged = {record.begin for record, _ in found.damaged}
    return [(r.begin, r.begin + r.length) for r in found.file.records if r.begin not in damaged]


def _damaged(files: CheckpointFiles, found: FileScan) -> str:
    """Return a sentence about the damaged records of a file, with the name of the first."""
    record, crc = found.damaged[0]
    more = len(found.damaged) - 1
    others = f", and {more} more are damaged" if more else ""
    return (
        f"{files.base / found.file.name}: record {record.name!r} of {record.length} bytes has "
        f"CRC-32 {crc:08x}, but should have {record.crc:08x}{others}"
    )


def _has_digest(found: FileScan, manifest: DigestManifest | None) -> bool:
    expected = None if manifest is None else manifest.files.get(found.file.name)
    if expected is None or found.error is not None:
        return False
    return (expected.size, expected.digest) == (found.file.size, found.digest)


class _JobManifest:
    """The files that differ from a job's MANIFEST.json, and those that match it.

    Attributes:
        sound: the files that have their digest in the manifest; empty if it cannot be read.
        faults: sentences about files that differ, keyed by file.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        self.faults: dict[str, str] = {}
        self.sound: frozenset[str] = frozenset()
        if not (files.base / MANIFEST).is_file():
            return
        try:
            listed = read_manifest(files.base)
        except BadFile:
            return
        self.faults = {
            problem.file: problem.message
            for problem in verify_manifest(files.base)
            if problem.file is not None
        }
        self.sound = frozenset({MANIFEST, *listed}) - self.faults.keys()

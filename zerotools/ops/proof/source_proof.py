"""The checks of `--verify` on a source before an output is made: copies of one tensor are equal,
and bytes are the saved ones, as far as anything records them: checksums in its files, the
manifest of a job or of an output inside it, a manifest next to it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Stamp, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.flat_ranges import Ranges
from zerotools.core.quantisation_schemes import stored_tensors
from zerotools.io.files.sources import Sources
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.verification.against import beside
from zerotools.ops.verification.checkpoint_files import CheckpointFiles, subject_of
from zerotools.ops.verification.claimed_bytes import ClaimedBytes
from zerotools.ops.verification.file_scan import FileScan, Record, ScannedFile, scan
from zerotools.ops.verification.manifests.digest_manifest import FileDigest
from zerotools.ops.verification.manifests.manifest_comparison import compare_files
from zerotools.ops.verification.manifests.written_record import written_record
from zerotools.ops.verification.records import files_to_scan
from zerotools.ops.verification.replicas import differing_replicas
from zerotools.runs.manifest import MANIFEST, verify_manifest
from zerotools.runs.thinning_record import is_thinned

_ADVICE = "take another checkpoint, or leave --verify out to export it unchecked"


def prove_source(
    source: Checkpoint,
    keys: Iterable[object],
    stamps: Mapping[Path, Stamp],
    budget: MemoryBudget,
) -> None:
    """Check the tensors `keys` of `source`; the files `stamps` were read for it.

    Raises:
        BadFile: a file's digest differs from a manifest's, a record's CRC-32 from its archive's, or
        two copies of a tensor differ.
    """
    wanted = set(keys)
    tensors = {key: tensor for key, tensor in source.tensors.items() if key in wanted}
    stored = [part for tensor in tensors.values() for part in stored_tensors(tensor)]
    _check_job_manifests(source, stamps)
    _check_digests(source, stamps, budget)
    _check_records(source, stored, budget)
    sources = Sources(source.stamps)
    for _, difference in differing_replicas(source, tensors, budget, sources):
        raise BadFile(f"{difference}; {_ADVICE}")


def _check_job_manifests(source: Checkpoint, stamps: Mapping[Path, Stamp]) -> None:
    """Check the digests of a checkpoint from a job; DeepSpeed's files lie in a directory of it."""
    for directory in (source.root, source.root.parent):
        if not (directory / MANIFEST).is_file():
            continue
        below = directory.absolute()
        names = {str(path.relative_to(below)) for path in stamps if path.is_relative_to(below)}
        for problem in verify_manifest(directory, only=names.__contains__):
            if problem.file in names:
                raise BadFile(f"{problem.message}; {_ADVICE}")


def _check_digests(source: Checkpoint, stamps: Mapping[Path, Stamp], budget: MemoryBudget) -> None:
    """Check the files that were read, if a manifest next to the source or the record inside it has
    them."""
    subject = subject_of(source)
    base = subject if subject.is_dir() else subject.parent
    below = base.absolute()
    read = {
        str(path.relative_to(below)): stamp.size
        for path, stamp in stamps.items()
        if path.is_relative_to(below)
    }
    for what, known in _known_digests(
        CheckpointFiles(subject, base, read, frozenset(read)), source.root
    ):
        named = {name: digest for name, digest in known.items() if name in read}
        wanted = [ScannedFile(name, read[name]) for name in named]
        sources = Sources(source.stamps)
        found, _ = scan(base, wanted, ClaimedBytes(), budget, digests=True, sources=sources)
        _refuse_unreadable(found)
        digests = {each.file.name: FileDigest(each.file.size, str(each.digest)) for each in found}
        for name, fault in compare_files(named, digests, what):
            raise BadFile(f"{base / name} {fault}; {_ADVICE}")


def _known_digests(
    files: CheckpointFiles, root: Path
) -> Iterator[tuple[str, Mapping[str, FileDigest]]]:
    """Yield recorded digests; a checkpoint that was thinned since has none, because they are of
    other files."""
    if is_thinned(root):
        return
    record = written_record(files, root)
    if record is not None:
        yield str(record.path), record.files
    # One file may have all tensors of a directory: the manifest is of the one or of the other.
    for subject in dict.fromkeys((files.subject, files.base)):
        sidecar = beside(replace(files, subject=subject))
        if sidecar is not None and sidecar.manifest.files:
            yield str(sidecar.path), sidecar.manifest.files


def _check_records(source: Checkpoint, tensors: Iterable[Tensor], budget: MemoryBudget) -> None:
    """Check the CRC-32 of every record of a torch archive that a tensor is read from."""
    offsets: dict[str, set[int]] = {}
    for tensor in tensors:
        for file, offset in _offsets(tensor):
            offsets.setdefault(file, set()).add(offset)
    names = {name: size for name, size in source.files.items() if name in offsets}
    held = CheckpointFiles(source.origin.path, source.root, names, frozenset(names))
    to_scan = files_to_scan(source, held)
    for _, fault in to_scan.faults:
        raise BadFile(f"{fault}; {_ADVICE}")
    files = [
        replace(file, records=[*_holding(file.records, sorted(offsets[file.name]))])
        for file in to_scan.files
    ]
    found, _ = scan(
        source.root,
        files,
        ClaimedBytes(),
        budget,
        sources=Sources(source.stamps),
        records_only=True,
    )
    _refuse_unreadable(found)
    for each in found:
        for record, crc in each.damaged:
            raise BadFile(
                f"{source.root / each.file.name}: record {record.name!r} has CRC-32 {crc:08x}, "
                f"but the zip directory has {record.crc:08x}: its bytes have changed since it was "
                f"saved; {_ADVICE}"
            )


def _refuse_unreadable(found: Iterable[FileScan]) -> None:
    for each in found:
        if each.error is not None:
            raise BadFile(f"{each.error}; {_ADVICE}")


def _offsets(tensor: Tensor) -> Iterator[tuple[str, int]]:
    if isinstance(tensor.chunks, Ranges):
        yield from ((file, offset) for _, _, file, offset in tensor.chunks.each())
    else:
        yield from ((c.file, c.offset) for c in tensor.chunks if not c.box.is_empty)


def _holding(records: Sequence[Record], offsets: Sequence[int]) -> Iterator[Record]:
    """Yield the records that contain one of `offsets` of their file; both are in order."""
    for record in records:
        first = bisect_left(offsets, record.begin)
        if first < len(offsets) and offsets[first] < record.begin + record.length:
            yield record

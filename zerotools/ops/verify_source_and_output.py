"""The checks of `--verify` in commands that write an output.

`prove_source` checks the source: all copies of a tensor must be equal, and the bytes must have the
checksums that the files or a manifest record, if there are any.

`OutputProof` reads the output back before it gets its name. It compares every tile with the cast of
the source. It records the digests of tensors and files in the manifest next to the output, and in
the output's marker. So the output can be verified again later without its source, even after it was
moved.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from zerotools import formats
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key, Stamp, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.flat_ranges import Ranges
from zerotools.core.scaled_cast import stored_tensors
from zerotools.core.target import Target
from zerotools.formats import FORMATS, FormatTable, training_of
from zerotools.formats.format import ReadOptions
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.files.regular_files import source_file
from zerotools.io.files.source_stamps import Sources, recording_sources
from zerotools.io.numeric.compare_values import are_equal
from zerotools.io.numeric.dtype_casts import Cast, numpy_cast
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.ops.execution.execute import ReadBack
from zerotools.ops.execution.fill_tile import fill_tile
from zerotools.ops.execution.plan_copies import Copy, RangeCopy, plan
from zerotools.ops.execution.tile_workers import MemoryBudget, TileWorkers
from zerotools.ops.execution.tiles import Tile
from zerotools.ops.verification.checkpoint_files import (
    CheckpointFiles,
    files_of,
    files_to_scan,
    subject_of,
)
from zerotools.ops.verification.compare_manifest import adjacent_manifest, compare_files
from zerotools.ops.verification.digest_manifest import (
    DigestManifest,
    FileDigest,
    digested_tensors,
    manifest_of,
    written_record,
)
from zerotools.ops.verification.file_scan import (
    ClaimedBytes,
    FileScan,
    Record,
    ScannedFile,
    scan_files,
)
from zerotools.ops.verification.tensor_digests import ALGORITHM, digests_of
from zerotools.ops.verification.values_stored_twice import differing_replicas
from zerotools.runs.manifest import MANIFEST, verify_manifest
from zerotools.runs.thinning_record import is_thinned

_ADVICE = "take another checkpoint, or leave --verify out to export it unchecked"


def prove_source(
    source: Checkpoint,
    keys: Iterable[object],
    stamps: Mapping[Path, Stamp],
    budget: MemoryBudget,
) -> None:
    """Check the tensors `keys` of `source`. `stamps` are the files that were read, with their sizes
    and times.

    Raises:
        BadFile: the digest of a file differs from that in a manifest, the CRC-32 of a record
            differs from that in its archive, or two copies of a tensor differ.
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
    """Compare the files that were read with the manifest of a job's checkpoint, if there is one.

    DeepSpeed's files are in a directory below the checkpoint, so the parent directory may have the
    manifest.
    """
    for directory in (source.root, source.root.parent):
        if not (directory / MANIFEST).is_file():
            continue
        below = directory.absolute()
        names = {str(path.relative_to(below)) for path in stamps if path.is_relative_to(below)}
        for problem in verify_manifest(directory, only=names.__contains__):
            if problem.file in names:
                raise BadFile(f"{problem.message}; {_ADVICE}")


def _check_digests(source: Checkpoint, stamps: Mapping[Path, Stamp], budget: MemoryBudget) -> None:
    """Compare the files that were read with the digests in a manifest next to the source, or in the
    record inside it."""
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
        found, _ = scan_files(base, wanted, ClaimedBytes(), budget, digests=True, sources=sources)
        _refuse_unreadable(found)
        digests = {each.file.name: FileDigest(each.file.size, str(each.digest)) for each in found}
        for name, fault in compare_files(named, digests, what):
            raise BadFile(f"{base / name} {fault}; {_ADVICE}")


def _known_digests(
    files: CheckpointFiles, root: Path
) -> Iterator[tuple[str, Mapping[str, FileDigest]]]:
    """Yield each file of digests, with its entries. Yield nothing for a thinned checkpoint, because
    its files are newer than the digests."""
    if is_thinned(root):
        return
    record = written_record(files, root)
    if record is not None:
        yield str(record.path), record.files
    # One file may have all tensors of a directory: the manifest is of the one or of the other.
    for subject in dict.fromkeys((files.subject, files.base)):
        sidecar = adjacent_manifest(replace(files, subject=subject))
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
    found, _ = scan_files(
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
    """Yield the records that contain one of the file positions `offsets`. Both are in ascending
    order."""
    for record in records:
        first = bisect_left(offsets, record.begin)
        if first < len(offsets) and offsets[first] < record.begin + record.length:
            yield record


_READ_BYTES = 2**20


def compare_bytes(
    copies: Iterable[Copy | RangeCopy],
    source_root: Path,
    target: Target,
    directory: Path,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None],
    cast: Cast,
    sources: Sources,
) -> int:
    """Compute every tile again from the source, and compare it with the files in `directory`.

    The files are read from the disk and not from the page cache, if the system allows it. Return
    the number of compared bytes.

    Raises:
        BadFile: a byte differs. The message names the tensor, the file and the byte offset.
    """

    def compare(tile: Tile, scratch: Scratch) -> int:
        data, _ = fill_tile(reads, tile, scratch, cast=cast)
        found = scratch.read[: len(data)]
        outputs.read_into(tile.file, tile.offset, found.data)
        expected = np.frombuffer(data, np.uint8)
        if not are_equal(found, expected):
            at = int(np.argmax(found != expected))
            raise BadFile(
                f"{target.checkpoint.root / tile.file} differs from the data that was written: "
                f"byte {tile.offset + at}, in {tile.key_of(at)}, is {found[at]:#04x}, but the "
                f"source gives {expected[at]:#04x}; no output is kept: check the disk, and try "
                "again"
            )
        return len(data)

    total = 0
    with (
        OpenFiles(source_root, sources=sources) as reads,
        OpenFiles(directory) as outputs,
        TileWorkers(budget) as workers,
    ):
        for file in target.files:
            outputs.forget(file)
        _compare_carried(target, directory)
        for count in workers.each(copies, compare):
            total += count
            on_bytes(count)
    return total


def _compare_carried(target: Target, directory: Path) -> None:
    for file, file_plan in target.files.items():
        for carried in file_plan.carried:
            with (
                source_file(carried.source) as carried_from,
                carried_from.stream() as source,
                source_file(directory / file, is_source=False) as written,
                written.stream() as output,
            ):
                source.seek(carried.source_offset)
                output.seek(carried.offset)
                for done in range(0, carried.length, _READ_BYTES):
                    count = min(_READ_BYTES, carried.length - done)
                    if source.read(count) != output.read(count):
                        raise BadFile(
                            f"{target.checkpoint.root / file} differs from {carried.source} near "
                            f"byte {carried.offset + done}; no output is kept: check the disk, "
                            "and try again"
                        )


def read_written_back(
    target: Target, directory: Path, table: formats.FormatTable = formats.FORMATS
) -> Checkpoint:
    """Read the metadata of the output, and compare its names, dtypes, shapes and positions with the
    plan.

    Raises:
        BadFile: the format's reader finds another layout.
    """
    with recording_sources() as read:
        found = formats.format_of(target.checkpoint, table).read(directory, ReadOptions())
    tensors = found.tensors if target.compared is None else target.compared(found)
    expected = {**target.checkpoint.tensors, **target.carried}
    expected = {key: tensor for key, tensor in expected.items() if key not in target.unlisted}
    below = found.root.relative_to(directory)
    places = {_weight(key): _places(tensor, below) for key, tensor in tensors.items()}
    planned = {_weight(key): _places(tensor, Path()) for key, tensor in expected.items()}
    if places != planned:
        differing = sorted(
            str(key)
            for key in places.keys() | planned.keys()
            if places.get(key) != planned.get(key)
        )
        raise BadFile(
            f"{target.checkpoint.root} was read back, but {differing[0]} and "
            f"{len(differing) - 1} others do not have the planned type, shape or position; no "
            "output is kept"
        )
    return replace(found, stamps=read.stamps)


def _weight(key: Key) -> Key:
    """Return `key`, but with the role `param` for a buffer, because formats for weights do not
    distinguish buffers from parameters."""
    return Key(key.name, "param" if key.role == "buffer" else key.role)


def _places(tensor: Tensor, root: Path) -> Mapping[tuple[str, int, Box], tuple[object, ...]]:
    """Return the positions of a tensor's chunks, so that two layouts can be compared.

    File names are relative to the output directory `root`.
    """
    facts = (tensor.dtype, tensor.shape)
    chunks = (chunk for chunk in tensor.chunks if not chunk.box.is_empty)
    return {
        ((root / chunk.file).as_posix(), chunk.offset, chunk.box): facts for chunk in chunks
    } or {("", 0, Box.whole(tensor.shape)): facts}


@dataclass
class OutputProof:
    """A callable that proves the output in a staging directory, and stores its manifest."""

    source: Checkpoint
    target: Target
    budget: MemoryBudget
    on_bytes: Callable[[int], None] = lambda _: None
    cast: Cast = numpy_cast
    sources: Sources = field(default_factory=Sources)
    table: FormatTable = field(default_factory=lambda: FORMATS)
    manifest: DigestManifest | None = None

    def __call__(self, directory: Path) -> ReadBack:
        """Prove that the files in `directory` equal the cast of the source.

        Raises:
            BadFile: the bytes that the disk returns differ from those that were written.
        """
        verified = compare_bytes(
            plan(self.source, self.target.checkpoint),
            self.source.root,
            self.target,
            directory,
            self.budget,
            self.on_bytes,
            self.cast,
            self.sources,
        )
        self.manifest = manifest_of_output(
            self.target, directory, self.budget, cast=self.cast, table=self.table
        )
        files = {name: each.digest for name, each in self.manifest.files.items()}
        return ReadBack(verified, files, ALGORITHM)


def manifest_of_output(
    target: Target,
    directory: Path,
    budget: MemoryBudget,
    *,
    cast: Cast = numpy_cast,
    table: FormatTable = FORMATS,
) -> DigestManifest:
    """Return the manifest of the files of `target`, which are in `directory`.

    Raises:
        BadFile: the files differ from the planned layout, or have records with a wrong CRC-32.
    """
    found = read_written_back(target, directory, table)
    training = training_of(found, table)
    files = _file_digests(found, directory, target.checkpoint.root, budget, table)
    tensors = digests_of(found, digested_tensors(found, training), budget, cast=cast)
    return manifest_of(found, training, tensors, files, target.checkpoint.root.absolute().name)


def _file_digests(
    found: Checkpoint,
    directory: Path,
    destination: Path,
    budget: MemoryBudget,
    table: FormatTable,
) -> Mapping[str, FileDigest]:
    files = files_of(found, table, directory)
    to_scan = files_to_scan(found, files)
    scans, _ = scan_files(files.base, to_scan.files, ClaimedBytes(), budget, digests=True)
    faults = [sentence for _, sentence in to_scan.faults]
    faults += [each.error for each in scans if each.error is not None]
    faults += [
        (
            f"{files.base / each.file.name}: record {record.name!r} has CRC-32 {crc:08x}, but was "
            f"written with {record.crc:08x}"
        )
        for each in scans
        for record, crc in each.damaged
    ]
    if faults:
        said = faults[0].replace(str(directory), str(destination))
        raise BadFile(f"{said}; no output is kept: check the disk, and try again")
    return {
        (files.base / each.file.name).relative_to(directory).as_posix(): FileDigest(
            each.file.size, str(each.digest)
        )
        for each in scans
    }

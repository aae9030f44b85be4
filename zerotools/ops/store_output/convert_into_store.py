"""Carry out a conversion with its output in an object store.

Several files are made and sent at the same time. The bytes of each file are sent in order, in parts
of bounded size. The files that identify a checkpoint (an index, `.metadata`, `latest`) are sent
after all other files, then the manifest of a job, and last the marker (`write_to_store`).

A store takes the bytes of an object in order, but in an archive the CRC-32 of a record comes before
the record. So records are held in memory until their CRC-32 is known. At most `held` bytes are held
at a time, and a larger record is made twice: for its CRC-32, and to be sent.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import astuple
from pathlib import Path, PurePosixPath
from threading import Event, Lock
from typing import Any, Protocol

from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.flat_ranges import chunk_locations
from zerotools.core.target import Checksum, FilePlan, Target
from zerotools.formats import FORMATS, FormatTable, format_of
from zerotools.io.files.crc32 import crc32
from zerotools.io.files.source_stamps import Sources
from zerotools.io.numeric.dtype_casts import NONE_LOST, LostValues
from zerotools.io.numeric.torch_float16_cast import cast_for
from zerotools.io.output.output_marker import marker_text
from zerotools.io.output.write_to_store import FarStaging, check_far_destination
from zerotools.io.stores.store_path import forget_path
from zerotools.ops.conversions.conversion import (
    Conversion,
    cast_to_fp16,
    check_destination,
    refuse_damaged,
)
from zerotools.ops.execution.execute import ReadBack, WriteReport, refuse_astray
from zerotools.ops.execution.fill_tile import Losses
from zerotools.ops.execution.resume_identity import identity_of
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.serving.byte_source import ByteSource, Note
from zerotools.ops.store_output.upload_memory import UploadMemory
from zerotools.ops.verification.manifest_next_to_output import put_sidecar
from zerotools.ops.verify_source_and_output import OutputProof, prove_source
from zerotools.runs.manifest import MANIFEST, ManifestEntry, manifest_text

_LAST = ("latest", "latest_universal")
_INDEX = ".index.json"
"""The end of the file name of an index. An index lists the file of each tensor."""


class _Stopped(Exception):
    """The upload of this file was stopped because the upload of another file failed."""


def check_upload(conversion: Conversion, *, overwrite: bool, resume: bool = False) -> None:
    """Raise those errors of `perform_upload` that concern the destination.

    Raises:
        BadRequest: the destination exists, or is inside the source.
        Unsupported: the output needs a disk, or the store is read-only.
    """
    if conversion.sums_bytes:
        raise Unsupported(
            f"adapters are merged on a disk before {conversion.destination} can be written; write "
            "to a disk, and copy the output"
        )
    refuse_astray(conversion.target)
    check_far_destination(conversion.destination, resume=resume, overwrite=overwrite)
    check_destination(conversion, overwrite=overwrite)


def perform_upload(
    conversion: Conversion,
    *,
    budget: MemoryBudget,
    overwrite: bool,
    verify: bool = False,
    resume: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
    check: Callable[[WriteReport], None] = lambda _: None,
) -> WriteReport:
    """Carry out the conversion as `perform_conversion` does, with its output in an object store.

    `overwrite` removes the unfinished output of another run, but replaces no checkpoint.

    Raises:
        As `perform_conversion`; and HostUnreachable: the store does not answer.
    """
    source, target = conversion.source, conversion.target
    memory = UploadMemory.of(budget, len(target.files))
    check_upload(conversion, overwrite=overwrite, resume=resume)
    refuse_damaged(conversion)
    if verify and not conversion.is_examined:
        format_of(source, conversion.table).compare_copies(conversion.as_read or source)
        near = budget.reading(source.root)
        prove_source(source, target.checkpoint.tensors, conversion.stamps, near)
    staging = FarStaging(
        conversion.destination,
        conversion.command,
        identity_of(source, target, conversion.request, conversion.stamps),
        [*target.files, *([MANIFEST] if target.with_manifest else [])],
        resume=resume,
        overwrite=overwrite,
    )
    with ByteSource(conversion, memory.budget, strict=False, unsigned=True) as made, staging:
        upload = FileUpload(
            target, made, staging, memory=memory, on_bytes=on_bytes, table=conversion.table
        )
        report = upload.run()
        check(report)
        upload.put_manifest()
        found, proof = ReadBack(0), None
        if verify:
            cast = cast_for(cast_to_fp16(conversion), budget.workers)
            sources, near = Sources(conversion.stamps), budget.reading(conversion.destination)
            proof = OutputProof(source, target, near, on_bytes, cast, sources, conversion.table)
            found = read_stored_back(proof, conversion.destination)
        report.bytes_verified = found.nbytes
        made.check_all()
        staging.commit(marker_of(conversion.command, staging, found))
    report.manifest = put_sidecar(None if proof is None else proof.manifest, conversion.destination)
    return report


def read_stored_back(proof: Callable[[Path], ReadBack], destination: Path) -> ReadBack:
    """Prove the output at `destination` in a store. Raises BadFile if the store does not list a
    file."""
    forget_path(destination)
    try:
        return proof(destination)
    except FileNotFoundError as error:
        raise BadFile(
            f"{error.filename} was written, but the store does not list it; no output is kept: "
            "run the command again"
        ) from None


class MadeFiles(Protocol):
    """The files of an output, which are made while they are read. Several threads may read."""

    def read(self, file: str, begin: int, end: int, note: Note | None = None) -> Iterator[bytes]:
        """Yield the bytes [begin, end) of a file, as `ByteSource.read` does."""


class FileUpload:
    """Sends the files of `target`. `made` computes their bytes."""

    def __init__(
        self,
        target: Target,
        made: MadeFiles,
        staging: FarStaging,
        *,
        memory: UploadMemory,
        on_bytes: Callable[[int], None],
        table: FormatTable = FORMATS,
    ) -> None:
        self._target = target
        self._files = target.files
        self._memory = memory
        self._made = made
        self._staging = staging
        self._on_bytes = on_bytes
        self._table = table
        self._stopped = Event()
        self._lock = Lock()

    def run(self) -> WriteReport:
        """Send every file that is not yet complete in the store."""
        done = [name for name in self._staging.done if name in self._files]
        left = [name for name in self._files if name not in self._staging.done]
        sizes = _tensor_bytes(self._target)
        for name in done:
            self._on_bytes(sizes.get(name, 0))
        with ThreadPoolExecutor(self._memory.files, thread_name_prefix="upload") as pool:
            try:
                for some in self._in_order(left):
                    sending = [pool.submit(self._send, name) for name in some]
                    ended, _ = wait(sending, return_when=FIRST_EXCEPTION)
                    for each in ended:
                        each.result()
            except BaseException:  # raised again, when all have come to their ends
                self._stopped.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        report = WriteReport(files=len(self._files), resumed=tuple(done))
        for name in self._files:
            report.add_noted(self._staging.done[name]["noted"]["losses"])
        report.bytes_written = sum(sizes.get(name, 0) for name in left)
        if self._staging.took_over:
            report.notes += (
                "the store may still hold unfinished parts of objects from an earlier run, which "
                "only the store's owner can see: remove them with a lifecycle rule "
                "(AbortIncompleteMultipartUpload)",
            )
        return report

    def _in_order(self, names: list[str]) -> tuple[list[str], list[str]]:
        """Return the file names in two lists: the second has the files that identify a checkpoint,
        which are sent last."""
        signs = {*format_of(self._target.checkpoint, self._table).signs, *_LAST}
        last = [n for n in names if PurePosixPath(n).name in signs or n.endswith(_INDEX)]
        return [name for name in names if name not in last], last

    def _send(self, name: str) -> None:
        lost: dict[Key, LostValues] = {}

        def note(count: int, losses: Losses) -> None:
            with self._lock:
                for key, each in losses:
                    lost[key] = lost.get(key, NONE_LOST) + each
                self._on_bytes(count)

        plan, digest = self._files[name], hashlib.sha256()
        is_digested = self._target.with_manifest

        def pieces() -> Iterator[bytes]:
            held = self._memory.held_bytes
            for piece in file_stream(self._made, name, plan, held, note):
                if self._stopped.is_set():
                    raise _Stopped
                if is_digested:
                    digest.update(piece)
                if piece:
                    yield piece

        written = self._staging.upload(
            name,
            pieces(),
            size=plan.size,
            part_bytes=self._memory.part_bytes(plan.size),
            parts=self._memory.parallel(plan.size),
        )
        assert written.size == plan.size, f"{name} has {written.size} bytes, not {plan.size}"
        losses = [[key.name, key.role, *astuple(each)] for key, each in lost.items()]
        more = {"sha256": digest.hexdigest()} if is_digested else {}
        self._staging.add(name, written, {"losses": losses, **more})

    def put_manifest(self) -> None:
        """Send a job's manifest, with the digests of all files as they were sent."""
        if not self._target.with_manifest:
            return
        entries = {
            name: ManifestEntry(each["size"], each["noted"]["sha256"])
            for name, each in sorted(self._staging.done.items())
            if name in self._files
        }
        data = manifest_text(entries).encode()
        self._staging.add(MANIFEST, self._staging.put(MANIFEST, data), {})


def _tensor_bytes(target: Target) -> Mapping[str, int]:
    sizes: dict[str, int] = {}
    for tensor in target.checkpoint.tensors.values():
        for file, numel in chunk_locations(tensor):
            sizes[file] = sizes.get(file, 0) + numel * tensor.dtype.itemsize
    return sizes


def marker_of(command: str, staging: FarStaging, found: ReadBack) -> bytes:
    """Return the marker of the output that `command` wrote. `staging` has the sizes of its files,
    and `found` the digests of files that were read back."""
    files: dict[str, dict[str, Any]] = {}
    for name, each in sorted(staging.done.items()):
        files[name] = {"size": each["size"], "etag": each["etag"]}
        if name in found.digests:
            files[name]["digest"] = found.digests[name]
    algorithm = found.algorithm if found.digests else None
    return marker_text(command, files, algorithm, {"run": staging.run}).encode()


def file_stream(
    source: MadeFiles, file: str, plan: FilePlan, held: int, note: Note
) -> Iterator[bytes]:
    """Yield all bytes of `file`, in blocks of bounded size.

    `note` is as in `ByteSource.read`, and counts no byte twice. Raises the errors of
    `ByteSource.read`.
    """
    patches = _Patches()
    ordered = sorted(plan.checksums, key=lambda each: each.start)
    at = first = 0
    while first < len(ordered):
        begin, end, following = _span(ordered, first, held)
        if following == first:  # too large to be held
            large = ordered[first]
            crc = 0
            for data in source.read(file, large.start, large.start + large.length):
                crc = crc32(data, crc)
            patches.add(large, crc)
            first += 1
            continue
        yield from patches.put(source.read(file, at, begin, note), at)
        made = bytearray()
        for data in source.read(file, begin, end, note):
            made += data
        view = memoryview(made)
        for each in ordered[first:following]:
            start = each.start - begin
            patches.add(each, crc32(view[start : start + each.length]))
        view.release()
        yield from patches.put(iter((bytes(made),)), begin)
        at, first = end, following
    yield from patches.put(source.read(file, at, plan.size, note), at)


def _span(ordered: Sequence[Checksum], first: int, held: int) -> tuple[int, int, int]:
    """Return the byte range [begin, end) of the records from number `first` on that fit into `held`
    bytes, and the number of the next record."""
    begin = end = min(ordered[first].start, *ordered[first].target_offset)
    number = first
    while number < len(ordered):
        stop = ordered[number].start + ordered[number].length
        if stop - begin > held:
            break
        end, number = stop, number + 1
    return begin, end, number


class _Patches:
    """The known checksums of records, sorted by the positions where a file stores them."""

    def __init__(self) -> None:
        self._known: list[tuple[int, bytes]] = []

    def add(self, checksum: Checksum, crc: int) -> None:
        for offset in checksum.target_offset:
            insort(self._known, (offset, crc.to_bytes(4, "little")))

    def put(self, pieces: Iterator[bytes], at: int) -> Iterator[bytes]:
        """Yield the blocks `pieces` with the known checksums written into them. The first block
        begins at byte `at` of the file."""
        for piece in pieces:
            first = bisect_left(self._known, (at - 3, b""))
            last = bisect_left(self._known, (at + len(piece), b""))
            if first < last:
                changed = bytearray(piece)
                for offset, data in self._known[first:last]:
                    begin, end = max(offset, at), min(offset + 4, at + len(piece))
                    changed[begin - at : end - at] = data[begin - offset : end - offset]
                yield bytes(changed)
            else:
                yield piece
            at += len(piece)

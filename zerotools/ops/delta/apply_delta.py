"""Apply deltas to a model, and write the result to a disk or to an object store. All deltas are
checked before anything is written.
"""

from __future__ import annotations

import heapq
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.io.files.exclusive_directory import copy_access
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.files.open_source import RemotePath
from zerotools.io.output.journal import Journal
from zerotools.io.output.manifest_path import sidecar_of_path
from zerotools.io.output.output_marker import MARKER
from zerotools.io.output.staging import partial_of
from zerotools.io.output.write_to_store import FarStaging
from zerotools.ops.conversions.conversion import (
    Conversion,
    allocated_bytes,
    check_output,
    check_part,
    refuse_merging,
)
from zerotools.ops.delta.delta_chain import COMMAND, ApplyRequest, DeltaChain
from zerotools.ops.delta.delta_file import DeltaTensor
from zerotools.ops.delta.make_delta import block_workers, in_order
from zerotools.ops.delta.models_of_delta import is_model_directory
from zerotools.ops.delta.prove_applied import AppliedProof
from zerotools.ops.execution.divide_output import ByteRange, Extent, PartPlan, cut_files, plan_part
from zerotools.ops.execution.execute import (
    Fill,
    Publication,
    ReadBack,
    Transfer,
    WriteReport,
    write_target,
)
from zerotools.ops.execution.execute_part import PartReport, digest_of, end_complete, write_part
from zerotools.ops.execution.output_part import OutputPart
from zerotools.ops.serving.byte_source import Note
from zerotools.ops.store_output.convert_into_store import (
    FileUpload,
    check_upload,
    marker_of,
    read_stored_back,
)
from zerotools.ops.store_output.upload_memory import UploadMemory
from zerotools.ops.thinning.directory_snapshot import Entries
from zerotools.ops.verification.manifest_next_to_output import put_sidecar
from zerotools.runs.job_checkpoint_file_names import MANIFEST

_INDEX = ".index.json"
"""The end of the file name of an index. An index lists the file of each tensor."""


def apply_deltas(
    chain: DeltaChain,
    destination: Path,
    request: ApplyRequest,
    *,
    in_place: Conversion | None = None,
) -> WriteReport:
    """Write the model that `chain` makes to the directory `destination`, on a disk or in an object
    store.

    With `in_place`, `destination` contains the old model, which the deltas change. The new model
    replaces it in one step, and the old files without weights are kept unless the deltas replace
    them. The destination is complete if this function returns, and unchanged if it raises an error.

    Raises:
        BadRequest: the destination exists or is inside the model, or a delta was not made from this
            model.
        BadFile: a delta or the model is damaged, or its files changed meanwhile.
        HostUnreachable: the store does not answer.
    """
    conversion = chain.conversion_to(destination)
    if isinstance(destination, RemotePath):
        return apply_into_store(chain, conversion, request)
    proof = AppliedProof(chain, conversion, request) if request.verify else None
    if in_place is None:
        there = allocated_bytes(partial_of(destination)) if request.resume else 0
        check_output(conversion, overwrite=request.overwrite, there=there)
        publication = Publication(command=COMMAND, overwrite=request.overwrite, read_back=proof)
    else:
        others = _entries_in_place(in_place, destination)
        written = {MARKER, *conversion.target.files}
        finish = partial(_carry_others, in_place, others, written=written)
        publication = Publication(
            command=COMMAND, read_back=proof, replaces=others.check_unchanged, finish=finish
        )
    report = write_target(
        conversion.target,
        _filling(chain, conversion, request),
        transfer=Transfer(budget=request.budget, on_bytes=request.on_bytes),
        publication=publication,
        identity=chain.identity,
        resume=request.resume,
    )
    if in_place is None:
        manifest = None if proof is None else proof.manifest
        report.manifest = put_sidecar(manifest, destination)
    else:  # a manifest next to the directory has the digests of the old files
        sidecar_of_path(destination).unlink(missing_ok=True)
    return report


def plan_apply_part(chain: DeltaChain, destination: Path, part: OutputPart) -> PartPlan:
    """Return the plan for writing one part of the result of `chain`. Raises BadRequest if adapters
    must be merged into the model first.
    """
    conversion = chain.conversion_to(destination)
    refuse_merging(conversion)
    return plan_part(conversion.target, part)


def apply_part(
    chain: DeltaChain, destination: Path, planned: PartPlan, request: ApplyRequest
) -> PartReport:
    """Write one part of the model that `chain` makes. The run that completes the last missing part
    gives the output its name, as `perform_part` does for conversions.

    Raises:
        BadRequest: for the reasons of `apply_deltas`; or the output was begun with other deltas, or
            in another number of parts.
        BadFile: a delta or the model is damaged, or its files changed meanwhile.
    """
    conversion, identity = chain.conversion_to(destination), chain.identity
    if end_complete(destination, digest_of(identity)):
        return PartReport(files=len(planned.share))
    check_part(conversion, planned, overwrite=request.overwrite)
    report = write_part(
        planned,
        conversion.target,
        _filling(chain, conversion, request, planned),
        identity,
        transfer=Transfer(budget=request.budget, on_bytes=request.on_bytes),
        publication=Publication(command=COMMAND, overwrite=request.overwrite),
    )
    if not report.missing:
        put_sidecar(None, destination)
    return report


def _filling(
    chain: DeltaChain, conversion: Conversion, request: ApplyRequest, part: PartPlan | None = None
) -> Fill:
    """Return the function that fills the files of the result, or only their bytes in `part`."""
    files = conversion.target.files
    cut = frozenset[str]() if part is None else cut_files(conversion.target, part.shares)

    def bounds_of(file: str) -> ByteRange:
        return ByteRange(0, files[file].size) if part is None else part.share[file]

    def blocks(needed: Collection[str]) -> Iterator[tuple[DeltaTensor, int, ByteRange]]:
        for tensor in chain.header.tensors:
            if tensor.file in needed:
                for number, bounds in _blocks_inside(tensor, bounds_of(tensor.file)):
                    yield tensor, number, bounds

    def fill(
        directory: Path, journal: Journal, needed: Mapping[str, int], report: WriteReport
    ) -> None:
        left = dict(needed)
        with chain, OpenFiles(directory, os.O_RDWR) as output:

            def work(block: tuple[DeltaTensor, int, ByteRange]) -> tuple[str, int]:
                tensor, number, (first, last) = block
                begin, _ = tensor.block(number)
                data = chain.block(tensor, number)[first - begin : last - begin]
                output.write_at(tensor.file, first, data)
                return tensor.file, len(data)

            def end(file: str) -> None:
                output.sync(file)
                journal.add(file, {"losses": [], "checksummed": []} if file in cut else [])

            for file in needed:
                try:
                    _write_plain(directory / file, chain.plain_bytes(file), bounds_of(file))
                except OSError as error:
                    path = conversion.destination / file
                    raise OSError(error.errno, error.strerror, str(path)) from None
            for file in (file for file, nbytes in needed.items() if not nbytes):
                end(file)
            for file, nbytes in in_order(blocks(needed), work, block_workers(request.budget)):
                request.on_bytes(nbytes)
                report.bytes_written += nbytes
                left[file] -= nbytes
                if not left[file]:
                    end(file)
            chain.check_sources()

    return fill


def _blocks_inside(tensor: DeltaTensor, bounds: ByteRange) -> Iterator[tuple[int, ByteRange]]:
    """Yield each block with elements in the bytes `bounds` of the tensor's file: its number, and
    the bytes of these elements."""
    size = tensor.dtype.itemsize
    extent = Extent(tensor.file, tensor.offset, tensor.numel, size)
    first, stop = (tensor.offset + each * size for each in extent.inside(bounds))
    for number in range(tensor.blocks):
        begin, end = tensor.block(number)
        begin, end = max(begin, first), min(end, stop)
        if begin < end:
            yield number, ByteRange(begin, end)


def _write_plain(path: Path, parts: Iterable[tuple[int, bytes]], bounds: ByteRange) -> None:
    """Write those bytes of `parts` that lie in `bounds`."""
    with path.open("r+b") as stream:
        for offset, data in parts:
            begin, end = max(offset, bounds.begin), min(offset + len(data), bounds.end)
            if begin < end:
                stream.seek(begin)
                stream.write(data[begin - offset : end - offset])


def _entries_in_place(model: Conversion, path: Path) -> Entries:
    """Return the files and directories in `path`, the directory of `model`.

    Raises BadRequest if `path` is not a model directory, because a change in place would lose
    optimizer state or other files of weights.
    """
    if path.is_symlink():
        raise BadRequest(
            f"{path} is a symbolic link; name its target, {path.resolve()}, so that it is clear "
            "which model is changed"
        )
    if not path.is_dir():
        raise BadRequest(
            f"{path} is not a directory, so it cannot be changed in place; name the directory of "
            "the model"
        )
    if not model.table[model.source.origin.format].is_exported:
        raise BadRequest(
            f"{path} is not a directory of safetensors, so a change in place would lose its "
            "optimizer state; name an output directory"
        )
    if not is_model_directory(path, model.table):
        raise BadRequest(
            f"{path} has other files of weights than safetensors, which a change in place would "
            "replace; name an output directory"
        )
    try:
        return Entries.of_any(path)
    except OSError as error:
        raise BadRequest(f"{error.filename} cannot be read: {error.strerror}") from None


def _carry_others(model: Conversion, others: Entries, directory: Path, written: set[str]) -> None:
    """Link those files of `others` into `directory` that are neither weights nor written by the
    deltas. New files and directories get the owners and permissions of the old ones."""
    gone = {*model.source.files, *written, MANIFEST}
    try:
        for name in others.directories():
            (directory / name).mkdir(exist_ok=True)
        for name in others.files():
            if name in gone or ("/" not in name and name.endswith(_INDEX)):
                continue
            entry, path = others.root / name, directory / name
            if entry.is_symlink():
                path.symlink_to(entry.readlink())
            else:
                _link(entry, path)
        for name in reversed(others.directories()):
            copy_access(others.status[name], directory / name)
            shutil.copystat(others.root / name, directory / name)
    except FileExistsError as error:
        raise BadRequest(
            f"{error.filename2 or error.filename} is a file in one of the two directories and a "
            f"directory in the other; move the one in {others.root} elsewhere"
        ) from None
    weights = next(iter(model.source.files))
    for name in written:
        old = others.root / name  # a link, such as those of the Hub's cache, has the file's access
        copy_access((old if old.is_file() else others.root / weights).stat(), directory / name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
        copy_access(source.stat(), target)
        with target.open("rb") as copy:
            os.fsync(copy.fileno())


def apply_into_store(
    chain: DeltaChain, conversion: Conversion, request: ApplyRequest
) -> WriteReport:
    """Write the result of `chain` to the object store that `conversion` names.

    The digest of each block is checked before the block is sent, and the marker of the output is
    written after the last object. Raises the errors of `apply_deltas`.
    """
    target, destination = conversion.target, conversion.destination
    memory = UploadMemory.of(request.budget, len(target.files))
    check_upload(conversion, overwrite=request.overwrite, resume=request.resume)
    staging = FarStaging(
        destination,
        conversion.command,
        chain.identity,
        [*target.files],
        resume=request.resume,
        overwrite=request.overwrite,
    )
    workers = max(1, block_workers(memory.budget) // memory.files)
    with chain, staging:
        report = FileUpload(
            target,
            AppliedFiles(chain, workers),
            staging,
            memory=memory,
            on_bytes=request.on_bytes,
            table=conversion.table,
        ).run()
        found, proof = ReadBack(0), None
        if request.verify:
            proof = AppliedProof(chain, conversion, request)
            found = read_stored_back(proof, destination)
        report.bytes_verified = found.nbytes
        chain.check_sources()
        staging.commit(marker_of(conversion.command, staging, found))
    report.manifest = put_sidecar(None if proof is None else proof.manifest, destination)
    return report


class AppliedFiles:
    """The files of the model that a chain of deltas produces. `workers` threads compute a file
    while it is read."""

    def __init__(self, chain: DeltaChain, workers: int) -> None:
        self._chain = chain
        self._workers = workers
        self._tensors: dict[str, list[DeltaTensor]] = {}
        for tensor in sorted(chain.header.tensors, key=lambda each: each.offset):
            self._tensors.setdefault(tensor.file, []).append(tensor)

    def read(self, file: str, begin: int, end: int, note: Note | None = None) -> Iterator[bytes]:
        """Yield the bytes [begin, end) of a file, in order. `note` is called with the number of
        bytes of each made block. Raises the errors of `DeltaChain.block` and
        `DeltaChain.plain_bytes`."""

        def make(block: tuple[DeltaTensor, int]) -> tuple[int, bytes]:
            tensor, number = block
            data = self._chain.block(tensor, number)
            if note is not None:
                note(len(data), [])
            return tensor.block(number)[0], bytes(data)

        blocks = (
            (tensor, number)
            for tensor in self._tensors.get(file, ())
            for number in range(tensor.blocks)
            if tensor.block(number)[0] < end and tensor.block(number)[1] > begin
        )
        made = in_order(blocks, make, self._workers)
        plain = self._chain.plain_bytes(file)
        for offset, data in heapq.merge(plain, made, key=itemgetter(0)):
            yield data[max(0, begin - offset) : max(0, end - offset)]

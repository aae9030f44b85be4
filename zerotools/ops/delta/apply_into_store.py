"""Write the result of deltas to an object store, without a copy on a disk."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from operator import itemgetter

from zerotools.io.output.write_to_store import FarStaging
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.delta.delta_chain import ApplyRequest, DeltaChain
from zerotools.ops.delta.delta_file import DeltaTensor
from zerotools.ops.delta.make_delta import block_workers, in_order
from zerotools.ops.delta.prove_applied import AppliedProof
from zerotools.ops.execution.execute import ReadBack, WriteReport
from zerotools.ops.prove_source_and_output import put_sidecar
from zerotools.ops.serving.byte_source import Note
from zerotools.ops.store_output.convert_into_store import (
    FileUpload,
    check_upload,
    marker_of,
    read_stored_back,
)
from zerotools.ops.store_output.upload_memory import UploadMemory


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

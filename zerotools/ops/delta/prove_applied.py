"""Prove that the result of deltas, as it was written, has the digests that the deltas record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.io.files.open_files import OpenFiles
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.delta.delta_chain import ApplyRequest, DeltaChain
from zerotools.ops.delta.delta_file import DeltaTensor, digest_of
from zerotools.ops.delta.make_delta import block_workers, in_order
from zerotools.ops.execution.execute import ReadBack
from zerotools.ops.verification.digest_manifest import DigestManifest
from zerotools.ops.verification.tensor_digests import ALGORITHM
from zerotools.ops.verify_source_and_output import manifest_of_output

_ADVICE = "no output is kept: check the disk, and try again"


@dataclass
class AppliedProof:
    """A callable that reads the result of `chain` back, compares it with the digests of the last
    delta, and stores its manifest."""

    chain: DeltaChain
    conversion: Conversion
    request: ApplyRequest
    manifest: DigestManifest | None = None

    def __call__(self, directory: Path) -> ReadBack:
        """Prove the files in `directory`. They are read from the disk and not from the page cache,
        if the system allows it.

        Raises:
            BadFile: a file differs from what the deltas make. The message names the block.
        """
        target, budget = self.conversion.target, self.request.budget.reading(directory)
        verified = 0
        with OpenFiles(directory) as output:

            def check(block: tuple[DeltaTensor, int]) -> int:
                return self._check_block(output, *block)

            for file in target.files:
                output.forget(file)
                self._check_plain(output, file)
            for count in in_order(self._blocks(), check, block_workers(budget)):
                verified += count
                self.request.on_bytes(count)
        table = self.conversion.table
        self.manifest = manifest_of_output(target, directory, budget, table=table)
        files = {name: each.digest for name, each in self.manifest.files.items()}
        return ReadBack(verified, files, ALGORITHM)

    def _blocks(self) -> Iterator[tuple[DeltaTensor, int]]:
        for tensor in self.chain.header.tensors:
            for number in range(tensor.blocks):
                yield tensor, number

    def _check_block(self, output: OpenFiles, tensor: DeltaTensor, number: int) -> int:
        begin, end = tensor.block(number)
        data = bytearray(end - begin)
        output.read_into(tensor.file, begin, memoryview(data))
        if digest_of(data) != self.chain.digest_after(tensor, number):
            raise BadFile(
                f"{self.conversion.destination / tensor.file} differs from the data that was "
                f"written: block {number} of {tensor.name} has another digest than the delta "
                f"records; {_ADVICE}"
            )
        return len(data)

    def _check_plain(self, output: OpenFiles, file: str) -> None:
        for offset, expected in self.chain.plain_bytes(file):
            data = bytearray(len(expected))
            output.read_into(file, offset, memoryview(data))
            if data != expected:
                raise BadFile(
                    f"{self.conversion.destination / file} differs from the data that was "
                    f"written, near byte {offset}; {_ADVICE}"
                )

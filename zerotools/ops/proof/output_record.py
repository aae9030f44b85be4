"""The record that `--verify` makes of an output: the digests of its tensors and files, as the
manifest next to it, and those of its files also in its marker.

Both are taken from the data that the disk returns, before the output has its name. So a verified
output can be verified again without its source, also after it is moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.target import Target
from zerotools.formats import FORMATS, FormatTable, training_of
from zerotools.io.files.allowance import data_in
from zerotools.io.files.listing import is_there
from zerotools.io.files.sources import Sources
from zerotools.io.numeric.numpy_dtypes import Cast, numpy_cast
from zerotools.ops.execution.execute import ReadBack
from zerotools.ops.execution.plan import plan
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.proof.output_proof import compare_bytes, read_written_back
from zerotools.ops.verification.checkpoint_files import files_of
from zerotools.ops.verification.claimed_bytes import ClaimedBytes
from zerotools.ops.verification.digests import ALGORITHM, digests_of
from zerotools.ops.verification.file_scan import scan
from zerotools.ops.verification.manifests.digest_manifest import (
    DigestManifest,
    FileDigest,
    digested,
    manifest_of,
    put_digest_manifest,
    read_digest_manifest,
    remove_digest_manifest,
    sidecar_of_path,
)
from zerotools.ops.verification.records import files_to_scan


@dataclass
class OutputProof:
    """Called with the staging directory of an output: proves it, and keeps its manifest."""

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
            BadFile: the disk returns other bytes than the written ones.
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
        BadFile: they are not as they were laid out, or have records with a wrong CRC-32.
    """
    found = read_written_back(target, directory, table)
    training = training_of(found, table)
    files = _file_digests(found, directory, target.checkpoint.root, budget, table)
    tensors = digests_of(found, digested(found, training), budget, cast=cast)
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
    scans, _ = scan(files.base, to_scan.files, ClaimedBytes(), budget, digests=True)
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


def check_sidecar(destination: Path, *, overwrite: bool) -> None:
    """Raise an error if a manifest would lie next to the output that it does not describe. The
    manifest of a removed output does not count: it is replaced with the new output.

    Raises:
        BadRequest: see above.
    """
    path = sidecar_of_path(destination)
    if not is_there(path) or _is_left_over(path, destination):
        return
    if not overwrite:
        raise BadRequest(
            f"{path} exists, and would be used as the manifest of the output; remove it if it "
            "belongs to an earlier output, choose another output, or pass --overwrite"
        )
    try:
        read_digest_manifest(path, lambda: data_in(destination))
    except (BadFile, Unsupported, OSError):
        raise BadRequest(
            f"{path} is not a manifest that zerotools reads, so --overwrite does not replace it; "
            "remove it, or choose another output"
        ) from None


def _is_left_over(path: Path, destination: Path) -> bool:
    """Return whether it is the manifest of a former `destination` that does not exist any more.
    Under another name, the user may want to compare the output with it."""
    if is_there(destination) or not path.is_file() or path.is_symlink():
        return False
    try:
        return read_digest_manifest(path, lambda: 0).name == destination.name
    except (BadFile, Unsupported, OSError):
        return False


def put_sidecar(manifest: DigestManifest | None, destination: Path) -> Path | None:
    """Write the manifest next to a finished output. If the output was not verified, remove the
    manifest of the one that it replaced.

    Raises:
        BadRequest: it cannot be written.
    """
    path = sidecar_of_path(destination)
    try:
        if manifest is None:
            remove_digest_manifest(path)
            return None
        put_digest_manifest(manifest, path)
    except OSError as error:
        raise BadRequest(
            f"{destination} is complete and verified, but {path} cannot be written: "
            f"{error.strerror}; write it by zerotools verify --write-manifest"
        ) from error
    return path

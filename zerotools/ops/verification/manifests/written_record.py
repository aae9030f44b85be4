"""The record inside an output of zerotools: the digests of its files as they were written.

It is in the marker, so it moves with the output, and the two appear under their name at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.io.output.marker import MARKER, read_written
from zerotools.ops.verification.checkpoint_files import CheckpointFiles
from zerotools.ops.verification.digests import ALGORITHM
from zerotools.ops.verification.manifests.digest_manifest import DigestManifest, FileDigest
from zerotools.runs.thinning_record import is_thinned


@dataclass(frozen=True)
class WrittenRecord:
    """`command` is that of zerotools that wrote the files, `files` have their digests."""

    path: Path
    command: str
    files: Mapping[str, FileDigest]

    def conflict(self, manifest: DigestManifest) -> str | None:
        """Return a file for which a manifest differs, so that it is of another checkpoint, or
        None."""
        for name, own in self.files.items():
            other = manifest.files.get(name)
            if other is not None and other != own:
                return name
        return None


def written_record(files: CheckpointFiles, root: Path) -> WrittenRecord | None:
    """Return the record of a checkpoint that is a verified output; None for others, also for one at
    `root` that was thinned later.

    Raises:
        BadFile: it is damaged.
    """
    if not files.subject.is_dir() or is_thinned(root):
        return None
    written = read_written(files.base)
    if written is None or written.algorithm != ALGORITHM:
        return None
    digests = {name: FileDigest(size, digest) for name, (size, digest) in written.files.items()}
    path = files.base / MARKER
    if not digests.keys() & files.names.keys():
        raise BadFile(
            f"{path} has digests of files that are not here: it was copied from another output; "
            "remove it"
        )
    return WrittenRecord(path, written.command, digests)

"""What a verification found, and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.io.numeric.value_counts import ValueCounts
from zerotools.ops.verification.checkpoint_files import CheckpointFiles
from zerotools.ops.verification.manifests.digest_manifest import DigestManifest
from zerotools.ops.verification.portion import WHOLE, Portion


class Soundness(StrEnum):
    """`WHOLE`: every byte of every tensor and of the state was checked, and nothing is wrong.
    `UNCHECKED`: nothing is wrong as far as was looked, and bytes were not or could not be checked.
    `FAULTY`: something is wrong."""

    WHOLE = "whole"
    UNCHECKED = "unchecked"
    FAULTY = "faulty"

    @property
    def conclusion(self) -> str:
        """The words in which `zerotools verify` ends."""
        return _CONCLUSIONS[self]


_CONCLUSIONS = {
    Soundness.WHOLE: "WHOLE",
    Soundness.UNCHECKED: "CANNOT TELL",
    Soundness.FAULTY: "DAMAGED",
}


class Check(StrEnum):
    """What a finding is a finding of. `MANIFEST`: something is not as the manifest says, `CHANGED`:
    a file changed while it was verified."""

    STRUCTURE = "structure"
    BYTES = "bytes"
    MEANING = "meaning"
    MANIFEST = "manifest"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong: a sentence, with the file and the tensor where it is about one. `file` is
    relative to the checkpoint's directory."""

    check: Check
    message: str
    file: str | None = None
    tensor: Key | None = None


@dataclass(frozen=True)
class Comparison:
    """With which manifest or checkpoint it was compared, and how many tensors have the values that
    are said there. `by_files` says that the files were compared, byte by byte, and `vouched` are
    those that are equal then. `notes` are sentences on what only one of the two holds. `is_exact`
    says that every bit of all tensors was compared."""

    path: Path
    tensors: int = 0
    by_files: bool = False
    vouched: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    is_exact: bool = False


@dataclass(frozen=True)
class Verification:
    """`unchecked` are files of which nothing tells whether their bytes are those that were saved,
    each with the reason. `odd` counts what is not finite by tensor, also where that is no damage.
    `is_fast` says that bytes were left out, `bytes_read` how many were read. `comparison` is with a
    manifest; None: there was none. `manifest` is that of the checkpoint itself, where it was asked
    for and nothing is wrong. `as_written` is the comparison with the record inside an output; None:
    it has none. `portion` is what was looked at: of a part, the verdict is of that alone."""

    checkpoint: Checkpoint
    files: CheckpointFiles
    findings: tuple[Finding, ...]
    unchecked: Mapping[str, str] = field(default_factory=dict)
    odd: Mapping[Key, ValueCounts] = field(default_factory=dict)
    is_fast: bool = False
    bytes_read: int = 0
    comparison: Comparison | None = None
    manifest: DigestManifest | None = None
    as_written: Comparison | None = None
    portion: Portion = WHOLE

    @property
    def verdict(self) -> Soundness:
        if self.findings:
            return Soundness.FAULTY
        if self.is_fast or self.unchecked.keys() & self.files.essential:
            return Soundness.UNCHECKED
        return Soundness.WHOLE

    @property
    def is_whole(self) -> bool:
        """Whether everything was checked, and nothing is wrong."""
        return self.verdict is Soundness.WHOLE

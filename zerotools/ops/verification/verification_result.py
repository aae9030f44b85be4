"""The faults that a verification found, its verdict, and its JSON
(docs/reference/verify-json.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.io.numeric.compare_values import ValueCounts
from zerotools.ops.verification.checkpoint_files import CheckpointFiles
from zerotools.ops.verification.digest_manifest import DigestManifest
from zerotools.ops.verification.divide_checks import WHOLE, Portion


class Soundness(StrEnum):
    """The verdict of a verification.

    `WHOLE`: every byte of every tensor and of the state was checked, and no check found a fault.
    `UNCHECKED`: no check found a fault, but some bytes were not checked. `FAULTY`: a check found a
    fault.
    """

    WHOLE = "whole"
    UNCHECKED = "unchecked"
    FAULTY = "faulty"

    @property
    def conclusion(self) -> str:
        """The last words in the output of `zerotools verify`."""
        return _CONCLUSIONS[self]


_CONCLUSIONS = {
    Soundness.WHOLE: "WHOLE",
    Soundness.UNCHECKED: "CANNOT TELL",
    Soundness.FAULTY: "DAMAGED",
}


class Check(StrEnum):
    """The kind of check that made a finding.

    `MANIFEST`: the comparison with a manifest. `CHANGED`: the check that no file changed during the
    verification.
    """

    STRUCTURE = "structure"
    BYTES = "bytes"
    MEANING = "meaning"
    MANIFEST = "manifest"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that a check found.

    Attributes:
        message: a sentence.
        file, tensor: the file, relative to the checkpoint's directory, and the tensor with the
            fault; None if unknown.
        span: the damaged part of the file as (first byte, end), if it is known.
        changed, unchanged: if a manifest has another digest of the file, the tensors in the file
            with other values than in the manifest, and those with the same values.
    """

    check: Check
    message: str
    file: str | None = None
    tensor: Key | None = None
    span: tuple[int, int] | None = None
    changed: tuple[Key, ...] = ()
    unchanged: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The result of comparing a checkpoint with a manifest or another checkpoint.

    Attributes:
        path: the manifest or the other checkpoint.
        tensors: the number of tensors with equal values.
        by_files: True if the files were compared byte by byte.
        vouched: with `by_files`, the names of the equal files.
        notes: sentences about values that the checkpoint lacks, or that only the checkpoint has.
        is_exact: True if the tensors were compared, and every bit of them.
    """

    path: Path
    tensors: int = 0
    by_files: bool = False
    vouched: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    is_exact: bool = False


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        unchecked: the files with bytes that no checksum or digest proves, each with the reason.
        nonfinite: the number of values in each tensor that are NaN, infinite or impossibly
            negative, even if they are no damage, as in a mask.
        is_fast: True if no tensor data was read.
        bytes_read: the number of bytes read.
        comparison: the result of the comparison with a manifest; None if there was no manifest.
        manifest: the manifest of the checkpoint itself, if it was requested and the checks found no
            fault.
        as_written: the result of the comparison with the record inside an output; None if the
            checkpoint has no record.
        portion: the part of the checkpoint that was checked. The verdict is only about this part.
    """

    checkpoint: Checkpoint
    files: CheckpointFiles
    findings: tuple[Finding, ...]
    unchecked: Mapping[str, str] = field(default_factory=dict)
    nonfinite: Mapping[Key, ValueCounts] = field(default_factory=dict)
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
        """True if every byte was checked and no fault was found."""
        return self.verdict is Soundness.WHOLE


SCHEMA = "zerotools.verify/1"


def to_json(found: Verification) -> dict[str, Any]:
    """Return the form that docs/reference/verify-json.md documents."""
    origin, comparison = found.checkpoint.origin, found.comparison
    return {
        "schema": SCHEMA,
        "path": str(origin.path),
        "format": origin.format,
        "step": origin.step,
        "verdict": found.verdict.value,
        "conclusion": found.verdict.conclusion,
        "fast": found.is_fast,
        "part": found.portion.part.index,
        "parts": found.portion.part.of,
        "bytes_read": found.bytes_read,
        "tensors": len(found.checkpoint.tensors),
        "against": comparison
        and {
            "path": str(comparison.path),
            "tensors": comparison.tensors,
            "by_files": comparison.by_files,
            "notes": list(comparison.notes),
        },
        "record": found.as_written and str(found.as_written.path),
        "findings": [
            {
                "check": finding.check.value,
                "message": finding.message,
                "file": finding.file,
                "tensor": finding.tensor and finding.tensor.name,
                "role": finding.tensor and finding.tensor.role,
            }
            for finding in found.findings
        ],
        "unchecked": [
            {"file": name, "why": why, "essential": name in found.files.essential}
            for name, why in found.unchecked.items()
        ],
        "nonfinite": [
            {
                "name": key.name,
                "role": key.role,
                "nans": counts.nans,
                "infinities": counts.infinities,
            }
            for key, counts in found.nonfinite.items()
            if counts.nans or counts.infinities
        ],
    }

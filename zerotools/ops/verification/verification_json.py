"""A verification as JSON (docs/reference/verify-json.md)."""

from __future__ import annotations

from typing import Any

from zerotools.ops.verification.findings import Verification

SCHEMA = "zerotools.verify/1"


def to_json(found: Verification) -> dict[str, Any]:
    """Return the documented, versioned form."""
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
            for key, counts in found.odd.items()
            if counts.nans or counts.infinities
        ],
    }

"""What the commands that write a checkpoint say of it."""

from __future__ import annotations

from typing import Any

from zerotools.cli.output.messages import say
from zerotools.core.counts import counted
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.execution.execute import WriteReport

MAX_LOSSES = 20


def plan_json(conversion: Conversion) -> dict[str, Any]:
    """What is written, as `--json` has it."""
    return {
        "source": str(conversion.source.origin.path),
        "destination": str(conversion.destination),
        "tensors": len(conversion.target.checkpoint.tensors),
        "bytes_to_read": conversion.bytes_to_read,
        "bytes_to_write": conversion.bytes_to_write,
        "files": [
            {"name": name, "bytes": file.size} for name, file in conversion.target.files.items()
        ],
        "notes": list(conversion.notes),
        "dropped": [{"what": each.what, "why": each.why} for each in conversion.target.dropped],
        "warnings": [*conversion.warnings, *filter(None, [conversion.lacking])],
    }


def print_notes(conversion: Conversion) -> None:
    """What the user should know of an output."""
    reasons: dict[str, list[str]] = {}
    for dropped in conversion.target.dropped:
        reasons.setdefault(dropped.why, []).append(dropped.what)
    for why, what in reasons.items():
        say("dropped", f"{', '.join(what)} ({why})")
    for note in conversion.notes:
        say("note", note)
    for warning in conversion.warnings:
        say("warning", f"{warning}; what is written here does not need it")
    if conversion.lacking is not None:
        say("warning", conversion.lacking)


def losses_json(report: WriteReport) -> dict[str, Any]:
    """What became infinite, or is not finite, as `--json` has it."""
    return {
        "overflowed": [
            {"name": k.name, "role": k.role, "values": lost.overflowed, "largest": lost.largest}
            for k, lost in report.losses.items()
            if lost.overflowed
        ],
        "nonfinite": [
            {"name": k.name, "role": k.role, "nans": lost.nans, "infinities": lost.infinities}
            for k, lost in report.losses.items()
            if lost.nans or lost.infinities
        ],
    }


def print_losses(report: WriteReport) -> None:
    """What became infinite, or is not finite."""
    lines = []
    for key, lost in report.losses.items():
        if lost.overflowed:
            lines.append(
                f"{key}: {counted(lost.overflowed, 'value')} up to {lost.largest:g} became infinite"
            )
        if lost.nans or lost.infinities:
            lines.append(f"{key} holds {lost.nans} NaN and {lost.infinities} infinite values")
    for line in lines[:MAX_LOSSES]:
        say("note", line)
    if len(lines) > MAX_LOSSES:
        say("note", f"and {len(lines) - MAX_LOSSES} more (--json lists all)")

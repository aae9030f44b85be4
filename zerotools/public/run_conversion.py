"""Plan or write a prepared conversion, or one part of it. Define the result of a conversion."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.target import Dropped
from zerotools.io.files.open_source import RemotePath
from zerotools.io.numeric.dtype_casts import LostValues
from zerotools.ops.conversions.conversion import (
    Conversion,
    Unchanged,
    check_part,
    perform_part,
    prove_coverage,
    prove_part,
)
from zerotools.ops.execution.execute import WriteReport
from zerotools.ops.write_output import check_write, write_output
from zerotools.public.command_options.part_and_memory_options import budget_of, chosen_part
from zerotools.public.progress import ProgressWanted, metering

if TYPE_CHECKING:
    from zerotools.ops.execution.divide_output import PartPlan
    from zerotools.ops.execution.output_part import OutputPart


@dataclass(frozen=True)
class FileShare:
    """The part of an output file that one process writes: the bytes [begin, end)."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True)
class PartResult:
    """The result of writing part number `index` (from 1) of `of` parts.

    Attributes:
        files: the ranges of files that the part writes.
        bytes: the total size of these ranges.
        missing: the numbers of the parts that are not complete yet; None in a dry run.
    """

    index: int
    of: int
    files: tuple[FileShare, ...]
    bytes: int
    missing: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"part {self.index} of {self.of}"

    def to_json(self) -> dict[str, Any]:
        """Return the part as plain values, as `--json` prints it."""
        found = {
            "index": self.index,
            "of": self.of,
            "files": [
                {"name": each.name, "begin": each.begin, "end": each.end} for each in self.files
            ],
            "bytes": self.bytes,
        }
        return found if self.missing is None else {**found, "missing": list(self.missing)}

    @classmethod
    def of_plan(cls, planned: PartPlan, missing: tuple[int, ...] | None = None) -> PartResult:
        """Return the result of a part from its plan and the numbers of the missing parts."""
        files = tuple(FileShare(name, *each) for name, each in planned.share.items())
        return cls(planned.part.index, planned.part.of, files, planned.nbytes, missing)


@dataclass(frozen=True)
class Losses:
    """The number of values in one tensor that a cast made infinite, or that were not finite before.

    `overflowed` is the number of values that became infinite, and `largest` is the largest
    magnitude among them before the cast. `nans` and `infinities` count values that were not finite
    before the cast.
    """

    name: str
    role: str
    overflowed: int
    largest: float
    nans: int
    infinities: int

    def __str__(self) -> str:
        return self.name if self.role == "param" else f"{self.name} ({self.role})"


@dataclass(frozen=True)
class ConversionResult:
    """The result of `consolidate`, `reshard` or `convert`. After a dry run it is a plan, and no
    file was written.

    Attributes:
        files: the size of each output file, keyed by name.
        notes: sentences for the user.
        warnings: problems of the source, as sentences.
        lacking: the reason why other programs cannot load the output; None if they can.
        report_notes: sentences about how the output was written.
        dropped: the parts of the source that the output cannot hold.
        copies, buffer_bytes: in a dry run, the number of copies, and the maximum memory of the
            buffers.
        resumed: files that an interrupted run had completed.
        manifest: the file of digests that `verify=True` wrote.
        part: the result of the part, if the options select a part.
        unchanged: True if the checkpoint already had the requested layout, so that no file was
            written.
    """

    source: Path
    destination: Path | None
    tensors: int = 0
    bytes_to_read: int = 0
    bytes_to_write: int = 0
    files: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    warnings: tuple[str, ...] = ()
    lacking: str | None = None
    world_size: int | None = None
    dry_run: bool = False
    unchanged: bool = False
    verified: bool = False
    copies: int | None = None
    buffer_bytes: int = 0
    seconds: float = 0.0
    resumed: tuple[str, ...] = ()
    losses: tuple[Losses, ...] = ()
    manifest: Path | None = None
    report_notes: tuple[str, ...] = ()
    part: PartResult | None = None

    @property
    def written(self) -> bool:
        """True if the output exists and is complete."""
        is_partial = self.part is not None and bool(self.part.missing)
        return not (self.dry_run or self.unchanged or is_partial)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values, as `--json` prints it."""
        source = str(self.source)
        if self.unchanged:
            return {"source": source, "destination": None, "unchanged": True}
        planned = {
            "source": source,
            "destination": str(self.destination),
            "tensors": self.tensors,
            "bytes_to_read": self.bytes_to_read,
            "bytes_to_write": self.bytes_to_write,
            "files": [{"name": name, "bytes": size} for name, size in self.files.items()],
            "notes": list(self.notes),
            "dropped": [{"what": each.what, "why": each.why} for each in self.dropped],
            "warnings": [*self.warnings, *filter(None, [self.lacking])],
            "dry_run": self.dry_run,
        }
        if self.part is not None:
            planned["part"] = self.part.to_json()
        if self.dry_run:
            return {**planned, "copies": self.copies}
        whole = {"verified": self.verified, "manifest": self.manifest and str(self.manifest)}
        return {
            **planned,
            "seconds": round(self.seconds, 3),
            "resumed": list(self.resumed),
            **({} if self.part is not None else whole),
            "overflowed": [
                {
                    "name": each.name,
                    "role": each.role,
                    "values": each.overflowed,
                    "largest": each.largest,
                }
                for each in self.losses
                if each.overflowed
            ],
            "nonfinite": [
                {
                    "name": each.name,
                    "role": each.role,
                    "nans": each.nans,
                    "infinities": each.infinities,
                }
                for each in self.losses
                if each.nans or each.infinities
            ],
        }


def result_of(conversion: Conversion, **more: object) -> ConversionResult:
    """Return the result of a conversion. `more` has the fields that are known only after
    writing.
    """
    target = conversion.target
    return ConversionResult(
        source=conversion.source.origin.path,
        destination=conversion.destination,
        tensors=len(target.checkpoint.tensors),
        bytes_to_read=conversion.bytes_to_read,
        bytes_to_write=conversion.bytes_to_write,
        files={name: file.size for name, file in target.files.items()},
        notes=conversion.notes,
        dropped=tuple(target.dropped),
        warnings=conversion.warnings,
        lacking=conversion.lacking,
        world_size=target.checkpoint.origin.world_size,
        **more,  # type: ignore[arg-type]  # of the fields above
    )


def unchanged_result(found: Unchanged, *, dry_run: bool) -> ConversionResult:
    """Return the result for a checkpoint that already has the requested layout and is not written
    again."""
    return ConversionResult(
        source=found.checkpoint.origin.path,
        destination=None,
        world_size=found.world_size,
        dry_run=dry_run,
        unchanged=True,
    )


def losses_of(report: WriteReport) -> tuple[Losses, ...]:
    """Return the losses of the cast for all tensors that a report lists."""

    def each() -> Iterator[Losses]:
        for key, lost in report.losses.items():
            found: LostValues = lost
            yield Losses(
                key.name,
                key.role,
                found.overflowed,
                found.largest,
                found.nans,
                found.infinities,
            )

    return tuple(each())


Check = Callable[[WriteReport], None]


def carry_out(
    prepared: Conversion | Unchanged,
    given: Mapping[str, Any],
    stage: str,
    progress: ProgressWanted,
    check: Check = lambda _: None,
) -> ConversionResult:
    """Write a prepared conversion, or the part of it that the options `given` select. A dry run
    only checks whether the output can be written.

    Progress is reported under the name `stage`.

    Raises:
        BadRequest: the output exists or does not fit on the disk, or two options exclude each
            other.
        BadFile: the source is damaged or has changed.
    """
    if isinstance(prepared, Unchanged):
        return unchanged_result(prepared, dry_run=given["dry_run"])
    part = chosen_part(given)
    if part is not None:
        return _carry_out_part(prepared, part, given, stage, progress, check)
    if given["dry_run"]:
        check_write(prepared, overwrite=given["overwrite"], resume=given["resume"])
        memory = budget_of(given).max_total_bytes
        return result_of(
            prepared, dry_run=True, copies=prove_coverage(prepared), buffer_bytes=memory
        )
    began = time.monotonic()
    report = write_reporting(prepared, given, stage, progress, check)
    return result_of(
        prepared,
        seconds=time.monotonic() - began,
        resumed=tuple(report.resumed),
        losses=losses_of(report),
        verified=given["verify"],
        manifest=report.manifest,
        report_notes=tuple(report.notes),
    )


def write_reporting(
    conversion: Conversion,
    given: Mapping[str, Any],
    stage: str,
    progress: ProgressWanted,
    check: Check = lambda _: None,
) -> WriteReport:
    """Write a whole conversion with the options `given`, and report its progress."""
    to_handle = conversion.bytes_of_tensors * (2 if given["verify"] else 1)
    with metering(progress) as meter, meter(to_handle, stage) as on_bytes:
        return write_output(
            conversion,
            budget=budget_of(given),
            overwrite=given["overwrite"],
            verify=given["verify"],
            resume=given["resume"],
            on_bytes=on_bytes,
            check=check,
        )


def no_parts_in_store(destination: Path) -> Unsupported:
    """Return the error for an output in an object store, where it cannot be written in parts."""
    return Unsupported(
        f"{destination} is in an object store, where several processes cannot write parts of one "
        "file; leave --part out, or write to a shared file system"
    )


def no_proof_of_parts(destination: Path) -> BadRequest:
    """Return the error for the options --part and --verify together."""
    return BadRequest(
        "--verify reads the whole output back, but each part has only some of it; leave --verify "
        f"out, and run zerotools verify {destination} when all parts are done"
    )


def _carry_out_part(
    conversion: Conversion,
    part: OutputPart,
    given: Mapping[str, Any],
    stage: str,
    progress: ProgressWanted,
    check: Check,
) -> ConversionResult:
    if isinstance(conversion.destination, RemotePath):
        raise no_parts_in_store(conversion.destination)
    if given["verify"]:
        raise no_proof_of_parts(conversion.destination)
    copies, planned = prove_part(conversion, part)
    if given["dry_run"]:
        check_part(conversion, planned, overwrite=given["overwrite"])
        return result_of(conversion, dry_run=True, copies=copies, part=PartResult.of_plan(planned))
    began = time.monotonic()
    to_handle = sum(planned.tensor_bytes.values())
    with metering(progress) as meter, meter(to_handle, f"{stage} {part}") as on_bytes:
        report = perform_part(
            conversion,
            planned,
            budget=budget_of(given),
            overwrite=given["overwrite"],
            on_bytes=on_bytes,
            check=check,
        )
    return result_of(
        conversion,
        seconds=time.monotonic() - began,
        resumed=tuple(report.resumed),
        losses=losses_of(report),
        report_notes=tuple(report.notes),
        part=PartResult.of_plan(planned, tuple(report.missing)),
    )

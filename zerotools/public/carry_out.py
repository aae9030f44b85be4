"""Carry a conversion out, plan it, or do one part of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.files.open_source import RemotePath
from zerotools.ops.conversions.conversion import Conversion, Unchanged, prove
from zerotools.ops.conversions.in_parts import check_part, perform_part, prove_part
from zerotools.ops.execution.execute import WriteReport
from zerotools.ops.execution.parts.share import OutputPart
from zerotools.ops.uploading.destination import check_write, write
from zerotools.public.options.part_options import chosen_part
from zerotools.public.options.write_options import budget_of
from zerotools.public.progress import ProgressWanted, metering
from zerotools.public.results import (
    ConversionResult,
    PartResult,
    losses_of,
    result_of,
    unchanged_result,
)

Check = Callable[[WriteReport], None]


def carry_out(
    prepared: Conversion | Unchanged,
    given: Mapping[str, Any],
    stage: str,
    progress: ProgressWanted,
    check: Check = lambda _: None,
) -> ConversionResult:
    """Write a prepared conversion, or the part of it that the options select. In a dry run, only
    check that it can be written. Progress is reported under the name `stage`.

    Raises:
        BadRequest: the output exists, does not fit, or an option excludes another.
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
        return result_of(prepared, dry_run=True, copies=prove(prepared), buffer_bytes=memory)
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
    """Write a whole conversion with the options for writing."""
    to_handle = conversion.bytes_of_tensors * (2 if given["verify"] else 1)
    with metering(progress) as meter, meter(to_handle, stage) as on_bytes:
        return write(
            conversion,
            budget=budget_of(given),
            overwrite=given["overwrite"],
            verify=given["verify"],
            resume=given["resume"],
            on_bytes=on_bytes,
            check=check,
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
        raise Unsupported(
            f"{conversion.destination} is in an object store, where several processes cannot write "
            "parts of one file; leave --part out, or write to a shared file system"
        )
    if given["verify"]:
        raise BadRequest(
            "--verify reads the whole output back, which no part can do; leave it out, and run "
            f"zerotools verify {conversion.destination} when all parts are done"
        )
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
        part=PartResult.of_plan(planned, tuple(report.missing)),
    )

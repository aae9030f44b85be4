"""A conversion that several runs carry out together, each a part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from zerotools.core.errors import BadRequest
from zerotools.io.files.sources import Sources
from zerotools.io.numeric.cast_torch import cast_for
from zerotools.io.output.marker import was_made_of
from zerotools.io.output.part_ledger import is_begun
from zerotools.io.output.staging import partial_of
from zerotools.ops.conversions.conversion import (
    Conversion,
    cast_to_fp16,
    check_destination,
    check_space,
    refuse_damaged,
)
from zerotools.ops.execution.execute import WriteReport
from zerotools.ops.execution.identity import identity_of
from zerotools.ops.execution.parts.execute_part import PartReport, digest_of, execute_part
from zerotools.ops.execution.parts.share import ALIGNMENT, OutputPart, bytes_in, shares
from zerotools.ops.execution.plan import prove_plan
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.proof.output_record import put_sidecar


def prove_part(
    conversion: Conversion, part: OutputPart, alignment: int = ALIGNMENT
) -> tuple[int, PartReport]:
    """Prove that every copy of one part can be made; returns how many copies its tensors have, and
    what the part has of each file.

    Raises:
        As `prove`, and BadRequest: the conversion cannot be made in parts.
    """
    _refuse_sums(conversion)
    refuse_damaged(conversion)
    share = shares(conversion.target, part.of, alignment)[part.index - 1]
    sizes, tensors = bytes_in(conversion.target, share)
    copies = prove_plan(conversion.source, replace(conversion.target.checkpoint, tensors=tensors))
    return copies, PartReport(bytes_written=sum(sizes.values()), files=len(share), spans=share)


def check_part(conversion: Conversion, part: OutputPart, *, overwrite: bool, nbytes: int) -> None:
    """Refuse what `perform_part` would refuse of the destination, for a part of so many bytes. One
    that was begun has some of them already.

    Raises:
        BadRequest: the output exists, is inside the source, or does not fit on the disk.
    """
    check_destination(
        conversion.source.origin.path,
        conversion.destination,
        command=conversion.command,
        overwrite=overwrite,
    )
    if not is_begun(partial_of(conversion.destination), part.index):
        check_space(conversion.destination, nbytes)


def perform_part(
    conversion: Conversion,
    part: OutputPart,
    *,
    budget: MemoryBudget,
    overwrite: bool,
    on_bytes: Callable[[int], None] = lambda _: None,
    check: Callable[[WriteReport], None] = lambda _: None,
    alignment: int = ALIGNMENT,
) -> PartReport:
    """Write one part of the target; the last part that is complete gives the output its name.

    What an interrupted or failed run of the same part completed is kept, and so is what other
    parts do. Where the output is complete already, nothing is done.

    Raises:
        BadRequest: as `perform`; or what was begun is another conversion, or in other parts.
        BadFile: the source is incomplete, damaged or changed since it was read.
    """
    source, target = conversion.source, conversion.target
    identity = identity_of(source, target, conversion.request, conversion.stamps)
    _, planned = prove_part(conversion, part, alignment)
    if was_made_of(conversion.destination, digest_of(identity)):
        return PartReport(spans=planned.spans, files=planned.files)
    check_part(conversion, part, overwrite=overwrite, nbytes=planned.bytes_written)
    sources = Sources(conversion.stamps)
    sources.check()
    report = execute_part(
        part,
        source,
        target,
        identity,
        budget=budget,
        command=conversion.command,
        overwrite=overwrite,
        on_bytes=on_bytes,
        check=check,
        cast=cast_for(cast_to_fp16(conversion), budget.workers),
        sources=sources,
        alignment=alignment,
    )
    if not report.missing:
        put_sidecar(None, conversion.destination)
    return report


def _refuse_sums(conversion: Conversion) -> None:
    if conversion.sums_bytes:
        raise BadRequest(
            "tensors are summed before this output can be written (adapters are merged into the "
            "weights), which is not done in parts; leave --part out"
        )

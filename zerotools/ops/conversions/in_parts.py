"""A conversion that several runs carry out together, each a part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from zerotools.core.errors import BadRequest
from zerotools.io.files.sources import Sources
from zerotools.io.numeric.cast_torch import cast_for
from zerotools.io.output.part_ledger import check_begun, is_begun
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
from zerotools.ops.execution.parts.execute_part import (
    PartReport,
    digest_of,
    end_complete,
    execute_part,
)
from zerotools.ops.execution.parts.share import ALIGNMENT, OutputPart, PartPlan, plan_part
from zerotools.ops.execution.plan import prove_plan
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.proof.output_record import put_sidecar


def prove_part(
    conversion: Conversion, part: OutputPart, alignment: int = ALIGNMENT
) -> tuple[int, PartPlan]:
    """Prove that every copy of one part can be made. Return the number of copies of its tensors,
    and the plan of the part. `alignment` is that of `shares`.

    Raises:
        As `prove`, and BadRequest: the conversion cannot be made in parts.
    """
    if conversion.sums_bytes:
        raise BadRequest(
            "this output needs a sum of tensors before it is written (adapters are merged into "
            "the weights), which parts cannot do; leave --part out"
        )
    refuse_damaged(conversion)
    planned = plan_part(conversion.target, part, alignment)
    wanted = replace(conversion.target.checkpoint, tensors=planned.tensors)
    return prove_plan(conversion.source, wanted), planned


def check_part(conversion: Conversion, planned: PartPlan, *, overwrite: bool) -> None:
    """Refuse what `perform_part` would refuse of the destination. A part that was begun has some of
    its bytes already.

    Raises:
        BadRequest: the output exists, is inside the source, does not fit on the disk, or was begun
            in other parts.
    """
    destination, partial = conversion.destination, partial_of(conversion.destination)
    source = conversion.source.origin.path
    check_destination(source, destination, command=conversion.command, overwrite=overwrite)
    check_begun(partial, planned.part.of)
    if not is_begun(partial, planned.part.index):
        check_space(destination, planned.nbytes)


def perform_part(
    conversion: Conversion,
    planned: PartPlan,
    *,
    budget: MemoryBudget,
    overwrite: bool,
    on_bytes: Callable[[int], None] = lambda _: None,
    check: Callable[[WriteReport], None] = lambda _: None,
) -> PartReport:
    """Write what `prove_part` planned; the last part that is complete gives the output its name.

    Files that an interrupted or failed run of the same part completed are kept, and so are those of
    other parts. If the output is already complete, it does nothing.

    Raises:
        BadRequest: as `perform`; or another conversion, or one in other parts, was begun there.
        BadFile: the source is incomplete, damaged or changed since it was read.
    """
    source, target = conversion.source, conversion.target
    budget = budget.reading(source.root)
    identity = identity_of(source, target, conversion.request, conversion.stamps)
    if end_complete(conversion.destination, digest_of(identity)):
        return PartReport(files=len(planned.share))
    check_part(conversion, planned, overwrite=overwrite)
    sources = Sources(conversion.stamps)
    sources.check()
    report = execute_part(
        planned,
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
    )
    if not report.missing:
        put_sidecar(None, conversion.destination)
    return report

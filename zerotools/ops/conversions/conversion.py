"""The plan of a conversion: a source, a target, and notes for the user.

`consolidate`, `reshard` and `convert` prepare a `Conversion`. `perform_conversion` carries it out,
and a dry run prints it. Several runs can write one output together, each with a call of
`perform_part` for its part.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.checkpoint import Checkpoint, Key, Stamp
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.dtypes import FLOAT16, FLOAT32
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.scaled_cast import stored_tensors
from zerotools.core.target import Target
from zerotools.formats import FORMATS, FormatTable, format_of
from zerotools.io.files.open_source import RemotePath
from zerotools.io.files.source_stamps import Sources
from zerotools.io.numeric.torch_float16_cast import cast_for
from zerotools.io.output.output_marker import check_replaceable, is_empty
from zerotools.io.output.part_ledger import check_parts, has_started
from zerotools.io.output.staging import partial_of
from zerotools.ops.execution.execute import (
    Publication,
    Transfer,
    WriteReport,
    execute,
)
from zerotools.ops.execution.plan_copies import plan, prove_plan
from zerotools.ops.execution.resume_identity import identity_of
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.verification.manifest_next_to_output import check_sidecar, put_sidecar

if TYPE_CHECKING:  # imported where they are used: by --verify and by --part
    from zerotools.ops.execution.divide_output import PartPlan
    from zerotools.ops.execution.execute_part import PartReport
    from zerotools.ops.execution.output_part import OutputPart
    from zerotools.ops.verify_source_and_output import OutputProof

_FROM_IT = "use another checkpoint, because the output needs this file"


@dataclass(frozen=True)
class Conversion:
    """A planned conversion. `source` has every tensor of `target`, under the same name.

    Attributes:
        request: the request as text. An interrupted run can be resumed only by a run with the same
            text.
        sums, sums_directory, sums_bytes: `sums` returns a context that computes merged weights
            (base plus adapter). It writes them to files in `sums_directory`, `sums_bytes` bytes in
            all. The source refers to these files.
        stamps: all files that were read for this plan. None of them may change until the output
            exists.
        command: the zerotools command that writes the output. Only this command may overwrite the
            output later.
        lacking: the reason why other programs cannot load the output, else None.
        is_examined: every byte of the source's chunks was checked before, so `verify` does not
            check the source again. Other bytes of its files may be damaged.
        table: the formats of source and target.
        as_read: the source before its tensors were converted to another layout.
    """

    source: Checkpoint
    target: Target
    notes: tuple[str, ...] = ()
    request: str = ""
    sums: Callable[[], AbstractContextManager[None]] = nullcontext
    sums_bytes: int = 0
    sums_directory: Path | None = None
    stamps: Mapping[Path, Stamp] = field(default_factory=dict)
    command: str = "convert"
    lacking: str | None = None
    is_examined: bool = False
    table: FormatTable = field(default_factory=lambda: FORMATS)
    as_read: Checkpoint | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The messages of the source's problems. `perform_conversion` refuses problems that affect
        the output."""
        return tuple(problem.message for problem in self.source.problems)

    @property
    def destination(self) -> Path:
        return self.target.checkpoint.root

    @property
    def bytes_to_write(self) -> int:
        """The size of all output files together."""
        return sum(file.size for file in self.target.files.values())

    @property
    def bytes_of_tensors(self) -> int:
        """The size of the tensor data to write, which the progress bar counts."""
        return sum(tensor.nbytes for tensor in self.target.checkpoint.tensors.values())

    @property
    def bytes_to_read(self) -> int:
        """The size of the tensor data to read from the source, if each element is read once."""
        tensors = (self.source.tensors[key] for key in self.target.checkpoint.tensors)
        return sum(part.nbytes for tensor in tensors for part in stored_tensors(tensor))


@dataclass(frozen=True)
class Unchanged:
    """The result if nothing has to be done, because the checkpoint already has the
    requested form."""

    checkpoint: Checkpoint
    world_size: int


def with_target_sources(source: Checkpoint, target: Target) -> Checkpoint:
    """Return `source` with the tensors of `target.sources`, which replace tensors with the same
    key."""
    return replace(source, tensors={**source.tensors, **target.sources})


def prove_coverage(conversion: Conversion) -> int:
    """Prove that each byte of the output has exactly one source, and return the number of copies.

    Raises:
        BadFile: the source has a hole, an overlap, a chunk outside its file, or would be read from
            a file that is known to be damaged.
    """
    refuse_damaged(conversion)
    return prove_plan(conversion.source, conversion.target.checkpoint)


def check_output(conversion: Conversion, *, overwrite: bool, there: int = 0) -> None:
    """Check, before any work is done, that the output can be written.

    `there` is the number of bytes of the output that are on the disk already.

    Raises:
        BadRequest: the output exists, is inside the source, or does not fit on the disk.
    """
    check_destination(conversion, overwrite=overwrite)
    _check_disk_space(conversion, there)


def perform_conversion(
    conversion: Conversion,
    *,
    budget: MemoryBudget,
    overwrite: bool,
    verify: bool = False,
    resume: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
    check: Callable[[WriteReport], None] = lambda _: None,
) -> WriteReport:
    """Write the target. Afterwards the output exists completely, or not at all.

    With `verify` the source is checked first (`prove_source`). Before the output gets its name, it
    is read back and compared with the source (`OutputProof`), and its digests are recorded. With
    `resume`, this run uses the files that an interrupted run completed. If this run is interrupted,
    a later run with `resume` can use its completed files.

    Raises:
        BadRequest: the output exists, is inside the source, or does not fit on the disk; or the
            interrupted run had another request.
        BadFile: the source is incomplete, damaged or changed since it was read, or the output
            differs from the written bytes.
    """
    source, target = conversion.source, conversion.target
    budget = budget.reading(source.root)
    check_destination(conversion, overwrite=overwrite)
    sources = Sources(conversion.stamps)
    sources.check()
    prove_coverage(conversion)
    examines = verify and not conversion.is_examined
    if examines:
        format_of(source, conversion.table).compare_copies(conversion.as_read or source)
    there = allocated_bytes(partial_of(conversion.destination)) if resume else 0
    _check_disk_space(conversion, there)
    cast = cast_for(cast_to_fp16(conversion), budget.workers)
    proof: OutputProof | None = None
    if verify:
        from zerotools.ops.verify_source_and_output import OutputProof, prove_source

        proof = OutputProof(source, target, budget, on_bytes, cast, sources, conversion.table)
    with conversion.sums():
        if examines:
            prove_source(source, target.checkpoint.tensors, conversion.stamps, budget)
        report = execute(
            plan(source, target.checkpoint),
            source.root,
            target,
            transfer=Transfer(budget=budget, on_bytes=on_bytes, cast=cast, sources=sources),
            publication=Publication(
                command=conversion.command,
                overwrite=overwrite,
                check=check,
                read_back=proof,
            ),
            identity=identity_of(source, target, conversion.request, conversion.stamps),
            resume=resume,
        )
    report.manifest = put_sidecar(proof.manifest if proof else None, conversion.destination)
    return report


def cast_to_fp16(conversion: Conversion) -> int:
    """Return the number of elements that are fp32 in the source and fp16 in the target."""
    return sum(
        tensor.numel
        for key, tensor in conversion.target.checkpoint.tensors.items()
        if tensor.dtype == FLOAT16 and conversion.source.tensors[key].dtype == FLOAT32
    )


OVERFLOW_ADVICE = "use --dtype bf16 or fp32, or --allow-overflow to write infinities"


def refuse_overflow(report: WriteReport, advice: str = OVERFLOW_ADVICE) -> None:
    """Refuse an export with weights that became infinite, because they are too large for its dtype.

    Raises:
        BadRequest: a value became infinite. For each tensor, the message has the number of values
            that are too large, and the largest of them.
    """
    lost = {key: losses for key, losses in report.losses.items() if losses.overflowed}
    if not lost:
        return
    worst = "; ".join(
        f"{key} has {count_text(losses.overflowed, 'such value')}, the largest {losses.largest:g}"
        for key, losses in list(lost.items())[:10]
    )
    more = f"; and {len(lost) - 10} more tensors" if len(lost) > 10 else ""
    raise BadRequest(
        f"values of {count_text(len(lost), 'tensor')} are too large for their new dtype (the "
        f"largest fp16 is 65504): {worst}{more}; {advice}"
    )


def refuse_damaged(conversion: Conversion) -> None:
    """Refuse to write an output that needs a file that is known to be damaged, for example because
    its size differs from a job's manifest. Such a file is refused even if all needed bytes exist.

    Problems of other files do not affect the output, and remain warnings.

    Raises:
        BadFile: a problem of the source names a file that tensors or sidecar files come from, or
            makes every output impossible.
    """
    refuse_blocked(conversion.source)
    problems = {p.file: p for p in conversion.source.problems if p.file is not None}
    if not problems:
        return
    root = conversion.source.root
    blamed = {root / file: problem for file, problem in problems.items()}
    plans = conversion.target.files.values()
    parts = (part.source for plan in plans for part in plan.carried)
    carried = (*conversion.source.model_sidecars.values(), *parts)
    found = next((blamed[path] for path in carried if path in blamed), None)
    if found is not None:
        raise BadFile(f"{found.message}; {_FROM_IT}")
    refuse_damaged_files(conversion.source, conversion.target.checkpoint.tensors)


def refuse_damaged_files(checkpoint: Checkpoint, keys: Iterable[Key]) -> None:
    """Refuse to read the tensors `keys` from a file that is known to be damaged.

    Raises:
        BadFile: a problem of the checkpoint names a file that holds one of these tensors.
    """
    problems = {p.file: p for p in checkpoint.problems if p.file is not None}
    parts = (part for key in keys if problems for part in stored_tensors(checkpoint.tensors[key]))
    chunks = (chunk for part in parts for chunk in part.chunks)
    files = (chunk.file for chunk in chunks if not chunk.box.is_empty)
    found = next((problems[file] for file in files if file in problems), None)
    if found is not None:
        raise BadFile(f"{found.message}; {_FROM_IT}")


def refuse_blocked(checkpoint: Checkpoint, *, but_for_names: bool = False) -> None:
    """Refuse a checkpoint with a problem that makes every complete output impossible.

    With `but_for_names`, a tensor with a known name and without data is accepted, for an output
    that needs only names.

    Raises:
        BadFile: the checkpoint has such a problem.
    """
    blocking = (
        p for p in checkpoint.problems if p.prevents_output or (p.is_unread and not but_for_names)
    )
    found = next(blocking, None)
    if found is not None:
        raise BadFile(found.message)


def check_destination(conversion: Conversion, *, overwrite: bool) -> None:
    """Check that the output would not damage the source, and would not replace files that another
    command wrote.

    Raises:
        BadRequest: the output is inside the source, contains it, or exists. With `overwrite`, it
            may exist if the command of the conversion wrote it.
    """
    source, destination = conversion.source.origin.path, conversion.destination
    inside, outside = destination.resolve(), source.resolve()
    if inside == outside or outside in inside.parents:
        raise BadRequest(f"{destination} is inside the checkpoint {source}; write it elsewhere")
    if inside in outside.parents:
        raise BadRequest(f"{destination} contains the checkpoint {source}; write it elsewhere")
    if isinstance(destination, RemotePath):  # the store checks the rest
        check_sidecar(destination, overwrite=overwrite)
        return
    is_empty_directory = is_empty(destination) and not destination.is_symlink()
    if os.path.lexists(destination) and not is_empty_directory:
        if not overwrite:
            raise BadRequest(f"{destination} exists; choose another output, or pass --overwrite")
        check_replaceable(destination, conversion.command)
    check_sidecar(destination, overwrite=overwrite)


def _check_disk_space(conversion: Conversion, there: int) -> None:
    needed = conversion.bytes_to_write - there + conversion.sums_bytes
    if conversion.sums_directory is not None:  # files of a killed run are removed first
        needed -= allocated_bytes(conversion.sums_directory)
    check_space(conversion.destination, needed)


def check_space(destination: Path, needed: int) -> None:
    """Check that `needed` bytes fit on the disk of `destination`.

    Raises:
        BadRequest: the file system has less space.
    """
    existing = next(
        path for path in (destination, *destination.absolute().parents) if path.exists()
    )
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise BadRequest(
            f"{destination} needs {needed} bytes, but {existing} has {free} bytes free; free some "
            "space, or choose another output"
        )


def allocated_bytes(directory: Path) -> int:
    """Return the bytes of disk that the files below `directory` take; 0 if it does not exist."""
    return sum(
        512 * Path(folder, name).lstat().st_blocks
        for folder, _, names in os.walk(directory)
        for name in names
    )


def prove_part(
    conversion: Conversion, part: OutputPart, alignment: int | None = None
) -> tuple[int, PartPlan]:
    """Prove that every copy of one part can be made. Return the number of copies, and the plan of
    the part. `alignment` is passed to `divide_output`, unless it is None.

    Raises:
        As `prove_coverage`, and BadRequest: the conversion cannot be made in parts.
    """
    from zerotools.ops.execution.divide_output import ALIGNMENT, plan_part

    refuse_merging(conversion)
    refuse_damaged(conversion)
    planned = plan_part(conversion.target, part, alignment or ALIGNMENT)
    wanted = replace(conversion.target.checkpoint, tensors=planned.tensors)
    return prove_plan(conversion.source, wanted), planned


def refuse_merging(conversion: Conversion) -> None:
    """Raise BadRequest if the conversion merges adapters. Each part would merge all of
    them again."""
    if conversion.sums_bytes:
        raise BadRequest(
            "this output cannot be written in parts, because adapters are merged into its "
            "weights first; leave --part out"
        )


def check_part(conversion: Conversion, planned: PartPlan, *, overwrite: bool) -> None:
    """Check the destination before any work is done. The free space is not checked if an earlier
    run began this part, because the disk then holds some of its bytes.

    Raises:
        BadRequest: the output exists, is inside the source, does not fit on the disk, or was begun
            with another number of parts.
    """
    destination, partial = conversion.destination, partial_of(conversion.destination)
    check_destination(conversion, overwrite=overwrite)
    check_parts(partial, planned.part.of)
    if not has_started(partial, planned.part.index):
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
    """Write the part that `prove_part` planned. The run that completes the last missing part gives
    the output its name.

    Files that earlier runs of this part or of other parts completed are kept. If the output is
    already complete, nothing is done.

    Raises:
        BadRequest: as `perform_conversion`; or another conversion was begun at the destination, or
            the same conversion with another number of parts.
        BadFile: the source is incomplete, damaged or changed since it was read.
    """
    from zerotools.ops.execution.execute_part import (
        PartReport,
        digest_of,
        end_complete,
        execute_part,
    )

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
        transfer=Transfer(
            budget=budget,
            on_bytes=on_bytes,
            cast=cast_for(cast_to_fp16(conversion), budget.workers),
            sources=sources,
        ),
        publication=Publication(command=conversion.command, overwrite=overwrite, check=check),
    )
    if not report.missing:
        put_sidecar(None, conversion.destination)
    return report

"""`zerotools reshard`: write the same checkpoint, with its optimizer state, for another number of
ranks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from zerotools import formats
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats import FORMATS, FormatTable
from zerotools.formats.format import Format, WriteOptions, format_option, option_flag
from zerotools.io.files.source_stamps import recording_sources
from zerotools.ops.conversions.conversion import (
    Conversion,
    Unchanged,
    refuse_blocked,
    with_target_sources,
)
from zerotools.ops.execution.plan_copies import prove_source
from zerotools.ops.undeclared_dropped_data import undeclared_dropped_data
from zerotools.runs.optimizer_names_record import named_order_of, with_record

_AS_IS = WriteOptions()


def prepare_reshard(
    path: Path,
    destination: Path,
    *,
    world_size: int,
    options: WriteOptions = _AS_IS,
    force: bool = False,
    tag: str | None = None,
    table: FormatTable = FORMATS,
) -> Conversion | Unchanged:
    """Plan to reshard the checkpoint at `path` for `world_size` ranks, without writing it.

    `options` are the other options of the output. A format takes only some of them.

    Raises:
        BadRequest: `path` does not exist, `world_size` is not possible, or the format does not take
            an option.
        BadFile: `path` is not a checkpoint, or its metadata is damaged.
        Unsupported: the format of the checkpoint has no ranks, or zerotools cannot write this
            format.
    """
    check_world_size(world_size)
    with recording_sources() as sources:
        # Everything is kept, so it need not be known which of several models is meant.
        checkpoint = formats.read_any(path, tag=tag, table=table)
        formats.require_readable(checkpoint)
        asked = replace(options, world_size=world_size)
        done = plan_reshard(checkpoint, destination, asked, force=force, table=table)
    if isinstance(done, Unchanged):
        return done
    return replace(done, stamps=sources.stamps, command="reshard")


def plan_reshard(
    checkpoint: Checkpoint,
    destination: Path,
    options: WriteOptions,
    *,
    force: bool = False,
    table: FormatTable = FORMATS,
) -> Conversion | Unchanged:
    """Plan like `prepare_reshard`, for a checkpoint that was read before. `options` has the number
    of ranks."""
    form, world_size = formats.format_of(checkpoint, table), options.ranks(checkpoint)
    if not force and form.is_laid_out(checkpoint, options):
        refuse_blocked(checkpoint)
        for key, tensor in checkpoint.tensors.items():
            prove_source(key, tensor, checkpoint)
        return Unchanged(checkpoint, world_size)
    _refuse_useless(checkpoint, form, options, table)
    if not form.reshards:
        raise Unsupported(form.how_to_reshard(checkpoint, world_size))
    target = form.reshard(checkpoint, destination, options)
    target = with_record(target, named_order_of(checkpoint))
    target = replace(
        target, dropped=(*target.dropped, *undeclared_dropped_data(checkpoint, (), target))
    )
    notes = (*checkpoint.origin.notes, *target.notes)
    request = _request_in_journal(world_size, options)
    return Conversion(with_target_sources(checkpoint, target), target, notes, request, table=table)


def _request_in_journal(world_size: int, options: WriteOptions) -> str:
    """Return the text that identifies the request in the journal of a run. Journals contain a
    digest of this text, so the text for a request must never change."""
    names = ("stage", "sub_group_size", "round_robin", "ds_config")
    settings = ", ".join(f"{name}={getattr(options, name)!r}" for name in names)
    return f"({world_size!r}, Settings({settings}))"


def _refuse_useless(
    checkpoint: Checkpoint, form: Format, options: WriteOptions, table: FormatTable
) -> None:
    """Raise BadRequest if the user gave an option that the format does not take."""
    useless = {*options.given()} - {"world_size"} - form.reshard_options
    if not useless:
        return
    owners = [other for other in table.values() if useless <= other.reshard_options]
    advice = "".join(
        f"; to make a checkpoint of {other.title}, use zerotools convert --to "
        f"{format_option(other)}"
        for other in owners[:1]
    )
    raise BadRequest(
        f"{checkpoint.origin.path} is {form.name}, which does not take "
        f"{' and '.join(map(option_flag, sorted(useless)))}{advice}"
    )


MAX_RANKS = 100_000
"""The largest number of ranks. No run has as many, and the output, with at least one file for each
rank, does not fill the memory or the disk.
"""


def check_world_size(world_size: int) -> None:
    """Refuse a number of ranks that no run can have.

    Raises:
        BadRequest: the number is below 1 or above MAX_RANKS.
    """
    if world_size < 1:
        raise BadRequest(
            f"--world-size is {world_size}, but a run has at least 1 rank; pass the number of ranks"
        )
    if world_size > MAX_RANKS:
        raise BadRequest(
            f"--world-size is {world_size}, but zerotools supports at most {MAX_RANKS} ranks; pass "
            "a smaller number"
        )

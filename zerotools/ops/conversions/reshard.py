"""The same checkpoint for another number of ranks, optimizer state included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Target
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats.deepspeed.schema.ds_config import AS_IS, ZeroSettings
from zerotools.io.files.sources import recording
from zerotools.ops.conversions.conversion import (
    Conversion,
    Unchanged,
    refuse_blocked,
    with_target_sources,
)
from zerotools.ops.conversions.world_size import check_world_size
from zerotools.ops.execution.plan import prove_source
from zerotools.ops.sidecars.job_files import as_job
from zerotools.ops.sidecars.left_behind import undeclared_losses


def prepare(
    path: Path,
    destination: Path,
    *,
    world_size: int,
    settings: ZeroSettings = AS_IS,
    force: bool = False,
    tag: str | None = None,
) -> Conversion | Unchanged:
    """Lay out the checkpoint at `path` for `world_size` ranks; nothing is written. `settings` are
    of DeepSpeed's checkpoints alone.

    Raises:
        BadRequest: `path` does not exist, or no run has so many ranks.
        BadFile: it is not a checkpoint, or its metadata is damaged.
        Unsupported: its format has no ranks, or is not written yet.
    """
    check_world_size(world_size)
    with recording() as sources:
        # Everything is kept, so it need not be known which of several models is meant.
        checkpoint = formats.read_any(path, tag=tag)
        formats.require_readable(checkpoint)
        done = resharded(
            checkpoint,
            destination,
            world_size=world_size,
            settings=settings,
            force=force,
        )
    if isinstance(done, Unchanged):
        return done
    return replace(done, stamps=sources.stamps, command="reshard")


def resharded(
    checkpoint: Checkpoint,
    destination: Path,
    *,
    world_size: int,
    settings: ZeroSettings = AS_IS,
    force: bool = False,
) -> Conversion | Unchanged:
    """As `prepare`, of a checkpoint that was read."""
    if not force and _is_as_asked(checkpoint, world_size, settings):
        refuse_blocked(checkpoint)
        for key, tensor in checkpoint.tensors.items():
            prove_source(key, tensor, checkpoint)
        return Unchanged(checkpoint, world_size)
    target = _lay_out(checkpoint, destination, world_size, settings)
    target = replace(target, dropped=(*target.dropped, *undeclared_losses(checkpoint, (), target)))
    notes = (*checkpoint.origin.notes, *target.notes)
    request = repr((world_size, settings))
    return Conversion(with_target_sources(checkpoint, target), target, notes, request)


def _is_as_asked(checkpoint: Checkpoint, world_size: int, settings: ZeroSettings) -> bool:
    if checkpoint.origin.format != "deepspeed":
        return checkpoint.origin.world_size == world_size and settings == AS_IS
    from zerotools.formats.deepspeed.writing.lay_out import is_already_laid_out

    return is_already_laid_out(checkpoint, world_size, settings)


def _lay_out(
    checkpoint: Checkpoint, destination: Path, world_size: int, settings: ZeroSettings
) -> Target:
    if checkpoint.origin.format != "deepspeed" and settings != AS_IS:
        raise BadRequest(
            f"{checkpoint.origin.path} is {checkpoint.origin.format}: --stage, --sub-group-size, "
            "--round-robin and --ds-config are for DeepSpeed checkpoints only; to make one, use "
            "zerotools convert --to deepspeed"
        )
    if checkpoint.origin.format == "dcp":
        from zerotools.formats.dcp.writing.lay_out import lay_out

        return lay_out(checkpoint, destination, world_size=world_size)
    if checkpoint.origin.format == "deepspeed":
        from zerotools.formats.deepspeed.writing.lay_out import lay_out as lay_out_deepspeed

        target = lay_out_deepspeed(
            checkpoint, destination, world_size=world_size, settings=settings
        )
        return as_job(checkpoint, target, world_size)
    raise Unsupported(_of_no_ranks(checkpoint, world_size))


def _of_no_ranks(checkpoint: Checkpoint, world_size: int) -> str:
    path, format_ = checkpoint.origin.path, checkpoint.origin.format
    if format_ == "universal":
        return (
            f"{path} is a universal checkpoint, which was not saved for a particular world size; "
            f"zerotools convert --to deepspeed --world-size {world_size} makes a native checkpoint "
            "from it"
        )
    return (
        f"{path} is {format_}, which zerotools does not reshard; zerotools convert --to deepspeed "
        f"or --to dcp, with --world-size {world_size}, makes a checkpoint for that many ranks from "
        "it"
    )

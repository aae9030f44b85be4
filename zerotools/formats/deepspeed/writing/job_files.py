"""The files of a job around a checkpoint in DeepSpeed's layout, for other ranks."""

from __future__ import annotations

from dataclasses import replace

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.counts import counted
from zerotools.core.target import Target
from zerotools.io.output.plain_files import literal
from zerotools.runs.checkpoint_dirs import RECORD, read_record, rng_name
from zerotools.runs.manifest import MANIFEST
from zerotools.runs.record import record_to_json


def as_job(source: Checkpoint, target: Target, world_size: int) -> Target:
    """Return `target` with the record, the manifest, and no random number state but that of its
    ranks, if `source` is a checkpoint of a job; else as it is.

    Raises:
        BadFile: the record is damaged.
    """
    if not {RECORD, MANIFEST} <= target.files.keys():
        return target
    before = read_record(source.root.parent)
    same = before.world_size == world_size
    record = before if same else before.resharded(world_size)
    stage = target.checkpoint.origin.stage
    record = replace(record, stage=record.stage if stage is None else stage)
    gone = {MANIFEST, *(rng_name(rank) for rank in range(before.world_size) if not same)}
    files = {name: plan for name, plan in target.files.items() if name not in gone}
    files[RECORD] = literal(record_to_json(record).encode())
    sizes = {name: plan.size for name, plan in files.items()}
    notes = target.notes
    if not same:
        notes = (
            *notes,
            f"the random number state of {counted(before.world_size, 'rank')} is not carried over: "
            f"the run seeds the {world_size} new ones from its seed and step",
        )
    return replace(
        target,
        files=files,
        checkpoint=replace(target.checkpoint, files=sizes),
        notes=notes,
        with_manifest=True,
    )

"""Find the DCP directories that form one checkpoint, and lay out a checkpoint of several
directories.

The directory names of each program are listed in `accelerate_directory_names`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Problem, Tensor
from zerotools.core.target import Dropped, FilePlan, Target
from zerotools.formats.dcp.accelerate_directory_names import fsdp_models
from zerotools.formats.dcp.kept_for_writer import native_of
from zerotools.io.distcp.dcp_file_names import METADATA
from zerotools.io.files.directory_entries import names_in
from zerotools.runs.job_checkpoint_file_names import DCP, RECORD

_SHARD = re.compile(r"__\d+_\d+\.distcp|(__\d+)?\.metadata(\.tmp)?")


def dcp_prefixes(path: Path) -> tuple[list[str], list[Problem]]:
    """Find the DCP directories that make up the checkpoint at `path`.

    Return their paths relative to `path` (such as `dcp/`; empty for `path` itself), and a problem
    for each expected directory that has no `.metadata`.
    """
    if (path / RECORD).exists() or _is_wrapped(path):
        return [f"{DCP}/"], []
    models = [] if (path / METADATA).exists() else fsdp_models(names_in(path))
    if not models:
        return [""], []
    optimizer = f"optimizer_{models[0].rpartition('_')[2]}"
    if (path / optimizer / METADATA).exists():
        return [f"{models[0]}/", f"{optimizer}/"], []
    if not (path / optimizer).is_dir():
        return [f"{models[0]}/"], []
    message = (
        f"{path / optimizer} has no {METADATA}, which torch writes last: the save of the optimizer "
        "was not finished; only the weights are read"
    )
    return [f"{models[0]}/"], [Problem(message, f"{optimizer}/{METADATA}")]


def _is_wrapped(path: Path) -> bool:
    return not (path / METADATA).exists() and (path / DCP / METADATA).exists()


def lost_attributes(source: Checkpoint) -> tuple[Dropped, ...]:
    """Return, as dropped parts, the attributes that other programs added to the source's
    `.metadata`. No output format can hold them.
    """
    why = "an attribute of .metadata that is not torch's"
    return tuple(Dropped(name, why) for name in native_of(source).attributes)


def is_shard(source: Checkpoint, path: Path) -> bool:
    """Return whether `path` is a data file of a DCP, or a directory of a DCP.

    Files of an older save in the same directory count too.
    """
    if path.is_dir():
        return (path / METADATA).exists()
    return _SHARD.fullmatch(path.name) is not None or path.name in source.files


def is_replicated(source: Checkpoint, flat: str, tensor: Tensor) -> bool:
    """Return whether every rank of the run held a whole copy of this tensor, instead of a shard.

    For a job, this is known from its record. Without a record, a tensor counts as replicated if it
    is 0-d, or if several ranks saved it as one chunk although it has more than one row.
    """
    if not tensor.shape:
        return True
    job = native_of(source).job
    if job is not None:
        return job.stage == 0 or flat in job.replicated
    ranks = source.origin.world_size or 1
    return ranks > 1 and tensor.shape[0] > 1 and len(tensor.chunks) == 1


def lay_out_each(
    source: Checkpoint, destination: Path, lay_out: Callable[[Checkpoint, Path], Target]
) -> Target:
    """Plan the output of a checkpoint in several directories: call `lay_out` for each of them,
    below `destination`.
    """
    plans: dict[str, FilePlan] = {}
    tensors: dict[Any, Tensor] = {}
    notes: tuple[str, ...] = ()
    made = source
    for prefix, keys in native_of(source).directories.items():
        target = lay_out(_part(source, keys), destination / prefix)
        plans |= {prefix + name: plan for name, plan in target.files.items()}
        tensors |= {
            key: replace(tensor, chunks=[replace(c, file=prefix + c.file) for c in tensor.chunks])
            for key, tensor in target.checkpoint.tensors.items()
        }
        notes += target.notes
        made = target.checkpoint
    checkpoint = replace(
        made,
        root=destination,
        tensors={key: tensors[key] for key in source.tensors},
        origin=replace(made.origin, path=destination),
        files={name: plan.size for name, plan in plans.items()},
    )
    return Target(checkpoint, plans, notes=notes)


def _part(source: Checkpoint, keys: frozenset[str]) -> Checkpoint:
    native = native_of(source)

    def of(table: Mapping[str, Any] | None) -> dict[str, Any]:
        return {key: value for key, value in (table or {}).items() if key in keys}

    flat = {key: name for key, name in native.flat_keys.items() if name in keys}
    return replace(
        source,
        tensors={key: tensor for key, tensor in source.tensors.items() if key in flat},
        native=replace(
            native,
            flat_keys=flat,
            paths=of(native.paths) or None,
            order=tuple(key for key in native.order if key in keys),
            blobs=of(native.blobs),
            tied=of(native.tied),
            directories={},
        ),
    )

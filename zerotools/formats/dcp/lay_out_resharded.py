"""Lay out a DCP for any number of ranks, with the files and chunks that torch would save.

A job's checkpoint also gets its record, its sidecar files and, after all files, its manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.checkpoint import Checkpoint, Key, Origin, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadRequest
from zerotools.core.target import FilePlan, Target
from zerotools.core.training_state import Scalar
from zerotools.formats.dcp.kept_for_writer import DcpNative, native_of
from zerotools.formats.dcp.lay_out_rank_files import (
    CarriedValue,
    CopiedTensor,
    DcpEntry,
    KnownTensor,
    TiedTensor,
    lay_out_directory,
)
from zerotools.formats.dcp.several_directories import (
    is_replicated,
    is_shard,
    lay_out_each,
    lost_attributes,
)
from zerotools.formats.torch_optimizers import STATE_ROLE, WEIGHT_ROLES
from zerotools.io.numeric.scalar_tensors import scalar_bytes
from zerotools.io.output.files_without_tensors import file_of_bytes, run_sidecars_in, sidecar_files
from zerotools.runs.job_checkpoint_file_names import DCP, RECORD

if TYPE_CHECKING:  # few checkpoints are of a job
    from zerotools.runs.training_record import JobRecord


def lay_out(source: Checkpoint, destination: Path, *, world_size: int) -> Target:
    """Plan a DCP in `destination` that contains `source`, for `world_size` ranks.

    The result depends only on the shapes, dtypes, flat keys and plain values of `source`, not on
    the arrangement of its files. If a zerotools job saved `source`, the output is a job's
    checkpoint too: `dcp/`, job.json with the new world size, sidecar files, and a manifest. The
    job then seeds its random number generators again. If `source` consists of several directories,
    the output has the same directories. If no job saved `source`, the files next to the DCP are
    copied, except the random number states of single ranks.

    Raises:
        BadRequest: `world_size` is less than 1.
    """
    check_world_size(world_size)
    job = native_of(source).job
    if job is not None:
        target = _lay_out_one(source, destination, world_size=world_size, prefix=f"{DCP}/")
        files, notes = _job_files(source, job.resharded(world_size)), _notes(job, world_size)
        return replace(
            _with(target, files), with_manifest=True, notes=notes, dropped=lost_attributes(source)
        )
    one = partial(_lay_out_one, world_size=world_size)
    several = bool(native_of(source).directories)
    target = lay_out_each(source, destination, one) if several else one(source, destination)
    files, notes = run_sidecars_in(
        source.root,
        partial(is_shard, source),
        same_ranks=world_size == source.origin.world_size,
    )
    return replace(_with(target, files), notes=notes, dropped=lost_attributes(source))


def _lay_out_one(
    source: Checkpoint, destination: Path, *, world_size: int, prefix: str = ""
) -> Target:
    flat = _flat_keys(source)
    laid_out = lay_out_directory(
        _entries(source, flat), _paths(source, flat), world_size, prefix=prefix
    )
    checkpoint = replace(
        source,
        root=destination,
        tensors={key: laid_out.tensors[key] for key in source.tensors},
        origin=_origin(source, destination, world_size),
        files={name: plan.size for name, plan in laid_out.files.items()},
        state={},
        model_sidecars={},
        problems=(),
        native=None,
    )
    return Target(checkpoint, laid_out.files)


def _with(target: Target, files: Mapping[str, FilePlan]) -> Target:
    """Return `target` with additional `files`, except files with a name that `target` has too."""
    plans = {**files, **target.files}
    sizes = {name: plan.size for name, plan in plans.items()}
    return replace(target, files=plans, checkpoint=replace(target.checkpoint, files=sizes))


def check_world_size(world_size: int) -> None:
    """Raise an error if `world_size` is not a number of ranks.

    Raises:
        BadRequest: `world_size` is less than 1.
    """
    if world_size < 1:
        raise BadRequest(
            f"--world-size is {world_size}, but a checkpoint is written for at least 1 rank; pass "
            "the number of ranks"
        )


def _notes(job: JobRecord, world_size: int) -> tuple[str, ...]:
    return (
        f"the random number state of {count_text(job.world_size, 'rank')} is not carried over to "
        f"{count_text(world_size, 'rank')}: random numbers are seeded again from seed and step",
    )


def _flat_keys(source: Checkpoint) -> dict[str, Key]:
    """Return {flat key in the output: key} for each tensor. A tensor without a flat key in the
    source gets the flat key that a zerotools job would use.
    """
    known = native_of(source).flat_keys
    return {known.get(key) or _flat_key(key): key for key in source.tensors}


def _flat_key(key: Key) -> str:
    weights = key.role in ("param", "buffer")
    return f"model.{key.name}" if weights else f"optim.{key.name}.{key.role}"


def _paths(
    source: Checkpoint, flat: Mapping[str, Key]
) -> Mapping[str, tuple[str | int, ...]] | None:
    if isinstance(source.native, DcpNative):
        return source.native.paths
    return {key: (key,) for key in flat}


def _entries(source: Checkpoint, flat: Mapping[str, Key]) -> dict[str, DcpEntry]:
    """Return all values that the output contains, keyed by flat key, in the order of the saved
    state dict.
    """
    native = native_of(source)
    blobs, tied = native.blobs, native.tied
    order = (*(_paths(source, flat) or ()), *native.order, *flat, *blobs)
    entries: dict[str, DcpEntry] = {}
    for key in dict.fromkeys(order):
        if key in flat:
            tensor = source.tensors[flat[key]]
            entries[key] = CopiedTensor(flat[key], tensor, not is_replicated(source, key, tensor))
        elif key in blobs:
            entries[key] = CarriedValue(blobs[key], source.root)
        elif key in tied:
            entries[key] = TiedTensor(tied[key])
    return entries


def _origin(source: Checkpoint, destination: Path, world_size: int) -> Origin:
    return replace(source.origin, format="dcp", path=destination, world_size=world_size, notes=())


def _job_files(source: Checkpoint, record: JobRecord) -> dict[str, FilePlan]:
    from zerotools.runs.training_record import record_to_json

    return {RECORD: file_of_bytes(record_to_json(record).encode()), **sidecar_files(source)}


def lay_out_job(
    source: Checkpoint,
    scalars: Mapping[Key, Scalar],
    record: JobRecord,
    destination: Path,
) -> Target:
    """Plan a checkpoint that a zerotools job can resume from, made from a checkpoint of any
    format.

    The tensors of `source` go to `dcp/` under the names that engine `torch` uses: fp32 masters,
    optimizer state, and each number in `scalars` (`step`) as a 0-d tensor. `record`, the sidecar
    files of the model and the manifest are written next to `dcp/`. `record` has the number of
    ranks.

    Raises:
        BadRequest: the number of ranks is less than 1.
    """
    check_world_size(record.world_size)
    weights = dict(_weights(source))
    state = dict(_state(source, scalars))
    numbers = tuple(flat for flat, entry in state.items() if isinstance(entry, KnownTensor))
    entries = {**weights, **state}
    laid_out = lay_out_directory(
        entries,
        {flat: tuple(flat.split(".", 1)) for flat in entries},
        record.world_size,
        prefix=f"{DCP}/",
    )
    said = replace(record, replicated=numbers)
    files = {
        **laid_out.files,
        **_job_files(source, said),
    }
    checkpoint = Checkpoint(
        root=destination,
        tensors=laid_out.tensors,
        origin=Origin("dcp", destination, world_size=record.world_size, step=record.step),
        aliases=source.aliases,
        files={name: plan.size for name, plan in files.items()},
    )
    return Target(
        checkpoint,
        files,
        with_manifest=True,
        carried=laid_out.known,
        sources={
            key: source.tensors[Key(key.name, "param16")]
            for key in laid_out.tensors
            if key not in source.tensors
        },
    )


def _weights(source: Checkpoint) -> Iterator[tuple[str, DcpEntry]]:
    """Yield the masters of all weights. A weight without a master is cast to fp32; a buffer keeps
    its dtype.
    """
    for key, tensor in source.tensors.items():
        if key.role == "param16" and Key(key.name, "param") not in source.tensors:
            key = Key(key.name, "param")
        if key.role in ("param", "buffer"):
            is_master = key.role == "param" and tensor.dtype.is_float
            yield f"model.{key.name}", _copied(key, tensor, is_master=is_master)


def _state(source: Checkpoint, scalars: Mapping[Key, Scalar]) -> Iterator[tuple[str, DcpEntry]]:
    for key, scalar in scalars.items():
        data = scalar_bytes(scalar.value, FLOAT32)
        yield f"optim.{key.name}.{key.role}", KnownTensor(key, Tensor(FLOAT32, (), ()), data)
    for key, tensor in source.tensors.items():
        if key.role not in (*WEIGHT_ROLES, STATE_ROLE) and key not in scalars:
            yield f"optim.{key.name}.{key.role}", _copied(key, tensor, is_master=True)


def _copied(key: Key, tensor: Tensor, *, is_master: bool) -> CopiedTensor:
    kept = replace(tensor, dtype=FLOAT32) if is_master else tensor
    return CopiedTensor(key, kept, bool(tensor.shape) and key.role != "buffer")

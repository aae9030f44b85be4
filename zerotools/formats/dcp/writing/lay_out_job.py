"""A checkpoint that a job of zerotools resumes from, made of one of any format.

The tensors lie in `dcp/` under the names that engine torch gives them: fp32 masters and optimizer
state, each number of the state (`step`) as a 0-d tensor. Around them are the record, the sidecar
files of the model and the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key, Origin, Tensor
from zerotools.core.dtypes import FLOAT32
from zerotools.core.target import Target
from zerotools.core.training import Scalar
from zerotools.formats.dcp.writing.lay_out import check_world_size
from zerotools.formats.dcp.writing.rank_files import (
    CopiedTensor,
    DcpEntry,
    KnownTensor,
    lay_out_directory,
)
from zerotools.formats.torch_optimizers import STATE_ROLE, WEIGHT_ROLES
from zerotools.io.numeric.scalars import scalar_bytes
from zerotools.io.output.plain_files import literal, sidecar_files
from zerotools.runs.file_names import DCP, RECORD
from zerotools.runs.record import JobRecord, record_to_json


def lay_out_job(
    source: Checkpoint,
    scalars: Mapping[Key, Scalar],
    record: JobRecord,
    destination: Path,
) -> Target:
    """Lay `source` and `scalars` out in `destination` for the ranks that `record` gives.

    Raises:
        BadRequest: it gives fewer ranks than 1.
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
        RECORD: literal(record_to_json(said).encode()),
        **sidecar_files(source),
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
    """Yield the masters or, without a master, the weight in fp32; buffers keep their type."""
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

"""accelerate's `parallelism_config`: how many ranks share a copy of the model, a layer of it, or a
sequence.

Names: accelerate 1.15, parallelism_config.py. The product of all sizes is the number of ranks. Of
`cp` (torch's, which sends keys and values round) and `sp` (DeepSpeed's, which exchanges heads) both
have ranks compute parts of one sequence, and shard the model over these ranks, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.batch import (
    JOB_SEQUENCE_RANKS,
    JOB_TENSOR_RANKS,
    world_size,
)
from zerotools.jobs.imports.reading.reader import ConfigReading
from zerotools.jobs.imports.reading.report import KeyOutcome
from zerotools.jobs.imports.reading.typed_keys import ConfigValue

_NAME = "parallelism_config"
_OF_SEQUENCES = ("cp", "sp")


@dataclass(frozen=True)
class Mesh:
    """The sizes of a mesh; their product is the number of ranks. `together` ranks compute each
    sequence."""

    copies: int
    shard: int
    tensor: int
    together: int

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.copies * self.shard * self.tensor * self.together

    def __str__(self) -> str:
        """Return the mesh as a product."""
        tensor = f" x {self.tensor} tensor ranks" if self.tensor > 1 else ""
        each = f" x {self.together} ranks that share sequences" if self.together > 1 else ""
        return f"{self.copies} copies x {self.shard} ranks that share one{tensor}{each}"


def read_parallelism(reading: ConfigReading, kind: str) -> None:
    """Map the sizes of data and tensor parallelism, and of ranks that share sequences."""
    given = reading.take(_NAME)
    if given is None:
        return
    table: Mapping[str, Any] = given.value if isinstance(given.value, Mapping) else {}
    names = ("dp_replicate", "dp_shard", "tp", *_OF_SEQUENCES)
    copies, shard, tensor, *both = (_size(reading, given, table, name) for name in names)
    if min(both) > 1:
        reading.findings.wrong.append(
            f"{given.said}: {_NAME}_cp_size = {both[0]} and {_NAME}_sp_size = {both[1]} both "
            "have ranks share sequences; leave one of them out"
        )
        return
    mesh = Mesh(copies, shard, tensor, max(both))
    if not _is_unfit(reading, given, mesh, kind):
        _map(reading, given, mesh, kind)


def _is_unfit(reading: ConfigReading, given: ConfigValue, mesh: Mesh, kind: str) -> bool:
    """Report a mesh that no job can have; return whether it is one."""
    ranks = world_size(reading.claims)
    if mesh.tensor > 1 and kind != "FSDP":
        reading.findings.unsupported.append(
            f"{given.said}.{_NAME}_tp_size = {mesh.tensor}: jobs support tensor parallelism "
            f"together with FSDP, and distributed_type is {kind}; set distributed_type: FSDP, or "
            "remove it"
        )
    elif mesh.tensor > 1 and mesh.copies > 1:
        reading.findings.unsupported.append(
            f"{given.said}.{_NAME}_tp_size = {mesh.tensor}: jobs do not support it together with "
            f"{mesh.copies} copies; remove one of them"
        )
    elif mesh.shard > 1 and kind not in ("FSDP", "DEEPSPEED"):
        reading.findings.wrong.append(
            f"{given.said}.{_NAME}_dp_shard_size = {mesh.shard}: shards the model, but "
            f"distributed_type {kind} does not; set distributed_type: FSDP, or remove it"
        )
    elif mesh.ranks > 1 and ranks is not None and ranks.value != mesh.ranks:
        reading.findings.wrong.append(
            f"{given.said}: {mesh} make {mesh.ranks} ranks, but {ranks.place} says "
            f"{ranks.value}; make them agree"
        )
    else:
        return False
    return True


def _map(reading: ConfigReading, given: ConfigValue, mesh: Mesh, kind: str) -> None:
    if mesh.together > 1:
        why = f"{mesh.together} ranks compute each sequence together"
        reading.map(given, JOB_SEQUENCE_RANKS, mesh.together, why)
    if mesh.tensor > 1:
        why = f"{mesh.tensor} ranks compute with one layer's weights together"
        reading.map(given, JOB_TENSOR_RANKS, mesh.tensor, why)
    elif kind == "FSDP" and mesh.copies > 1:
        size = mesh.shard * mesh.together
        why = f"{size} rank{'s' * (size > 1)} share each of {mesh.copies} copies (HSDP)"
        reading.map(given, "zero.shard_size", size, why)
    elif mesh.together == 1:
        reading.row(KeyOutcome.IGNORED, given, None, "all ranks share one copy, or each has a copy")


def _size(reading: ConfigReading, given: ConfigValue, table: Mapping[str, Any], name: str) -> int:
    value = table.get(f"{_NAME}_{name}_size")
    if value in (None, "", -1):
        return 1
    if type(value) is not int or value < 1:
        what = (
            f"{given.said}.{_NAME}_{name}_size = {show(value)}: must be a whole number, 1 or more"
        )
        reading.findings.wrong.append(what)
        return 1
    return value

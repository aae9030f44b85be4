"""Read from accelerate's YAML the number of ranks, their GPUs, and which ranks share a sequence or
layer.

The keys have the names of accelerate 1.15 (parallelism_config.py). The product of all sizes in
`parallelism_config` is the number of ranks. `cp` and `sp` are the numbers of ranks that compute
parts of one sequence; the model is sharded over these ranks, too. `cp` is torch's method, which
passes keys and values from rank to rank. `sp` is DeepSpeed's method, which exchanges heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.reading.batch_size import (
    JOB_SEQUENCE_RANKS,
    JOB_TENSOR_RANKS,
    ranks_key,
    world_size,
)
from zerotools.jobs.imports.reading.check_deepspeed_keys import ConfigValue
from zerotools.jobs.imports.reading.config_reader import ConfigReading
from zerotools.jobs.imports.reading.import_report import KeyOutcome, ReportRow
from zerotools.jobs.jobfile_tables.spec import NUMA_AUTO, NUMA_CORES
from zerotools.jobs.launcher_keys.launcher_flags import SEVERAL_MACHINES

_NAME = "parallelism_config"
_OF_SEQUENCES = ("cp", "sp")


@dataclass(frozen=True)
class Mesh:
    """The sizes of a mesh of ranks. The product of the sizes is the number of ranks.

    Attributes:
        copies: the number of copies of the model.
        shard: the number of ranks that share the weights of one copy.
        tensor: the number of ranks that share each layer (tensor parallelism).
        together: the number of ranks that share the computation of each sequence.
    """

    copies: int
    shard: int
    tensor: int
    together: int

    @property
    def ranks(self) -> int:
        """The number of all ranks."""
        return self.copies * self.shard * self.tensor * self.together

    def __str__(self) -> str:
        tensor = f" x {self.tensor} tensor ranks" if self.tensor > 1 else ""
        each = f" x {self.together} ranks that share sequences" if self.together > 1 else ""
        copies = f"{self.copies} {'copy' if self.copies == 1 else 'copies'} of the model"
        return f"{copies} x {self.shard} rank{'s' * (self.shard != 1)} per copy{tensor}{each}"


def read_parallelism(reading: ConfigReading, kind: str) -> None:
    """Translate the sizes in accelerate's `parallelism_config` to keys of the job file. `kind` is
    the `distributed_type`.
    """
    given = reading.pop(_NAME)
    if given is None:
        return
    table: Mapping[str, Any] = given.value if isinstance(given.value, Mapping) else {}
    names = ("dp_replicate", "dp_shard", "tp", *_OF_SEQUENCES)
    copies, shard, tensor, *both = (_size(reading, given, table, name) for name in names)
    if min(both) > 1:
        reading.findings.wrong.append(
            f"{given.label}: {_NAME}_cp_size = {both[0]} and {_NAME}_sp_size = {both[1]} cannot "
            "be combined, because each divides sequences among ranks; leave one of them out"
        )
        return
    mesh = Mesh(copies, shard, tensor, max(both))
    if not _is_unfit(reading, given, mesh, kind):
        _map(reading, given, mesh, kind)


def _is_unfit(reading: ConfigReading, given: ConfigValue, mesh: Mesh, kind: str) -> bool:
    """Return True if no job can have this mesh of ranks, and add the reason to the report."""
    ranks = world_size(reading.claims)
    if mesh.tensor > 1 and kind != "FSDP":
        reading.findings.unsupported.append(
            f"{given.label}.{_NAME}_tp_size = {mesh.tensor}: jobs support tensor parallelism "
            f"only with FSDP, but distributed_type is {kind}; set distributed_type: FSDP, or "
            "remove the size"
        )
    elif mesh.tensor > 1 and mesh.copies > 1:
        reading.findings.unsupported.append(
            f"{given.label}.{_NAME}_tp_size = {mesh.tensor}: jobs do not support tensor "
            f"parallelism together with {mesh.copies} copies of the model; remove one of them"
        )
    elif mesh.shard > 1 and kind not in ("FSDP", "DEEPSPEED"):
        reading.findings.wrong.append(
            f"{given.label}.{_NAME}_dp_shard_size = {mesh.shard}: shards the model, but "
            f"distributed_type {kind} never shards it; set distributed_type: FSDP, or remove the "
            "size"
        )
    elif mesh.ranks > 1 and ranks is not None and ranks.value != mesh.ranks:
        reading.findings.wrong.append(
            f"{given.label}: {mesh} = {mesh.ranks} ranks, but {ranks.place} says "
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
        reading.row(
            KeyOutcome.IGNORED,
            given,
            None,
            "all ranks share one copy of the model, or each has its own",
        )


def _size(reading: ConfigReading, given: ConfigValue, table: Mapping[str, Any], name: str) -> int:
    value = table.get(f"{_NAME}_{name}_size")
    if value in (None, "", -1):
        return 1
    if type(value) is not int or value < 1:
        key = f"{given.label}.{_NAME}_{name}_size"
        wrong = f"{key} = {format_value(value)}: must be a whole number of at least 1"
        reading.findings.wrong.append(wrong)
        return 1
    return value


def read_ranks(reading: ConfigReading, kind: str) -> None:
    """Translate `use_cpu`, `num_machines`, `num_processes` and `gpu_ids` to keys of the job
    file. `kind` is the `distributed_type`.
    """
    cpu = reading.pop("use_cpu")
    if cpu is not None and cpu.value is True:
        reading.map(cpu, "device", "cpu")
    elif cpu is not None:
        reading.row(KeyOutcome.IGNORED, cpu, None, "the job file chooses the machines")
    machines = reading.pop("num_machines")
    if machines is not None:
        if machines.value not in (None, 1):
            what = f"{machines.label} = {format_value(machines.value)}: {SEVERAL_MACHINES}"
            reading.findings.unsupported.append(what)
        reading.row(KeyOutcome.IGNORED, machines, None, "the job runs on one machine")
    processes, ids = reading.pop("num_processes"), reading.pop("gpu_ids")
    listed = None if ids is None else _listed(reading, ids)
    if ids is not None and not listed:
        reading.row(KeyOutcome.IGNORED, ids, None, "the daemon picks GPUs that are free")
    if processes is not None:
        _count(reading, processes, kind, listed)
    if ids is not None and listed:
        _map_gpus(reading, ids, listed)
    if kind != "NO" and world_size(reading.claims) is None:
        key, why = (
            ranks_key(reading.claims),
            "without it accelerate uses every GPU, but the job has one rank",
        )
        row = ReportRow(KeyOutcome.DEFAULT, "num_processes", reading.source, None, key, why)
        reading.findings.rows.append(row)


def read_affinity(reading: ConfigReading) -> None:
    """Translate `enable_cpu_affinity` to the job's key `numa`.

    The value false is ignored, because `accelerate config` writes it by default.
    """
    given, known = reading.pop("enable_cpu_affinity"), reading.claims.of("numa")
    if given is None:
        return
    if given.value is not True:
        why = 'with numa = "off" the kernel places the ranks'
        reading.row(KeyOutcome.IGNORED, given, None, why)
    elif known is not None and known.value == NUMA_CORES:
        reading.row(KeyOutcome.MAPPED, given, "numa", f'{known.place} says "{NUMA_CORES}"')
    else:
        reading.map(given, "numa", NUMA_AUTO)


def _listed(reading: ConfigReading, given: ConfigValue) -> list[int] | None:
    """Return the GPU indices in `gpu_ids`; None if the value is "all", missing, or invalid.

    An invalid value is reported.
    """
    if given.value in (None, "all", ""):
        return None
    entries = given.value if isinstance(given.value, list) else str(given.value).split(",")
    texts = [str(entry).strip() for entry in entries]
    if not all(text.isascii() and text.isdecimal() and len(text) < 5 for text in texts):
        what = (
            f'{given.label} = {format_value(given.value)}: must be "all" or indices such as "0,1"'
        )
        if str(given.value).startswith("all"):
            what += '; did you mean "all"?'
        reading.findings.wrong.append(what)
        return None
    return [int(text) for text in texts]


def _count(reading: ConfigReading, given: ConfigValue, kind: str, listed: list[int] | None) -> None:
    if type(given.value) is not int or given.value < 1:
        what = f"{given.label} = {format_value(given.value)}: must be a whole number of at least 1"
        reading.findings.wrong.append(what)
        return
    key = ranks_key(reading.claims)
    if kind == "NO" and given.value > 1:
        why = "distributed_type NO means one process"
        reading.row(KeyOutcome.IGNORED, given, None, why)
        return
    if listed is not None and len(listed) != given.value:
        what = f"{given.label} = {given.value}: gpu_ids lists {len(listed)} GPUs; make them agree"
        reading.findings.wrong.append(what)
        return
    known = world_size(reading.claims)
    if listed is None and (known is None or known.value != given.value):
        reading.map(given, key, given.value)
    else:
        reading.row(KeyOutcome.MAPPED, given, key)


def _map_gpus(reading: ConfigReading, given: ConfigValue, listed: list[int]) -> None:
    key = ranks_key(reading.claims)
    known = world_size(reading.claims)
    if key == "ranks" or (known is not None and known.value == len(listed)):
        why = "the daemon picks GPUs" if key == "gpus" else "the ranks run on the CPU"
        reading.row(KeyOutcome.IGNORED, given, None, why)
    else:
        reading.map(given, key, listed)

"""Whether a job can fit into the memory of this machine at all, before it is accepted.

The estimate of `zerotools estimate`, made by the process that looks at the job's files. A job is
refused where even `SURE` of what is foreseen is more than there is: an estimate may be too high by
a quarter with short sequences (benchmarks/results/memory-accuracy.md), and a job that would have
fitted must not be turned away. What the job declares in `[memory]` counts more than any estimate.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from zerotools.core.errors import ZerotoolsError
from zerotools.core.memory_layout import NF4
from zerotools.jobs.estimating.estimating import offload_of
from zerotools.jobs.estimating.job_workload import with_ranks, workload_of
from zerotools.jobs.tables.spec import JobSpec
from zerotools.ops.estimate.choosing import (
    ALL,
    NONE,
    OPTIMIZER,
    Row,
    Workload,
    row_of_layout,
    rows_of,
)
from zerotools.ops.estimate.terms import NOT_MEASURED, Machine
from zerotoolsd.queue.expected import SURE

GIB = 1 << 30
LESS = 0.9
"""A setting that takes less of the host than this is worth a word."""
_PROCESS = "process"


@dataclass(frozen=True)
class ForeseenRow:
    """Bytes of one setting: the most on a GPU, and that without what is not measured; of the host's
    memory all ranks together, without their programs."""

    stage: int
    offload: str
    checkpointing: bool
    gpu: int
    gpu_tensors: int
    host: int


@dataclass(frozen=True)
class Foreseen:
    """The job as it is, and what else there is, fastest first. Without `knows_activations` the
    bytes are of the state alone."""

    asked: ForeseenRow
    others: tuple[ForeseenRow, ...]
    knows_activations: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `foreseen_of`."""
        return asdict(self)


def foreseen_of(tree: Mapping[str, Any] | None) -> Foreseen | None:
    """The value of `Foreseen.to_json`."""
    if tree is None:
        return None
    others = tuple(ForeseenRow(**row) for row in tree["others"])
    return Foreseen(ForeseenRow(**tree["asked"]), others, tree["knows_activations"])


def foresee(spec: JobSpec) -> Foreseen | None:
    """The memory of a job, of an elastic one with the most ranks; None: it cannot be known. Reads
    the model's config, or the headers of its weights."""
    if spec.engine == "script":
        return None
    try:
        if spec.sizes:
            spec = with_ranks(spec, max(spec.sizes))
        work = workload_of(spec, asks=False)
    except (ZerotoolsError, OSError):  # what is wrong with the model is said by who looks at it
        return None
    ranks = work.layout.world_size
    machine = Machine(ranks, 0, 0, spec.device == "cuda", node_ranks=spec.world_size)
    asked = row_of_layout(work, machine, work.layout, offload_of(work.layout))
    others = [_row(row, machine, work) for row in rows_of(work, machine)]
    if work.micro is not None and not work.micro.checkpointing:
        again = replace(work, micro=replace(work.micro, checkpointing=True))
        others += [_row(row, machine, again) for row in rows_of(again, machine)]
    others.sort(key=lambda row: row.offload != NONE)
    return Foreseen(_row(asked, machine, work), tuple(others), asked.memory.knows_activations)


def _row(row: Row, machine: Machine, work: Workload) -> ForeseenRow:
    memory = row.memory
    unsure = sum(memory.device.get(term, 0) for term in NOT_MEASURED)
    host = sum(size for term, size in memory.host.items() if term != _PROCESS)
    if not machine.on_gpu:
        host += memory.peak
    again = work.micro is not None and work.micro.checkpointing
    ranks = machine.ranks_of_node
    return ForeseenRow(
        row.stage, row.offload, again, memory.peak, memory.peak - unsure, host * ranks
    )


def why_never(
    spec: JobSpec, foreseen: Foreseen, gpu_memory: int | None, host_memory: int
) -> str | None:
    """Why the job can never fit; `gpu_memory` is that of the largest GPU, None: not known."""
    asked = foreseen.asked
    what = "" if foreseen.knows_activations else " for its state alone"
    needs = None
    on_gpu = spec.device == "cuda" and spec.memory.per_gpu is None and gpu_memory is not None
    if on_gpu and SURE * asked.gpu_tensors > (gpu_memory or 0):
        needs = (
            f"{_size(asked.gpu_tensors)} of each GPU{what}, and the largest of this machine has "
            f"{_size(gpu_memory or 0)}"
        )
        declared = "memory.per_gpu"
    elif spec.memory.host is None and SURE * asked.host > host_memory:
        needs = (
            f"{_size(asked.host)} of host memory{what}, and this machine has {_size(host_memory)}"
        )
        declared = "memory.host"
    if needs is None:
        return None
    would = _would_fit(spec, foreseen, gpu_memory, host_memory)
    return (
        f"the job will not fit: it is estimated to need {needs}; {would}, or declare {declared} if "
        "you know better (zerotools estimate shows all that it is made of)"
    )


def expected_text(spec: JobSpec, foreseen: Foreseen | None) -> str | None:
    """What the scheduler goes by where nothing is declared, for `queue.expected`."""
    if foreseen is None:
        return None
    asked = foreseen.asked
    least = min(foreseen.others, key=lambda row: row.host, default=asked)
    less = " and ".join(_settings(spec, least)) if least.host < LESS * asked.host else None
    return json.dumps({"gpu": asked.gpu_tensors, "host": asked.host, "less_host": less})


def note_of(spec: JobSpec, foreseen: Foreseen, gpu_memory: int | None, host_memory: int) -> str:
    """What is foreseen of a job that is accepted, in one sentence."""
    asked = foreseen.asked
    at_least = "" if foreseen.knows_activations else "for its state alone "
    host = f", {_size(asked.host)} of the host's {_size(host_memory)}"
    if not asked.host:
        host = ", and of the host's what its processes take by themselves"
    if spec.device != "cuda":
        said = f"memory: {at_least}about {host.removeprefix(', ')}"
    else:
        of = "" if gpu_memory is None else f" of {_size(gpu_memory)}"
        said = f"memory: {at_least}about {_size(asked.gpu)}{of} on each GPU{host}"
    tight = gpu_memory is not None and spec.device == "cuda" and asked.gpu > gpu_memory
    if tight or asked.host > host_memory:
        said += (
            f"; that is more than there is: {_would_fit(spec, foreseen, gpu_memory, host_memory)}"
        )
    return said


def _would_fit(spec: JobSpec, foreseen: Foreseen, gpu_memory: int | None, host_memory: int) -> str:
    """The fastest setting that fits, as keys of the job."""
    for row in foreseen.others:
        fits = gpu_memory is None or spec.device != "cuda" or row.gpu <= gpu_memory
        if fits and row.host <= host_memory:
            return f"{' and '.join(_settings(spec, row))} would fit"
    more = "more GPUs" if spec.device == "cuda" else "a smaller model"
    return f"no stage and offload makes it fit: take {more}, or {_smaller(spec)}"


def _smaller(spec: JobSpec) -> str:
    lora = spec.lora
    if lora.rank is None:
        return "train adapters ([lora])"
    if spec.engine == "torch" and spec.model.path is not None and not lora.packs_frozen:
        return f'keep frozen weights in 4 bits (lora.frozen_precision = "{NF4}")'
    return "take shorter sequences"


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.1f} MiB"


def _settings(spec: JobSpec, row: ForeseenRow) -> Iterator[str]:
    """The keys in which a row differs from the job, all where they are those of DeepSpeed."""
    if spec.engine == "deepspeed":
        yield f"ZeRO stage {row.stage}" + (
            "" if row.offload == NONE else f", offload {row.offload}"
        )
    else:
        if row.stage != spec.zero.stage:
            yield f"zero.stage = {row.stage}"
        if row.offload == NONE and spec.offload.optimizer != "none":
            yield 'offload.optimizer = "none"'
        if row.offload in (OPTIMIZER, ALL) and spec.offload.optimizer == "none":
            yield 'offload.optimizer = "cpu"'
        if row.offload == ALL and spec.offload.params == "none":
            yield 'offload.params = "cpu"'
    if row.checkpointing and not spec.train.activation_checkpointing:
        yield "train.activation_checkpointing = true"

"""Checks, before a job is accepted, that the job can fit into this machine's memory.

The check uses the same estimate as `zerotools estimate`. The process that reads the job's files
computes the estimate, and finds alternative settings that would fit. With short sequences an
estimate may be too high by a quarter (benchmarks/results/memory-accuracy.md). So a job is refused
only if `SURE` times the estimate (`SURE` is below 1) is more than the machine has. If the job
declares its memory in `[memory]`, the declared values are used instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
from zerotools.jobs.jobfile.parse import given_of
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.memory_estimates.job_workload import with_ranks, workload_of
from zerotools.jobs.memory_estimates.tokenizer_processes import tokenizing_bytes
from zerotools.jobs.memory_estimates.training_estimate import estimate_job, offload_of
from zerotools.jobs.memory_estimates.write_configs import keys_text, layout_keys
from zerotools.ops.estimate.offload_table import Row, Workload, row_of_layout, rows_of
from zerotools.ops.estimate.rank_memory import NOT_MEASURED, Machine
from zerotools.ops.estimate.recommendation import excess_text
from zerotoolsd.queue.expected_memory import SURE

GIB = 1 << 30
LESS = 0.9
"""A setting is recommended if it needs at most this fraction of the host memory that the job
needs.
"""
MOST_WAYS = 3
"""The largest number of alternative settings in the message that refuses a job."""
_PROCESS = "process"


@dataclass(frozen=True)
class MachineMemory:
    """The memory that a job can use, in bytes: of each GPU, and of the host. The GPU memory is None
    if it is unknown or the job uses no GPU.
    """

    gpu: int | None
    host: int


@dataclass(frozen=True)
class EstimatedSetting:
    """The estimated memory, in bytes, of a job with given settings.

    Attributes:
        gpu: the largest amount of memory on any GPU.
        gpu_measured: the same amount without the terms in `NOT_MEASURED`.
        host: the host memory of all ranks together, without the memory of their programs. If the
            tokenisation before the training needs more host memory, its need counts instead.
    """

    gpu: int
    gpu_measured: int
    host: int


@dataclass(frozen=True)
class JobMemoryEstimate:
    """The memory estimate of a job, and alternative settings that need less memory.

    `ways` are alternative settings with which the job would fit, each as text with keys of the job
    file, the cheapest first. `nearest` is the setting that comes closest if no setting fits.
    `less_host` are keys with which the job needs less host memory. If `knows_activations` is False,
    the bytes cover only weights, gradients and optimizer state.
    """

    asked: EstimatedSetting
    knows_activations: bool
    ways: tuple[str, ...] = ()
    nearest: str | None = None
    less_host: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return all fields, keyed by name, as JSON values for `estimate_from_json`."""
        return asdict(self)


def estimate_from_json(tree: Mapping[str, Any] | None) -> JobMemoryEstimate | None:
    """Return the `JobMemoryEstimate` with the JSON values `tree`; None if `tree` is None."""
    if tree is None:
        return None
    asked = EstimatedSetting(**tree["asked"])
    return JobMemoryEstimate(**{**tree, "asked": asked, "ways": tuple(tree["ways"])})


def estimate_job_memory(spec: JobSpec, memory: MachineMemory) -> JobMemoryEstimate | None:
    """Estimate the memory of a job; return None if it cannot be estimated.

    An elastic job is estimated with its largest number of ranks. Reads the model's config, or the
    headers of its weights.
    """
    if spec.engine == "script":
        return None
    try:
        if spec.sizes:
            spec = with_ranks(spec, max(spec.sizes))
        work = workload_of(spec, asks=False)
    except (ZerotoolsError, OSError):  # errors of the model are reported by its own check
        return None
    on_gpu = spec.device == "cuda"
    # Nodes of other daemons are assumed to have as much memory as this machine.
    machine = Machine(
        work.layout.world_size, memory.gpu or 0, memory.host, on_gpu, node_ranks=spec.world_size
    )
    row = row_of_layout(work, machine, work.layout, offload_of(work.layout))
    asked = _row(row, machine)
    less_host = _less_host(spec, asked, work, machine)
    # Tokenisation ends before the training begins, so the larger of the two counts.
    asked = replace(asked, host=max(asked.host, tokenizing_bytes(spec)))
    found = JobMemoryEstimate(asked, row.memory.knows_activations, less_host=less_host)
    is_silent = on_gpu and memory.gpu is None
    if is_silent or machine.has_room(asked.gpu, asked.host):
        return found
    return _with_ways(found, spec, work, machine)


def _with_ways(
    found: JobMemoryEstimate, spec: JobSpec, work: Workload, machine: Machine
) -> JobMemoryEstimate:
    estimate = estimate_job(work, machine, job=given_of(spec))
    near = estimate.search.nearest
    nearest = None
    if near is not None:
        keys = keys_text(estimate.keys_of(near)) or "the job as it is"
        at = replace(machine, gpus=near.row.layout.world_size)
        nearest = f"the closest setting, {keys}, {excess_text(at, near.row)}"
    ways = filter(None, (keys_text(estimate.keys_of(way)) for way in estimate.ways))
    return replace(found, ways=tuple(ways), nearest=nearest)


def _row(row: Row, machine: Machine) -> EstimatedSetting:
    memory = row.memory
    unsure = sum(memory.device.get(term, 0) for term in NOT_MEASURED)
    host = sum(size for term, size in memory.host.items() if term != _PROCESS)
    if not machine.on_gpu:
        host += memory.peak
    return EstimatedSetting(memory.peak, memory.peak - unsure, host * machine.ranks_of_node)


def _less_host(
    spec: JobSpec, asked: EstimatedSetting, work: Workload, machine: Machine
) -> str | None:
    """Return the keys of the setting that needs the least host memory; None if this is not clearly
    less than the job needs now (`LESS`).
    """
    again = [work]
    if work.micro is not None and not work.micro.checkpointing:
        again.append(replace(work, micro=replace(work.micro, checkpointing=True)))
    best, text = LESS * asked.host, None
    for each in again:
        for row in rows_of(each, machine):
            host = _row(row, machine).host
            if host < best:
                best, text = host, " and ".join(_settings(spec, row, each))
    return text


def why_never(spec: JobSpec, foreseen: JobMemoryEstimate, memory: MachineMemory) -> str | None:
    """Return the reason why the job cannot fit into `memory` at all; None if it may fit."""
    asked = foreseen.asked
    what = "" if foreseen.knows_activations else " for its state alone"
    needs = None
    on_gpu = spec.device == "cuda" and spec.memory.per_gpu is None and memory.gpu is not None
    if on_gpu and SURE * asked.gpu_measured > (memory.gpu or 0):
        needs = (
            f"{_size(asked.gpu_measured)} of each GPU{what}, but the GPUs for it have "
            f"{_size(memory.gpu or 0)}"
        )
        declared = "memory.per_gpu"
    elif spec.memory.host is None and SURE * asked.host > memory.host:
        needs = (
            f"{_size(asked.host)} of host memory{what}, but this machine has {_size(memory.host)}"
        )
        declared = "memory.host"
    if needs is None:
        return None
    return (
        f"the job will not fit: it is estimated to need {needs}; {_would_fit(spec, foreseen)}; or, "
        f"if the estimate is too high, set {declared} (zerotools estimate shows each part)"
    )


def expected_text(foreseen: JobMemoryEstimate | None) -> str | None:
    """Return the estimate as JSON text for the scheduler; None if `foreseen` is None.

    The scheduler uses it for a job without a declaration in `[memory]` (`queue.expected_memory`).
    """
    if foreseen is None:
        return None
    asked = foreseen.asked
    return json.dumps(
        {"gpu": asked.gpu_measured, "host": asked.host, "less_host": foreseen.less_host}
    )


def note_of(spec: JobSpec, foreseen: JobMemoryEstimate, memory: MachineMemory) -> str:
    """Return a sentence with the memory estimate of an accepted job."""
    asked = foreseen.asked
    at_least = "" if foreseen.knows_activations else "for its state alone "
    host = f", {_size(asked.host)} of the host's {_size(memory.host)}, its processes not counted"
    if not asked.host:
        host = ", and the memory that its processes take on the host"
    if spec.device != "cuda":
        said = f"memory: {at_least}about {host.removeprefix(', ')}"
    else:
        of = "" if memory.gpu is None else f" of {_size(memory.gpu)}"
        said = f"memory: {at_least}about {_size(asked.gpu)}{of} on each GPU{host}"
    tight = memory.gpu is not None and spec.device == "cuda" and asked.gpu > memory.gpu
    if tight or asked.host > memory.host:
        said += f"; this machine has less: {_would_fit(spec, foreseen)}"
    return said


def _would_fit(spec: JobSpec, foreseen: JobMemoryEstimate) -> str:
    """Return text for a message: with which other settings the job would fit."""
    if foreseen.ways:
        return f"{'; or '.join(foreseen.ways[:MOST_WAYS])} would fit"
    near = f": {foreseen.nearest}" if foreseen.nearest else ""
    more = "more GPUs, shorter sequences" if spec.device == "cuda" else "shorter sequences"
    return (
        f"no offload, checkpointing or smaller batch makes it fit{near}; take {more} or a smaller "
        "model"
    )


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.1f} MiB"


def _settings(spec: JobSpec, row: Row, work: Workload) -> Iterator[str]:
    """Yield the keys of the job file that the settings in `row` of the estimate change."""
    yield from filter(None, [keys_text(layout_keys(row.layout, memory_layout_of(spec)))])
    again = work.micro is not None and work.micro.checkpointing
    if again and not spec.train.activation_checkpointing:
        yield "train.activation_checkpointing = true"

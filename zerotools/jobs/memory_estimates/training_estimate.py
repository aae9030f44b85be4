"""Estimate the memory that a job, or a model with command-line options, needs on a machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerotools.core.errors import ZerotoolsError
from zerotools.core.training_memory_layout import SHARDED, MemoryLayout
from zerotools.jobs.jobfile.parse import job_from_tree
from zerotools.jobs.jobfile_tables.model import AUTO
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.memory_estimates.write_configs import (
    accelerate_text,
    deepspeed_tree,
    job_tree,
    way_keys,
    with_keys,
)
from zerotools.ops.estimate.activation_memory import EAGER, REPEATED, MicroBatch, attention_on_gpus
from zerotools.ops.estimate.fit_search import AllowedChanges, Way, Ways, ways_of
from zerotools.ops.estimate.offload_table import (
    ALL,
    ALL_DISK,
    DISK,
    NONE,
    OFFLOADS,
    OPTIMIZER,
    PARAMS,
    STAGES,
    Row,
    Workload,
    row_of_layout,
    rows_of,
)
from zerotools.ops.estimate.parameter_shapes import USUAL_LENGTH, ModelShape
from zerotools.ops.estimate.rank_memory import NOT_MEASURED, Machine, RankMemory
from zerotools.ops.estimate.recommendation import Choice, choose_cheapest
from zerotools.sensors.snapshot import BF16_CAPABILITY, Snapshot

SCHEMA = "zerotools.estimate/1"


FLASH = "torch's flash kernel"
EFFICIENT = "torch's memory-efficient kernel (keys and values repeated for each query head)"
SCORES = "the scores of all pairs of tokens stay in memory"


@dataclass(frozen=True)
class Estimate:
    """The memory estimate for one training on one machine.

    Attributes:
        rows: the memory for each ZeRO stage and offload.
        search: the configurations that fit.
        choice: the cheapest configuration in `search`.
        asked: the estimate of the job with the settings of its job file; None if no job file was
            given.
        job: all keys of the job file; None if no job file was given.
        batch: the number of sequences per step in the job file; None if no job file was given.
        tables: the tables of a job file for the model and its adapters.
        assumed: a sentence about the assumed sequence length; None if the request states a length.
    """

    work: Workload = field(repr=False)
    machine: Machine
    rows: tuple[Row, ...] = field(repr=False)
    choice: Choice = field(repr=False)
    asked: Row | None = field(default=None, repr=False)
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    batch: int | None = None
    search: Ways = field(default_factory=lambda: Ways(()), repr=False)
    job: Mapping[str, Any] | None = field(default=None, repr=False)
    assumed: str | None = None

    @property
    def ways(self) -> tuple[Way, ...]:
        """The configurations that make the training fit, the cheapest first.

        Each configuration changes as few settings as possible.
        """
        return self.search.found

    @property
    def fits(self) -> bool:
        """True if the training fits on the machine.

        If there is a job file, the job must fit with its settings. Otherwise, training of all
        weights must fit with some ZeRO stage and offload. If the memory of activations is not
        known, only weights, gradients and optimizer state are counted.
        """
        row = self.choice.row if self.asked is None else self.asked
        return row is not None and row.fits is not False

    @property
    def stage(self) -> int | None:
        """The ZeRO stage of the cheapest configuration that fits; None if nothing fits."""
        return None if self.choice.row is None else self.choice.row.stage

    @property
    def offload(self) -> str | None:
        """The offload of the cheapest configuration that fits, such as "none" or "optimizer";
        None if nothing fits.
        """
        return None if self.choice.row is None else self.choice.row.offload

    @property
    def peak_bytes(self) -> int | None:
        """The memory that each GPU needs in the cheapest configuration that fits, in bytes;
        None if nothing fits.
        """
        return None if self.choice.row is None else self.choice.row.peak_bytes

    @property
    def host_bytes(self) -> int | None:
        """The host memory that all ranks of one node need in the cheapest configuration that
        fits, in bytes; None if nothing fits.
        """
        return None if self.choice.row is None else self.choice.row.host_bytes

    @property
    def reason(self) -> str:
        """The reason why `choice` is the cheapest configuration, or why nothing fits."""
        return self.choice.reason

    @property
    def advice(self) -> tuple[str, ...]:
        """Advice for the user, as sentences."""
        return self.choice.advice

    @property
    def largest_batch(self) -> int | None:
        """The number of sequences in the largest micro batch that fits on a GPU in the cheapest
        configuration. The sequences have the requested length.
        """
        return self.choice.largest_batch

    @property
    def largest_sequence_length(self) -> int | None:
        """The number of tokens in the longest sequence that fits in the cheapest configuration,
        with one sequence at a time.
        """
        return self.choice.largest_sequence

    @property
    def parameters(self) -> int:
        """The number of parameters of the model."""
        return self.work.model.count

    @property
    def notes(self) -> tuple[str, ...]:
        """The assumptions that the estimate makes, as sentences."""
        micro = self.work.micro if self.machine.on_gpu else None
        kernel = None if micro is None else attention_assumption(micro)
        assumed = (each for each in (self.assumed, kernel) if each is not None)
        return (*assumed, *self.work.model.notes, *self.machine.notes)

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as values for JSON. All sizes are in bytes."""
        work, chosen = self.work, self.choice.row
        micro = work.micro
        return {
            "schema": SCHEMA,
            "model": {
                "source": work.model.source,
                "parameters": work.model.count,
                "trained": sum(p.numel for p in work.model.parameters if p.is_trained),
                "knows_activations": work.model.architecture is not None,
            },
            "machine": {
                "gpus": self.machine.gpus,
                "gpu_memory_bytes": self.machine.gpu_memory if self.machine.on_gpu else None,
                "host_memory_bytes": self.machine.host_memory,
            },
            "engine": work.layout.engine,
            "precision": work.layout.precision,
            "optimizer": work.layout.optimizer,
            "micro_batch": None
            if micro is None
            else {
                "sequences": micro.batch,
                "sequence_length": micro.sequence,
                "activation_checkpointing": micro.checkpointing,
            },
            "rows": [_row_json(row) for row in self.rows],
            "asked": None if self.asked is None else _row_json(self.asked),
            "choice": None if chosen is None else _row_json(chosen),
            "reason": self.choice.reason,
            "advice": list(self.choice.advice),
            "largest_batch": self.choice.largest_batch,
            "largest_sequence": self.choice.largest_sequence,
            "notes": list(self.notes),
            "not_measured": list(NOT_MEASURED) if self.machine.on_gpu else [],
            "configs": None if self.search.best is None else self.configs(self.search.best),
            "ways": [self._way_json(way) for way in self.ways],
            "nearest": None if self.search.nearest is None else self._way_json(self.search.nearest),
        }

    def configs(self, way: Way) -> dict[str, Any]:
        """Return the config files for the configuration `way`, keyed by the program that reads the
        file."""
        micro, layout = way.work.micro, way.row.layout
        tables = {**self._model_table(way), **self.tables, **way.lora_table}
        batch = self.batch or self._batch_of_step
        return {
            "job": job_tree(tables, layout, micro, batch, on_gpu=self.machine.on_gpu),
            "deepspeed": deepspeed_tree(layout, micro),
            "accelerate": accelerate_text(layout),
        }

    def job_of(self, way: Way) -> dict[str, Any]:
        """Return the keys of the job file with the changes of the configuration `way`. Without a
        job file, return only the keys that the estimate knows."""
        if self.job is None:
            tree: dict[str, Any] = self.configs(way)["job"]
            return tree
        return with_keys(self.job, self.keys_of(way))

    def keys_of(self, way: Way) -> dict[str, Any]:
        """Return the keys of the job file that `way` changes: dotted name -> value.

        The value None means that the key is removed.
        """
        asked = None if self.asked is None else self.asked.layout
        return way_keys(way, self.work, asked, self.batch)

    def _model_table(self, way: Way) -> dict[str, Any]:
        """Return the table `[model]` for a model that is given only as a number of parameters.

        Such a model has no weights, so adapters are not possible.
        """
        shape, micro = self.work.model.config, way.work.micro
        if shape is None or way.lora_table:
            return {}
        positions = max(USUAL_LENGTH, 0 if micro is None else micro.sequence)
        return {"model": {"config": {**shape, "max_position_embeddings": positions}}}

    @property
    def _batch_of_step(self) -> int | None:
        micro, layout = self.work.micro, self.work.layout
        if micro is None:
            return None
        times = 1 if layout.accumulate is None else 2
        shares = max(1, layout.world_size // (micro.sequence_ranks * layout.tensor_ranks))
        return times * micro.examples * shares

    def _way_json(self, way: Way) -> dict[str, Any]:
        return {
            "changes": [change.name.lower() for change in way.changes],
            "words": way.words,
            "slowdown": way.slowdown.value,
            "gpus": way.row.layout.world_size if self.machine.on_gpu else None,
            "stage": way.row.stage,
            "offload": way.row.offload,
            "fits": way.row.fits,
            "as_asked": way.is_as_asked,
            "peak_bytes": way.row.peak_bytes,
            "host_bytes": way.row.host_bytes,
            "disk_bytes": way.disk_bytes,
            "keys": self.keys_of(way),
        }


def _row_json(row: Row) -> dict[str, Any]:
    memory: RankMemory = row.memory
    return {
        "stage": row.stage,
        "offload": row.offload,
        "fits": row.fits,
        "peak_bytes": memory.peak,
        "device_bytes": dict(memory.device),
        "host_bytes_of_rank": dict(memory.host),
        "host_bytes": row.host_bytes,
        "disk_bytes_of_rank": memory.disk,
    }


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The settings of a training that has no job file.

    Each rank processes `batch` sequences of `sequence` tokens (None: the model's usual length) at a
    time.
    """

    batch: int = 1
    sequence: int | None = None
    precision: str = "bf16"
    optimizer: str = "adamw"
    engine: str = "torch"
    accumulation: int = 1
    checkpointing: bool = False


def estimate_model(
    model: ModelShape,
    machine: Machine,
    settings: TrainingSettings,
    *,
    stages: Sequence[int] = STAGES,
    offloads: Sequence[str] = OFFLOADS,
    model_table: Mapping[str, Any] | None = None,
) -> Estimate:
    """Estimate the memory of training a model, for every ZeRO stage and offload."""
    precision, sequence = settings.precision, settings.sequence
    layout = MemoryLayout(
        stage=3,
        world_size=machine.gpus,
        precision=precision,
        optimizer=settings.optimizer,
        accumulate=SHARDED if settings.accumulation > 1 else None,
        engine=settings.engine,
    )
    longest = sequence or model.usual_length
    micro = MicroBatch(
        settings.batch, longest, precision, settings.checkpointing, attention_on_gpus(precision)
    )
    tables = {"model": model_table} if model_table else {}
    # A model that is only a size, or a directory, may have weights to train adapters on.
    has_weights = "config" not in tables.get("model", {})
    allowed = AllowedChanges(
        stages=stages, offloads=offloads, adapters=has_weights, packed=has_weights
    )
    work = Workload(model, layout, micro, sums=layout.accumulate)
    found = estimate_work(work, machine, allowed, tables)
    return found if sequence else replace(found, assumed=assumed_length(model))


def estimate_job(
    work: Workload,
    machine: Machine,
    stages: Sequence[int] = STAGES,
    offloads: Sequence[str] = OFFLOADS,
    job: Mapping[str, Any] | None = None,
) -> Estimate:
    """Estimate the memory of the job `work` as written, and with every other ZeRO stage and
    offload. `job` has the keys of the job file.
    """
    work = replace(work, layout=replace(work.layout, world_size=machine.gpus))
    asked = row_of_layout(work, machine, work.layout, offload_of(work.layout))
    keys = job or {}
    tables = {name: keys[name] for name in ("model", "lora") if name in keys}
    batch = keys.get("train", {}).get("batch_size")
    has_weights = "path" in tables.get("model", {})
    is_fresh = "resume_from" not in keys  # a resumed run keeps its optimizer and its parameters

    def allows(way: Way) -> bool:
        if not keys or work.layout.engine != "torch":
            return True
        changed = with_keys(keys, way_keys(way, work, work.layout, batch))
        try:
            job_from_tree(changed, source="job", base_dir=Path.cwd())
        except ZerotoolsError:
            return False
        return True

    free = AllowedChanges(
        stages=stages,
        offloads=offloads,
        optimizer=is_fresh,
        adapters=has_weights and is_fresh,
        packed=has_weights,
        allows=allows,
    )
    found = estimate_work(work, machine, free, tables)
    return replace(found, asked=asked, batch=batch, job=job)


def offload_of(layout: MemoryLayout) -> str:
    """Return the name that the table of estimates has for the offload of a memory layout, such as
    "optimizer".
    """
    optimizer, params = layout.offload_optimizer, layout.offload_params != "none"
    if optimizer == "disk":
        return ALL_DISK if params else DISK
    if params:
        return ALL if optimizer != "none" or layout.engine == "torch" else PARAMS
    return NONE if optimizer == "none" else OPTIMIZER


def estimate_work(
    work: Workload, machine: Machine, free: AllowedChanges, tables: Mapping[str, Mapping[str, Any]]
) -> Estimate:
    """Estimate the memory of `work` for every ZeRO stage and offload, and find the changes of
    settings that make it fit. `free` determines which settings may be changed.

    `tables` are the tables of a job file for the model and its adapters.
    """
    rows = rows_of(work, machine, free.stages, free.offloads)
    ways = ways_of(work, machine, free)
    choice = choose_cheapest(work, machine, rows, ways)
    return Estimate(work, machine, tuple(rows), choice, tables=tables, search=ways)


def assumed_length(model: ModelShape) -> str:
    """Return a sentence about the sequence length that is assumed if the request does not state
    one.
    """
    return (
        f"sequences of {model.usual_length:,} tokens are assumed; --sequence-length sets another "
        "length"
    )


def model_table_of(model: str) -> dict[str, Any]:
    """Return the job file's table `[model]` for the model path of a command line.

    The table is empty if nothing exists at this path.
    """
    path = Path(model)
    if not path.exists():
        return {}
    return {"config" if path.is_file() else "path": str(path.absolute())}


def attention_assumption(micro: MicroBatch) -> str | None:
    """Return a sentence about the attention kernel that the estimate assumes; None if the estimate
    assumes the flash kernel.
    """
    if micro.attention == EAGER:
        return f"attention: eager, so {SCORES}"
    if micro.attention != REPEATED:
        return None
    if micro.precision == "fp32":
        return f"attention: {EFFICIENT}; no GPU has a flash kernel for fp32"
    return (
        f"attention: {EFFICIENT}, as on V100, T4 and RTX 20; GPUs of compute capability 8.0 and "
        "newer have a flash kernel, which needs less memory"
    )


def kernels_of(spec: JobSpec, snapshot: Snapshot) -> str | None:
    """Return a sentence about the attention kernel that the job uses on each kind of GPU of
    this machine; None if no GPU is known.
    """
    wanted = spec.model.attention
    if wanted == EAGER:
        return f"attention: eager, so {SCORES}"
    if wanted not in (None, AUTO, "sdpa"):
        return f"attention: {wanted}"
    found = dict.fromkeys(_kernels_by_gpu(spec.train.precision, snapshot))
    return f"attention: {'; '.join(found)}" if found else None


def _kernels_by_gpu(precision: str, snapshot: Snapshot) -> Iterator[str]:
    for gpu in snapshot.gpus:
        if gpu.compute_capability is None:
            continue
        has_flash = precision != "fp32" and gpu.compute_capability >= BF16_CAPABILITY
        capability = ".".join(map(str, gpu.compute_capability))
        where = f"{gpu.name or 'a GPU'} (compute capability {capability})"
        yield f"{FLASH if has_flash else EFFICIENT} on {where}"

"""One estimate: of a model and what was asked of it, or of a job, on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerotools.core.memory_layout import SHARDED, MemoryLayout
from zerotools.jobs.estimating.written import accelerate_text, deepspeed_tree, job_tree
from zerotools.ops.estimate.activations import MicroBatch
from zerotools.ops.estimate.choosing import (
    ALL,
    NONE,
    OFFLOADS,
    OPTIMIZER,
    PARAMS,
    STAGES,
    Choice,
    Row,
    Workload,
    choose,
    row_of_layout,
    rows_of,
)
from zerotools.ops.estimate.model_shape import ModelShape
from zerotools.ops.estimate.terms import NOT_MEASURED, Machine, RankMemory

LONGEST_DEFAULT = 4096
SCHEMA = "zerotools.estimate/1"


@dataclass(frozen=True)
class Estimate:
    """Every row of the table, the choice among them, and the row that a job file asks for, if it
    was of one. `tables` are those of a job file that say the model and its adapters, `batch` the
    sequences of a step that it asks for."""

    work: Workload = field(repr=False)
    machine: Machine
    rows: tuple[Row, ...] = field(repr=False)
    choice: Choice = field(repr=False)
    asked: Row | None = field(default=None, repr=False)
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    batch: int | None = None

    @property
    def fits(self) -> bool:
        """True if the job fits as it is written; without a job, if any row fits. If activations are
        not known, only the model state counts."""
        row = self.choice.row if self.asked is None else self.asked
        return row is not None and row.fits is not False

    @property
    def stage(self) -> int | None:
        """The ZeRO stage of the fastest row that fits; None if no row fits."""
        return None if self.choice.row is None else self.choice.row.stage

    @property
    def offload(self) -> str | None:
        """The part that the row offloads: "none", "optimizer", "params" or "all"."""
        return None if self.choice.row is None else self.choice.row.offload

    @property
    def peak_bytes(self) -> int | None:
        """The memory that the row takes of each GPU."""
        return None if self.choice.row is None else self.choice.row.peak_bytes

    @property
    def host_bytes(self) -> int | None:
        """The memory that the ranks of one node take of the host."""
        return None if self.choice.row is None else self.choice.row.host_bytes

    @property
    def reason(self) -> str:
        """The reason for the row, or the reason why no row fits."""
        return self.choice.reason

    @property
    def advice(self) -> tuple[str, ...]:
        """More advice, as sentences."""
        return self.choice.advice

    @property
    def largest_batch(self) -> int | None:
        """The most sequences of this length at a time that fit there."""
        return self.choice.largest_batch

    @property
    def largest_sequence_length(self) -> int | None:
        """The longest sequence that fits there, one at a time."""
        return self.choice.largest_sequence

    @property
    def parameters(self) -> int:
        """The number of parameters of the model."""
        return self.work.model.count

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, in sentences."""
        return (*self.work.model.notes, *self.machine.notes)

    def to_json(self) -> dict[str, Any]:
        """The estimate as plain values; sizes in bytes."""
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
            "configs": None if chosen is None else self.configs(chosen),
        }

    def configs(self, row: Row) -> dict[str, Any]:
        """The configs that ask for a row, by launcher."""
        micro, layout = self.work.micro, row.layout
        return {
            "job": job_tree(self.tables, layout, micro, self.batch, on_gpu=self.machine.on_gpu),
            "deepspeed": deepspeed_tree(layout, micro),
            "accelerate": accelerate_text(layout),
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


def estimate_model(
    model: ModelShape,
    machine: Machine,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    precision: str = "bf16",
    optimizer: str = "adamw",
    engine: str = "torch",
    accumulation: int = 1,
    checkpointing: bool = False,
    stages: Sequence[int] = STAGES,
    offloads: Sequence[str] = OFFLOADS,
    model_table: Mapping[str, Any] | None = None,
) -> Estimate:
    """Every stage and offload of a model, `batch` sequences (default 1) of `sequence` tokens at a
    time on each rank; default: as many as the model has positions for, at most 4096."""
    layout = MemoryLayout(
        stage=3,
        world_size=machine.gpus,
        precision=precision,
        optimizer=optimizer,
        accumulate=SHARDED if accumulation > 1 else None,
        engine=engine,
    )
    positions = 0 if model.architecture is None else model.architecture.positions
    longest = sequence or min(positions or LONGEST_DEFAULT, LONGEST_DEFAULT)
    micro = MicroBatch(batch or 1, longest, precision, checkpointing)
    tables = {"model": model_table} if model_table else {}
    return _estimate(Workload(model, layout, micro), machine, stages, offloads, None, tables)


def estimate_job(
    work: Workload,
    machine: Machine,
    stages: Sequence[int] = STAGES,
    offloads: Sequence[str] = OFFLOADS,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    batch: int | None = None,
) -> Estimate:
    """The job of `work` as it is written, and every other stage and offload of it. `batch`: its
    sequences of a step."""
    work = replace(work, layout=replace(work.layout, world_size=machine.gpus))
    asked = row_of_layout(work, machine, work.layout, offload_of(work.layout))
    found = _estimate(work, machine, stages, offloads, asked, tables or {})
    return replace(found, batch=batch)


def offload_of(layout: MemoryLayout) -> str:
    """What a layout offloads, in the words of the table; "disk" where it is the optimizer's."""
    if layout.offload_optimizer == "disk":
        return "disk"
    optimizer, params = layout.offload_optimizer != "none", layout.offload_params != "none"
    if params:
        return ALL if optimizer or layout.engine == "torch" else PARAMS
    return OPTIMIZER if optimizer else NONE


def _estimate(
    work: Workload,
    machine: Machine,
    stages: Sequence[int],
    offloads: Sequence[str],
    asked: Row | None,
    tables: Mapping[str, Mapping[str, Any]],
) -> Estimate:
    rows = rows_of(work, machine, stages, offloads)
    choice = choose(work, machine, rows)
    return Estimate(work, machine, tuple(rows), choice, asked, tables)


def model_table_of(model: str) -> dict[str, Any]:
    """The job file's `[model]` for what was named on a command line."""
    path = Path(model)
    if not path.exists():
        return {}
    return {"config" if path.is_file() else "path": str(path.absolute())}

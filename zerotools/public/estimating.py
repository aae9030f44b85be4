"""The command estimate as a function: it returns what that prints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.counts import bytes_of
from zerotools.core.errors import BadRequest

if TYPE_CHECKING:
    from zerotools.jobs.estimating.estimating import Estimate


def estimate(
    model: str | os.PathLike[str],
    *,
    gpus: int = 1,
    gpu_memory: int | str = "80GiB",
    host_memory: int | str = "512GiB",
    batch: int = 1,
    sequence: int | None = None,
    precision: str = "bf16",
    optimizer: str = "adamw",
    engine: str = "torch",
    accumulation: int = 1,
    activation_checkpointing: bool = False,
    stage: int | Sequence[int] = (0, 1, 2, 3),
    offload: str | Sequence[str] = ("none", "optimizer", "params", "all"),
) -> Estimate:
    """Predict the memory of training `model` (a Hugging Face directory or config.json, a
    checkpoint, or a number of parameters such as "7B") on `gpus` GPUs: as the command `zerotools
    estimate`, but that nothing is looked up on this machine. Sizes are in bytes, or text such as
    "80GiB".

    `rows` of what is returned is the table, `choice.row` the fastest that fits (None: nothing
    does), `choice.reason` why; `row.memory.peak` is in bytes, `to_json()` has everything.

    Raises:
        BadRequest: there is no such model, its config lacks a size, or an option is wrong.
        BadFile: a checkpoint is damaged.
        Unsupported: the architecture is not known, and transformers is not there to be asked.
    """
    from zerotools.jobs.estimating.estimating import estimate_model, model_table_of
    from zerotools.ops.estimate.choosing import OFFLOADS, STAGES
    from zerotools.ops.estimate.model_shape import read_shape
    from zerotools.ops.estimate.terms import Machine

    stages = (stage,) if isinstance(stage, int) else tuple(stage)
    offloads = (offload,) if isinstance(offload, str) else tuple(offload)
    _among("stage", stages, STAGES)
    _among("offload", offloads, OFFLOADS)
    _among("precision", (precision,), ("bf16", "fp16", "fp32"))
    _among("optimizer", (optimizer,), ("adamw", "adam", "sgd", "adafactor", "muon", "adamw8bit"))
    _among("engine", (engine,), ("torch", "deepspeed"))
    counts = {"gpus": gpus, "batch": batch, "accumulation": accumulation, "sequence": sequence}
    for name, count in counts.items():
        if count is not None and count < 1:
            raise BadRequest(f"{name} is {count}: must be at least 1")
    name = os.fspath(model)
    return estimate_model(
        read_shape(name),
        Machine(gpus, _bytes("gpu_memory", gpu_memory), _bytes("host_memory", host_memory)),
        batch=batch,
        sequence=sequence,
        precision=precision,
        optimizer=optimizer,
        engine=engine,
        accumulation=accumulation,
        checkpointing=activation_checkpointing,
        stages=stages,
        offloads=offloads,
        model_table=model_table_of(str(Path(name))),
    )


def _among(name: str, given: Sequence[object], allowed: Sequence[object]) -> None:
    for value in given:
        if value not in allowed:
            listed = ", ".join(map(str, allowed))
            raise BadRequest(f"{name} is {value!r}: must be one of {listed}")


def _bytes(name: str, size: int | str) -> int:
    try:
        return bytes_of(size)
    except ValueError as error:
        raise BadRequest(f"{name}: {size!r} {error}") from None

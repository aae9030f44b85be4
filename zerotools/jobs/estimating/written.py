"""The configs for the choice of an estimate: a job file, DeepSpeed's JSON, accelerate's YAML.

They have every value that affects memory, and no learning rates. `whole_job` adds the missing
values to a job file (data, steps, learning rate).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.core.training_memory import MemoryLayout
from zerotools.jobs.estimating.way_keys import OFFLOAD_DIRECTORY
from zerotools.ops.estimate.activation_memory import MicroBatch

_OFF = "none"
_ACCELERATE = {"none": "none", "cpu": "cpu", "disk": "nvme"}


def job_tree(
    tables: Mapping[str, Mapping[str, Any]],
    layout: MemoryLayout,
    micro: MicroBatch | None,
    batch: int | None = None,
    *,
    on_gpu: bool,
) -> dict[str, Any]:
    """Return the keys of a job file; `tables` are those of it that say the model and its adapters.
    `batch` are the sequences of a step, where micro batches make them up; None: the fewest that do.
    """
    tree: dict[str, Any] = {"gpus": layout.world_size}
    if not on_gpu:
        tree = {"device": "cpu", "ranks": layout.world_size}
    tree |= {name: dict(table) for name, table in tables.items() if table}
    train: dict[str, Any] = {"precision": layout.precision, "optimizer": layout.optimizer}
    if micro is not None:
        tree["data"] = {"sequence_length": micro.sequence}
        times = 1 if layout.accumulate is None else 2
        shares = max(1, layout.world_size // (micro.sequence_ranks * layout.tensor_ranks))
        fewest = times * micro.examples * shares
        is_kept = batch is not None and times > 1 and batch % (micro.examples * shares) == 0
        train["batch_size"] = max(fewest, batch or 0) if is_kept else fewest
        if times > 1:
            train["micro_batch_size"] = micro.examples
            train["accumulate"] = layout.accumulate
        if micro.chunked_loss == "on":
            train["chunked_loss"] = micro.chunked_loss
        if micro.checkpointing:
            train["activation_checkpointing"] = True
    tree["train"] = train
    tree["zero"] = {"stage": layout.stage}
    if micro is not None and micro.sequence_ranks > 1:
        tree["zero"]["sequence_ranks"] = micro.sequence_ranks
    if layout.tensor_ranks > 1:
        tree["zero"]["tensor_ranks"] = layout.tensor_ranks
    if layout.shard_size is not None:
        tree["zero"]["shard_size"] = layout.shard_size
    offload = {"optimizer": layout.offload_optimizer, "params": layout.offload_params}
    if set(offload.values()) != {_OFF}:
        tree["offload"] = {name: place for name, place in offload.items() if place != _OFF}
        if layout.offload_optimizer == "disk":
            tree["offload"]["path"] = OFFLOAD_DIRECTORY
    return tree


def deepspeed_tree(layout: MemoryLayout, micro: MicroBatch | None) -> dict[str, Any]:
    """Return DeepSpeed's config."""
    zero: dict[str, Any] = {"stage": layout.stage}
    if layout.offload_optimizer == "cpu":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if layout.offload_optimizer == "disk":
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": OFFLOAD_DIRECTORY}
    if layout.offload_params == "cpu":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    tree: dict[str, Any] = {"zero_optimization": zero}
    if layout.precision != "fp32":
        tree[layout.precision] = {"enabled": True}
    if micro is not None:
        tree["train_micro_batch_size_per_gpu"] = micro.batch
        tree["gradient_accumulation_steps"] = 1 if layout.accumulate is None else 2
    return tree


def accelerate_text(layout: MemoryLayout) -> str:
    """Return accelerate's config file."""
    kind = "DEEPSPEED"
    if layout.stage == 0:
        kind = "MULTI_GPU" if layout.world_size > 1 else "NO"
    precision = "no" if layout.precision == "fp32" else layout.precision
    on_disk = layout.offload_optimizer == "disk"
    lines = [
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: '{kind}'",
        f"mixed_precision: '{precision}'",
        "num_machines: 1",
        f"num_processes: {layout.world_size}",
        "machine_rank: 0",
        "use_cpu: false",
    ]
    if kind == "DEEPSPEED":
        lines += [
            "deepspeed_config:",
            f"  zero_stage: {layout.stage}",
            f"  offload_optimizer_device: {_ACCELERATE[layout.offload_optimizer]}",
            f"  offload_param_device: {layout.offload_params}",
            *([f"  offload_optimizer_nvme_path: {OFFLOAD_DIRECTORY}"] * on_disk),
            f"  gradient_accumulation_steps: {1 if layout.accumulate is None else 2}",
            f"  zero3_init_flag: {str(layout.stage == 3).lower()}",
            f"  zero3_save_16bit_model: {str(layout.stage == 3).lower()}",
        ]
    return "\n".join(lines) + "\n"

"""Write config files for a configuration that an estimate chose: a job file, DeepSpeed's JSON,
accelerate's YAML.

The files have every value that affects memory, but no learning rates. `fill_missing_keys` adds the
missing values to a job file (data, steps, learning rate).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.core.training_memory_layout import MemoryLayout
from zerotools.jobs.binding.bind import format_value
from zerotools.ops.estimate.activation_memory import MicroBatch
from zerotools.ops.estimate.fit_search import FitChange, Way
from zerotools.ops.estimate.offload_table import Workload

_OFF = "none"
_ACCELERATE = {"none": "none", "cpu": "cpu", "disk": "nvme"}


OFFLOAD_DIRECTORY = "offload"
"""The directory, next to the job file, for an optimizer that is offloaded to disk.

A local NVMe disk is best.
"""


def job_tree(
    tables: Mapping[str, Mapping[str, Any]],
    layout: MemoryLayout,
    micro: MicroBatch | None,
    batch: int | None = None,
    *,
    on_gpu: bool,
) -> dict[str, Any]:
    """Return the keys of a job file for the memory layout `layout` and the micro batch `micro`.

    `tables` are the job file's tables for the model and its adapters. `batch` is the requested
    number of sequences per step. It is used only if every rank accumulates several micro batches
    and `batch` is a multiple of the micro batches of all ranks. Otherwise the job gets the smallest
    possible number.
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
    """Return DeepSpeed's config for a memory layout and a micro batch."""
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
    """Return the text of accelerate's config file for a memory layout."""
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


def way_keys(
    way: Way, work: Workload, asked: MemoryLayout | None, batch: int | None = None
) -> dict[str, Any]:
    """Return the job keys that the configuration `way` changes: dotted name -> value. The value
    None means that the key is removed.

    `work` is the requested training. If the training comes from a job file, `asked` is the memory
    layout of this file, and `batch` is the file's number of sequences per step. Keys that need no
    change are omitted.
    """
    layout, micro = way.row.layout, way.work.micro
    found: dict[str, Any] = {}
    if FitChange.FEWER_GPUS in way.changes or FitChange.MORE_GPUS in way.changes:
        found["gpus"] = layout.world_size
    shared = layout.tensor_ranks * (1 if micro is None else micro.sequence_ranks)
    shares = max(1, layout.world_size // shared)
    if batch is not None and batch % shares:
        found["train.batch_size"] = -(-batch // shares) * shares
    if FitChange.CHECKPOINTING in way.changes:
        found["train.activation_checkpointing"] = True
    if FitChange.MICRO_BATCH in way.changes and micro is not None:
        found["train.micro_batch_size"] = micro.examples
    if FitChange.CHUNKED_LOSS in way.changes:
        found["train.chunked_loss"] = "on"
    if FitChange.EIGHT_BIT in way.changes:
        found["train.optimizer"] = layout.optimizer
    found |= {f"lora.{name}": value for name, value in way.lora_table.get("lora", {}).items()}
    if FitChange.SEQUENCE_RANKS in way.changes and micro is not None:
        found["zero.sequence_ranks"] = micro.sequence_ranks
    if FitChange.TENSOR_RANKS in way.changes:
        found["zero.tensor_ranks"] = layout.tensor_ranks
    return found | layout_keys(layout, asked)


def layout_keys(layout: MemoryLayout, asked: MemoryLayout | None) -> dict[str, Any]:
    """Return the job keys for ZeRO stage and offload that differ between `layout` and `asked`,
    with the values for `layout`. The value None means that the key is removed.
    """
    return _sharding(layout, asked) | _offload(layout, asked)


def _sharding(layout: MemoryLayout, asked: MemoryLayout | None) -> dict[str, Any]:
    if asked is not None and asked.stage == layout.stage:
        return {}
    if layout.engine == "deepspeed":
        return {"deepspeed.config.zero_optimization.stage": layout.stage}
    dropped = {"zero.shard_size": None} if asked is not None and asked.shard_size else {}
    return {"zero.stage": layout.stage, **(dropped if layout.shard_size is None else {})}


def _offload(layout: MemoryLayout, asked: MemoryLayout | None) -> dict[str, Any]:
    now: tuple[str, ...] = (layout.offload_optimizer, layout.offload_params)
    before: tuple[str, ...] = (
        ("none", "none") if asked is None else (asked.offload_optimizer, asked.offload_params)
    )
    if layout.engine == "deepspeed":
        where = "deepspeed.config.zero_optimization.offload_"
        names = (f"{where}optimizer.device", f"{where}param.device")
        now = tuple("nvme" if place == "disk" else place for place in now)
        before = tuple("nvme" if place == "disk" else place for place in before)
        path = f"{where}optimizer.nvme_path"
    else:
        names, path = ("offload.optimizer", "offload.params"), "offload.path"
        if now[1] != "none" and now[0] == "cpu" and before == ("none", now[1]):
            return {}  # the optimizer follows the weights
    found: dict[str, Any] = {
        name: place for name, place, old in zip(names, now, before, strict=True) if place != old
    }
    on_disk = ("disk", "nvme")
    if now[0] in on_disk and before[0] not in on_disk:
        found[path] = OFFLOAD_DIRECTORY
    if before[0] in on_disk and now[0] not in on_disk:
        found[path] = None
    return found


def keys_text(keys: Mapping[str, Any]) -> str:
    """Return the keys as one line in the syntax of a job file, for a message."""
    said = [
        f"no {name}" if value is None else f"{name} = {format_value(value)}"
        for name, value in keys.items()
    ]
    return ", ".join(said)


def with_keys(tree: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the job `tree` with the `keys` set. A key with the value None is removed."""
    changed = dict(tree)
    for name, value in keys.items():
        first, _, rest = name.partition(".")
        if rest:
            inner = changed.get(first)
            changed[first] = with_keys(inner if isinstance(inner, Mapping) else {}, {rest: value})
            if not changed[first]:
                del changed[first]
        elif value is None:
            changed.pop(first, None)
        else:
            changed[first] = value
    return changed

"""The keys of a job file for a configuration that fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.core.training_memory import MemoryLayout
from zerotools.jobs.binding.bind import show
from zerotools.ops.estimate.fit_search import FitChange, Way
from zerotools.ops.estimate.offload_table import Workload

OFFLOAD_DIRECTORY = "offload"
"""The directory of the optimizer on disk, next to the job file; a local NVMe disk is best."""


def way_keys(
    way: Way, work: Workload, asked: MemoryLayout | None, batch: int | None = None
) -> dict[str, Any]:
    """Return the keys that `way` sets, by dotted name; None removes a key.

    `work` is the request. For a job file, `asked` is its layout, and keys that it has already are
    omitted; `batch` is its number of sequences of a step.
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
    """Return the keys of stage and offload that differ between `layout` and `asked`; None removes a
    key."""
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
    """Return the keys as a job file has them, for a sentence."""
    said = [
        f"no {name}" if value is None else f"{name} = {show(value)}" for name, value in keys.items()
    ]
    return ", ".join(said)


def with_keys(tree: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's `tree` with these keys set, or removed if they are None."""
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

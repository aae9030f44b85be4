"""What the tables of `benchmarks.zero` compare: an engine at a stage, with something offloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OFFLOADS: Mapping[str, Mapping[str, str]] = {
    "none": {},
    "cpu": {"optimizer": "cpu"},
    "disk": {"optimizer": "disk"},
    "params": {"params": "cpu"},
    "params, disk": {"optimizer": "disk", "params": "cpu"},
}
"""`[offload]` of a job, by the tables' word for it; where there are parameters on the host, the
optimizer is never on the device."""


@dataclass(frozen=True)
class Case:
    """One row. `offload` is one of `OFFLOADS`; DeepSpeed has those without a disk."""

    engine: str
    stage: int
    offload: str = "none"

    @property
    def name(self) -> str:
        """For people, and for a directory."""
        tree = OFFLOADS[self.offload]
        what = {"params": "parameters", "optimizer": "optimizer"}
        places = (f", {what[key]} on the {place}" for key, place in tree.items())
        return f"{self.engine}, stage {self.stage}{''.join(places)}"


def llama(
    width: int, inner: int, *, layers: int, heads: int, vocabulary: int = 256, longest: int = 256
) -> dict[str, Any]:
    """The config of a Llama; `longest` tokens are in its longest sequence."""
    return {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": longest,
    }


def deepspeed_json(case: Case, per_rank: int, *, torch_adam: bool | None = None) -> dict[str, Any]:
    """The JSON of a case, for the job and for a bare loop alike; without `torch_adam`, DeepSpeed's
    own optimizer is used where it is on the host, and torch's elsewhere."""
    offload = OFFLOADS[case.offload]
    zero: dict[str, Any] = {"stage": case.stage}
    if "params" in offload:
        zero["offload_param"] = {"device": "cpu"}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    if torch_adam is None:
        torch_adam = not offload
    params = {"lr": 1e-3, "torch_adam": torch_adam}
    if torch_adam:
        params["fused"] = True
    return {
        "train_micro_batch_size_per_gpu": per_rank,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "optimizer": {"type": "AdamW", "params": params},
    }


def small_buckets(config: dict[str, Any], elements: int) -> dict[str, Any]:
    """`config` with buckets of so many elements. DeepSpeed's own are of 1 GB, whatever the model's
    size."""
    names = ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size")
    zero = {**config["zero_optimization"], **dict.fromkeys(names, elements)}
    return {**config, "zero_optimization": zero}


def job(
    case: Case,
    device: str,
    ranks: int,
    *,
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    train: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    path: Path | None = None,
) -> dict[str, Any]:
    """The job file of a case, bf16 and AdamW at a constant rate; `config` is DeepSpeed's, `path` is
    for what goes to a disk."""
    tree: dict[str, Any] = {
        "engine": case.engine,
        "device": device,
        **({"ranks": ranks} if device == "cpu" else {"gpus": ranks}),
        "model": {"config": dict(model)},
        "data": dict(data),
        "train": {
            "precision": "bf16",
            "learning_rate": 1e-3,
            "schedule": "constant",
            **train,
        },
        "zero": {"stage": case.stage},
    }
    if case.engine == "deepspeed":
        tree["deepspeed"] = {"config": config}
    elif case.offload != "none":
        tree["offload"] = dict(OFFLOADS[case.offload])
        if "disk" in case.offload:
            tree["offload"]["path"] = str(path)
    return tree

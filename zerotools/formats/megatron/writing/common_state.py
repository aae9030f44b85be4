"""common.pt and metadata.json: the values that are not sharded.

    {"args": Namespace, "checkpoint_version": 3.0, "iteration": 10, "content_metadata": {...},
     "num_floating_point_operations_so_far": 0, "opt_param_scheduler": {...},
     "optimizer": {"optimizer": {"param_groups": [...]}, "param_state_sharding_type": ...}}

With experts in parallel `optimizer` has one such entry for each of two optimizers, by number.
`content_metadata` tells Megatron the form of the tensors to request.

Source: megatron/training/checkpointing.py, megatron/core/dist_checkpointing/serialization.py, 0.16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.core.checkpoint import Opaque
from zerotools.formats.megatron.writing.resumable_optimizer import WrittenOptimizer

FORM = "fully_reshardable"
METADATA_JSON = (
    b'{"sharded_backend": "torch_dist", "sharded_backend_version": 1, '
    b'"common_backend": "torch", "common_backend_version": 1}'
)


def common_state(
    arguments: Mapping[str, Any] | None,
    optimizer: WrittenOptimizer | None,
    *,
    iteration: int,
    is_uniform: bool,
    flops: Any = 0,
    scheduler: Any = None,
) -> dict[str, Any]:
    """Return the tree of common.pt. `arguments` are those of the training script, by name.
    `scheduler` is Megatron's saved schedule, or None. `is_uniform` means that the layers are
    stacked."""
    metadata: dict[str, Any] = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    if not is_uniform:
        metadata["non_homogeneous_layers"] = True
    if optimizer is not None:
        metadata["distrib_optim_sharding_type"] = FORM
    tree: dict[str, Any] = {
        "checkpoint_version": 3.0,
        "iteration": iteration,
        "num_floating_point_operations_so_far": flops,
        "content_metadata": metadata,
    }
    if arguments is not None:
        said = {**arguments, "ckpt_format": "torch_dist", "no_save_rng": True}
        said["no_save_optim"] = optimizer is None
        tree["args"] = Opaque("argparse", "Namespace", state=said)
    if optimizer is not None:
        every = [_unsharded(groups) for groups in optimizer.optimizers]
        tree["optimizer"] = every[0] if len(every) == 1 else dict(enumerate(every))
        tree["opt_param_scheduler"] = scheduler or _schedule(optimizer, arguments or {})
    return tree


def _unsharded(groups: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
    return {
        "optimizer": {"param_groups": [dict(group) for group in groups]},
        "param_state_sharding_type": FORM,
    }


def _schedule(optimizer: WrittenOptimizer, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schedule with the known values, for runs that override it with their options."""
    group = optimizer.optimizers[0][0]
    return {
        "max_lr": group["lr"],
        "min_lr": 0.0,
        "lr_warmup_steps": 0,
        "num_steps": arguments.get("consumed_train_samples") or 0,
        "lr_decay_style": "constant",
        "lr_decay_steps": 1,
        "start_wd": group["weight_decay"],
        "end_wd": group["weight_decay"],
        "wd_incr_style": "constant",
        "wd_incr_steps": 1,
    }

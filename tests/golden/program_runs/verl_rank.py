"""One rank of a verl run.

    python -m tests.golden.program_runs.verl_rank STRATEGY FSDP_SIZE [lora]

verl's own FSDPCheckpointManager writes, on a model that verl's own functions have wrapped. Which
directory it is told, `data.pt` and the tracker are as `RayPPOTrainer._save_checkpoint` has them,
which needs Ray.
"""

import sys
from pathlib import Path

from .absent import pretend

pretend("ray", "datasets", "pandas", "torchdata", "qwen_vl_utils", "codetiming")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions,
    get_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy  # noqa: E402
from verl.utils.checkpoint.fsdp_checkpoint_manager import (  # noqa: E402
    FSDPCheckpointManager,
)
from verl.utils.fsdp_utils import apply_fsdp2, get_fsdp_wrap_policy  # noqa: E402

from .ranks import tiny_llama, train, write_truth  # noqa: E402

STEPS = (2, 4)


def adapted(model: torch.nn.Module) -> torch.nn.Module:
    """The model with an adapter, as `_build_lora_module` of verl's FSDP engine makes it."""
    from peft import LoraConfig, TaskType, get_peft_model

    layers = ["q_proj", "down_proj"]
    config = {"task_type": TaskType.CAUSAL_LM, "r": 2, "lora_alpha": 8, "target_modules": layers}
    return get_peft_model(model, LoraConfig(**config, init_lora_weights=False))


def wrapped(strategy: str, fsdp_size: int, *, is_lora: bool) -> torch.nn.Module:
    """The model as verl's FSDP engine wraps it: over all ranks, or replicated over groups."""
    world, model = dist.get_world_size(), tiny_llama()
    model = adapted(model) if is_lora else model
    shape = (world,) if fsdp_size >= world else (world // fsdp_size, fsdp_size)
    names = ("fsdp",) if len(shape) == 1 else ("ddp", "fsdp")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if strategy == "fsdp2":
        apply_fsdp2(model, {"mesh": mesh, "reshard_after_forward": True}, {})
        return model
    hybrid = len(shape) == 2
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=get_fsdp_wrap_policy(module=model, config=None),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD if hybrid else ShardingStrategy.FULL_SHARD,
        device_mesh=mesh,
        device_id=torch.device("cpu"),
        use_orig_params=False,
    )


def main() -> None:
    strategy, fsdp_size = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    is_lora = sys.argv[3:] == ["lora"]
    model = wrapped(strategy, fsdp_size, is_lora=is_lora)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    manager = FSDPCheckpointManager(model, optimizer, schedule)
    run = Path("run")
    for before, step in zip((0, *STEPS), STEPS, strict=False):
        train(model, optimizer, step - before, dist.get_rank())
        manager.save_checkpoint(f"{run}/global_step_{step}/actor", global_step=step)
        if dist.get_rank() == 0:
            torch.save({"_snapshot": None}, run / f"global_step_{step}/data.pt")
            (run / "latest_checkpointed_iteration.txt").write_text(str(step))
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, state = get_state_dict(model, optimizer, options=options)
    truth = {f"{name}|param": tensor for name, tensor in weights.items()}
    for name, entry in state.get("state", {}).items():
        truth |= {f"{name}|{role}": t for role, t in entry.items() if t.dim() or role == "step"}
    if dist.get_rank() == 0:
        if is_lora:
            merged = adapted(tiny_llama())
            merged.load_state_dict(weights)
            truth = merged.merge_and_unload().state_dict()
        write_truth(truth, Path())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

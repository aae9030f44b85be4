"""What one rank does to go on from DCPs that zerotools wrote, and to prove that nothing was lost:
`python -m tests.golden.torch_runs.resume CASES.json`.

Each case is loaded by torch's own `dcp.load` into a model and optimizer that have other values,
compared bit for bit with the truth, and trained for a step.
"""

import json
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from ..deepspeed_runs.launch import leave
from ..deepspeed_runs.models import MODELS, Model, Pair
from .gather import gather_live, train

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
KINDS: Mapping[str, Any] = {**MODELS, "pair": Pair}


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    with open(sys.argv[1]) as file:  # noqa: PTH123
        cases = json.load(file)
    for case in cases:
        try:
            resume(case)
        except BaseException:
            print(f"in {case}", flush=True)
            raise
    dist.barrier()
    leave()


def resume(case: Mapping[str, Any]) -> None:
    model, optimizer = fresh(case)
    LOADERS[case["loader"]](case["checkpoint"], model, optimizer)
    truth = load_file(case["truth"])
    compare(gather_live(model, optimizer), truth)
    for found, wanted in zip(optimizer.param_groups, case["groups"], strict=True):
        for option, value in wanted.items():
            have = list(found[option]) if isinstance(found[option], tuple) else found[option]
            assert have == value, (option, have, value)
    take_step(model, optimizer)
    after = gather_live(model, optimizer)
    idle = getattr(model, "idle", ()) or "|"
    for name, value in after.items():
        if name.endswith("|step") and not name.startswith(idle):
            assert value == truth[name] + 1, name
    assert any(not torch.equal(after[n], truth[n].to(after[n].dtype)) for n in after)


def take_step(model: nn.Module, optimizer: Optimizer) -> None:
    if isinstance(model, Model):
        train(model, optimizer, 1)
    else:
        ids = torch.arange(8).reshape(1, 8)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()


def tied_llama() -> nn.Module:
    from ..deepspeed_runs.surroundings import tiny_llama  # imports transformers and accelerate

    return tiny_llama(tied=True)


def fresh(case: Mapping[str, Any]) -> tuple[nn.Module, Optimizer]:
    """The model and optimizer as a program has them that is about to load: with other values."""
    model = tied_llama() if case["model"] == "llama" else KINDS[case["model"]]()
    if case["seen"]:
        model.get_submodule(case["seen"]).register_buffer("seen", torch.tensor([7, 8, 9]))
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            value.zero_()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    members = (
        [g["params"] for g in model.groups()] if isinstance(model, Model) else [model.parameters()]
    )
    groups = [{"params": list(parameters)} for parameters in members]
    return model, getattr(torch.optim, case["optimizer"])(groups, lr=0.5, **case["arguments"])


def load_together(checkpoint: str, model: nn.Module, optimizer: Optimizer) -> None:
    state = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }
    dcp.load(state, checkpoint_id=checkpoint)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])


def load_apart(checkpoint: str, model: nn.Module, optimizer: Optimizer) -> None:
    weights = {"model": get_model_state_dict(model)}
    dcp.load(weights, checkpoint_id=f"{checkpoint}/pytorch_model_fsdp_0")
    set_model_state_dict(model, weights["model"])
    state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.load(state, checkpoint_id=f"{checkpoint}/optimizer_0")
    set_optimizer_state_dict(model, optimizer, state["optimizer"])


def load_flat(checkpoint: str, model: nn.Module, optimizer: Optimizer) -> None:
    state: dict[str, Any] = dict(get_model_state_dict(model))
    weights = list(state)
    state["optimizer"] = get_optimizer_state_dict(model, optimizer, options=FLAT)
    dcp.load(state, checkpoint_id=checkpoint)
    set_model_state_dict(model, {name: state[name] for name in weights})
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=FLAT)


def load_with_accelerate(checkpoint: str, model: nn.Module, optimizer: Optimizer) -> None:
    """What `Accelerator.load_state` calls; an Accelerator itself does FSDP on GPUs only."""
    from accelerate import FullyShardedDataParallelPlugin, PartialState
    from accelerate.utils import load_fsdp_model, load_fsdp_optimizer

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    ranks = PartialState(cpu=True)
    assert ranks.num_processes == dist.get_world_size()
    load_fsdp_model(plugin, ranks, model, checkpoint)
    load_fsdp_optimizer(plugin, ranks, optimizer, model, checkpoint)


LOADERS = {
    "torch": load_together,
    "accelerate": load_apart,
    "torchtitan": load_flat,
    "accelerate's own": load_with_accelerate,
}


def compare(found: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> None:
    """A frozen 16-bit weight is in a model of fp32; a count of steps may have been an integer."""
    wanted = {name: value for name, value in truth.items() if not name.endswith("|param16")}
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    for name, value in wanted.items():
        assert found[name].shape == value.shape, name
        bits = [
            t.contiguous().reshape(-1).view(torch.uint8)
            for t in (found[name], value.to(found[name].dtype))
        ]
        assert torch.equal(*bits), name


if __name__ == "__main__":
    main()

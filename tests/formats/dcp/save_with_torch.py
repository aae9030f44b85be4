"""One rank of a small FSDP2 model: save it with torch's own DCP, or check that it loads.

python save_with_torch.py {save,load} DIRECTORY RANK RANKS MEETING_DIRECTORY
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    """Parameters with more and fewer rows than ranks, and buffers, which every rank holds whole."""

    def __init__(self) -> None:
        super().__init__()
        self.many = nn.Linear(5, 103)
        self.few = nn.Linear(3, 2)
        self.one = nn.Parameter(torch.randn(1, 4))
        self.register_buffer("positions", torch.arange(600.0).view(20, 30))
        self.register_buffer("mask", torch.tensor([True, False, True]))


def state() -> dict[str, object]:
    """The flat state dict after one step of AdamW, the same values at any number of ranks."""
    torch.manual_seed(0)
    model = Model()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    names = {parameter: name for name, parameter in model.named_parameters()}
    flat: dict[str, object] = {f"model.{k}": v.detach() for k, v in model.state_dict().items()}
    for parameter, values in optimizer.state.items():
        flat |= {f"optim.{names[parameter]}.{k}": v for k, v in values.items()}
    return flat | {"extra.lr": 0.1, "extra.names": ["a", ("b", 2)]}


def check(directory: str) -> None:
    """Load into a state whose values were cleared; every rank must get its own back."""
    wanted, loaded = state(), state()
    for value in loaded.values():
        if isinstance(value, torch.Tensor):
            local = value.to_local() if hasattr(value, "to_local") else value
            local.fill_(0)
    loaded |= {"extra.lr": 0.0, "extra.names": []}
    dcp.load(loaded, checkpoint_id=directory)
    for key, value in wanted.items():
        mine = loaded[key]
        if isinstance(value, torch.Tensor):
            if hasattr(value, "to_local"):
                value, mine = value.to_local(), mine.to_local()
            assert torch.equal(value, mine), key
        else:
            assert value == mine, key


def main() -> None:
    what, directory, rank, ranks, meeting = sys.argv[1:]
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}/store", rank=int(rank), world_size=int(ranks)
    )
    if what == "save":
        dcp.save(state(), checkpoint_id=directory)
    else:
        check(directory)
    dist.barrier()
    sys.stdout.flush()
    # gloo's threads abort now and then when the interpreter ends under them.
    os._exit(0)


if __name__ == "__main__":
    main()

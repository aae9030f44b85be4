"""One rank of four: tensors cut in every way that a mesh can, saved by torch per rank and by DCP.

Run by `test_torch` as `python -m tests.formats.torchfile.save_with_torch`, in the directory to
write to, with torch's env:// variables.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    save_meshes(mesh)
    save_strided(mesh)
    save_local()
    save_sharded_safetensors(mesh)
    dist.barrier()
    sys.stdout.flush()
    # gloo's threads abort now and then when the interpreter ends under them.
    os._exit(0)


def write_rank(directory: str, tree: object) -> None:
    Path(directory).mkdir(exist_ok=True)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.save(tree, f"{directory}/model_world_size_{size}_rank_{rank}.pt")


def save_meshes(mesh: object) -> None:
    """Every pair of placements on a 2 x 2 mesh, sub-meshes, and a flat mesh."""
    whole = torch.arange(7.0 * 6 * 3).reshape(7, 6, 3)
    flat = init_device_mesh("cpu", (4,))
    state: dict[str, object] = {}
    options = {"r": Replicate(), "0": Shard(0), "1": Shard(1), "2": Shard(2)}
    for first, a in options.items():
        for second, b in options.items():
            state[f"pair.{first}{second}"] = distribute_tensor(whole, mesh, [a, b])
        state[f"dp.{first}"] = distribute_tensor(whole, mesh["dp"], [a])
        state[f"tp.{first}"] = distribute_tensor(whole, mesh["tp"], [a])
        state[f"flat.{first}"] = distribute_tensor(whole, flat, [a])
    state["parameter"] = nn.Parameter(distribute_tensor(whole, flat, [Shard(0)]))
    state["half"] = distribute_tensor(whole.half(), flat, [Shard(1)])
    state["scalar"] = distribute_tensor(torch.tensor(2.5), flat, [Replicate()])
    state["empty"] = distribute_tensor(torch.zeros(0, 3), flat, [Shard(0)])
    state["plain"] = torch.arange(5)
    state["tied"] = state["flat.0"]
    write_rank("meshes", state)
    full = {
        name: value.full_tensor().detach().clone() if isinstance(value, DTensor) else value
        for name, value in state.items()
    }
    if dist.get_rank() == 0:
        save_file(full, "meshes.safetensors")


def save_strided(mesh: object) -> None:
    """FSDP2 over tensor parallelism, along the same dimension and along two."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 5, bias=False))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    state = model.state_dict()
    write_rank("strided", state)
    full = {name: value.full_tensor() for name, value in state.items()}
    if dist.get_rank() == 0:
        save_file(full, "strided.safetensors")


def save_local() -> None:
    """FSDP1's flat parameters."""
    model = FullyShardedDataParallel(
        nn.Linear(6, 8), use_orig_params=True, device_id=torch.device("cpu")
    )
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        write_rank("local", model.state_dict())


def save_sharded_safetensors(mesh: object) -> None:
    """What safetensors of one rank each have to hold: numbers, flags, 0-d tensors, empty ranks."""
    flat = init_device_mesh("cpu", (4,))
    whole = torch.arange(7.0 * 6).reshape(7, 6)
    state = {
        "rows": distribute_tensor(whole, flat, [Shard(0)]),
        "both": distribute_tensor(whole, mesh, [Shard(0), Shard(1)]),
        "few": distribute_tensor(whole[:2].clone(), flat, [Shard(0)]),
        "flags": distribute_tensor(whole > 20, flat, [Shard(0)]),
        "numbers": distribute_tensor(whole.long(), flat, [Shard(1)]),
        "scalar": torch.tensor(3.5),
        "count": torch.tensor(7),
    }
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(path="hf", save_distributed=True))
    places = dict(zip(state, (1, 1, 2, 2, 3, 3, 2), strict=True))
    dcp.save(
        state,
        storage_writer=HuggingFaceStorageWriter(
            path="files", save_distributed=True, fqn_to_index_mapping=places
        ),
    )
    full = {n: v.full_tensor() if isinstance(v, DTensor) else v for n, v in state.items()}
    if dist.get_rank() == 0:
        save_file(full, "hf.safetensors")


if __name__ == "__main__":
    main()

"""A rank that updates its rows of weights of awkward shapes: run by `launching.start`.

Each element begins as -1, has a gradient of its own number, and becomes that number when its rank
updates it. Every rank fails unless all elements of all weights came round.
"""

import argparse
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
entry = runpy.run_path(str(ROOT / "daemon" / "zerotoolsd" / "trainer" / "entry.py"))
entry["make_importable"]()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402

from zerotools.core.training_memory_layout import MemoryLayout  # noqa: E402
from zerotoolsd.trainer.engine_torch.reduce_and_update import RowPartition  # noqa: E402
from zerotoolsd.trainer.model.sharding import REPLICATE, make_mesh  # noqa: E402
from zerotoolsd.trainer.rank.process_group import join_group  # noqa: E402
from zerotoolsd.trainer.rank.rank_settings import rank_from, read_spec  # noqa: E402

SHAPES = ((1,), (2, 3), (4, 5), (5,), (7, 2, 3), (3, 1), (9, 4))


def whole(tensor: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """A tensor as stages 0 and 1 hold their weights."""
    return DTensor.from_local(tensor, mesh, (Replicate(), Shard(0)), run_check=False)


def numbered(shape: tuple[int, ...]) -> torch.Tensor:
    """Each element its number."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def check(mesh: DeviceMesh, bucket_bytes: int) -> None:
    """One step over all weights, in buckets of some bytes."""
    weights = {}
    for shape in SHAPES:
        weight = nn.Parameter(whole(torch.full(shape, -1.0), mesh))
        weight.grad = whole(numbered(shape), mesh)
        weights[str(shape)] = weight
    partition = RowPartition(weights, mesh[REPLICATE], bucket_bytes)
    partition.set_gradients()
    with torch.no_grad():
        for row in partition.rows.values():
            row.to_local().copy_(row.grad.to_local())
    partition.share()
    for shape in SHAPES:
        assert torch.equal(weights[str(shape)].to_local(), numbered(shape)), (shape, bucket_bytes)
        rows = partition.rows[str(shape)]
        assert torch.equal(rows.full_tensor(), numbered(shape)), (shape, bucket_bytes)


def main() -> None:
    """Windows of one element, of a few, and of all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    spec = read_spec(parser.parse_args().run_dir)
    group = join_group(rank_from(), spec.device)
    mesh = make_mesh(group.device, MemoryLayout(1, group.rank.world_size))
    for bucket_bytes in (4, 28, 1 << 20):
        check(mesh, bucket_bytes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

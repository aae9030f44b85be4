"""One rank under a launcher: meets the others over gloo, says who it is, then waits to be asked.

Where it does not ask it needs no torch, and meets nobody.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from zerotools import worker

MODE = sys.argv[-1]  # deepspeed puts its --local_rank first
if "RANK" not in os.environ:  # accelerate starts a single process as it is
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def tell() -> None:
    """Say who it is."""
    found = {"pid": os.getpid(), "world_size": ranks, "arguments": sys.argv[1:]}
    Path(f"rank-{rank}").write_text(json.dumps(found))


def train() -> None:
    """Meet the others, and save once all are asked, or at once."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    assert (dist.get_rank(), dist.get_world_size()) == (rank, ranks)
    total = torch.ones(())
    dist.all_reduce(total)
    worker.report(1, steps=100, loss=total)
    if MODE == "asks":
        worker.should_stop()  # from the first question on, a SIGTERM is an answer
    tell()
    stop = torch.tensor(MODE == "once")
    while not stop:
        time.sleep(0.01)
        stop = torch.tensor(worker.should_stop())
        dist.all_reduce(stop, dist.ReduceOp.MAX)
    if rank == 0:
        torch.save({"w": torch.ones(3)}, "last.pt")
        worker.checkpoint_written("last.pt", 7)
    dist.destroy_process_group()


if MODE != "does-not-ask":
    train()
else:
    worker.report(1, steps=100)
    tell()
    time.sleep(3600)

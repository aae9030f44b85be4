"""One rank under a launcher: meets the others over gloo, says who it is, then waits to be asked."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from zerotools import worker

MODE = sys.argv[-1]  # deepspeed puts its --local_rank first
if "RANK" not in os.environ:  # accelerate starts a single process as it is
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
dist.init_process_group("gloo")
rank = dist.get_rank()
total = torch.ones(())
dist.all_reduce(total)
worker.report(1, steps=100, loss=total)
if MODE == "asks":
    worker.should_stop()  # from the first question on, a SIGTERM is an answer
Path(f"rank-{rank}").write_text(
    json.dumps(
        {
            "pid": os.getpid(),
            "world_size": dist.get_world_size(),
            "arguments": sys.argv[1:],
            "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
    )
)
stop = torch.tensor(MODE == "once")
while not stop:
    time.sleep(0.01)
    stop = torch.tensor(MODE == "asks" and worker.should_stop())
    dist.all_reduce(stop, dist.ReduceOp.MAX)
if rank == 0:
    torch.save({"w": torch.ones(3)}, "last.pt")
    worker.checkpoint_written("last.pt", 7)
dist.destroy_process_group()

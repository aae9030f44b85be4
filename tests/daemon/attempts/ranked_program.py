"""One rank under a launcher: meets the others, says who it is, then waits to be asked.

It meets them over gloo where it asks so. Where it runs once it needs no torch, and meets them at
the address that the launcher has given; else it needs no torch either, and meets nobody.
"""

from __future__ import annotations

import json
import os
import socket
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
    """Meet the others, and save once all are asked."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    assert (dist.get_rank(), dist.get_world_size()) == (rank, ranks)
    total = torch.ones(())
    dist.all_reduce(total)
    worker.report(1, steps=100, loss=total)
    worker.should_stop()  # from the first question on, a SIGTERM is an answer
    tell()
    stop = torch.tensor(False)
    while not stop:
        time.sleep(0.01)
        stop = torch.tensor(worker.should_stop())
        dist.all_reduce(stop, dist.ReduceOp.MAX)
    if rank == 0:
        torch.save({"w": torch.ones(3)}, "last.pt")
        worker.checkpoint_written("last.pt", 7)
    dist.destroy_process_group()


def meet() -> None:
    """Rank 0 waits for one greeting of each other rank."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        with socket.create_server(address) as server:
            for _ in range(1, ranks):
                server.accept()[0].close()
        return
    while True:
        try:
            with socket.create_connection(address):
                return
        except ConnectionRefusedError:
            time.sleep(0.01)


if MODE == "asks-over-gloo":
    train()
elif MODE == "asks":
    worker.report(1, steps=100, loss=2.0)
    worker.should_stop()
    tell()
    while not worker.should_stop():
        time.sleep(0.01)
    if rank == 0:
        Path("last.pt").write_bytes(b"weights")
        worker.checkpoint_written("last.pt", 7)
elif MODE == "once":
    worker.report(1, steps=100)
    meet()
    tell()
    if rank == 0:
        Path("last.pt").write_bytes(b"weights")
        worker.checkpoint_written("last.pt", 7)
else:
    worker.report(1, steps=100)
    tell()
    time.sleep(3600)

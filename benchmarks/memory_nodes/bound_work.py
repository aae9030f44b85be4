"""One process: a copy in host memory, a step of AdamW as ZeRO-Offload takes it, and a copy to the
GPU where there is one; bound as the supervisor binds a rank.

    python -m benchmarks.memory_nodes.bound_work BINDING MIB ROUNDS THREADS

BINDING is the JSON of a `RankBinding`. Prints one JSON object: seconds of each round by what was
done, and the memory nodes on which the buffers lie. THREADS are the same wherever it is bound.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness.kernel.numa_pages import node_of
from zerotoolsd.supervisor.set_numa_binding import RankBinding, keep_to

if __name__ == "__main__":  # before torch makes its threads
    FAILED = keep_to(RankBinding.from_json(json.loads(sys.argv[1]))).decode()

import torch

from zerotoolsd.trainer.allocate_tensors import PinnedArena

MIB = 1 << 20


def timed(act: Callable[[], object], rounds: int) -> list[float]:
    """Seconds of each call but the first."""
    seconds = []
    for turn in range(rounds + 1):
        began = time.perf_counter()
        act()
        if turn:
            seconds.append(time.perf_counter() - began)
    return seconds


def nodes_of(tensor: torch.Tensor) -> list[int]:
    """The memory nodes of its pages, of which every 16 MiB one is asked for."""
    begin, size = tensor.data_ptr(), tensor.nbytes
    return sorted({node_of(begin + offset) for offset in range(0, size, 16 * MIB)})


def work(mib: int, rounds: int) -> Iterator[tuple[str, list[float], list[int]]]:
    """What is done, how long it took, and where its memory is."""
    source = torch.ones(mib * MIB // 4)
    target = torch.zeros_like(source)
    yield "copy", timed(lambda: target.copy_(source), rounds), nodes_of(target)
    weight = torch.nn.Parameter(source)
    weight.grad = target
    optimizer = torch.optim.AdamW([weight], lr=1e-3, fused=True)
    seconds = timed(optimizer.step, rounds)
    yield "step", seconds, nodes_of(optimizer.state[weight]["exp_avg"])
    if torch.cuda.is_available():
        yield from _to_gpu(mib, rounds)


def _to_gpu(mib: int, rounds: int) -> Iterator[tuple[str, list[float], list[int]]]:
    pinned = PinnedArena().empty((mib * MIB // 4,), torch.float32).fill_(1.0)
    there = torch.empty_like(pinned, device="cuda")

    def copy() -> None:
        there.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()

    yield "to the GPU", timed(copy, rounds), nodes_of(pinned)


def main(mib: int, rounds: int, threads: int) -> None:
    """Print what came of it."""
    torch.set_num_threads(threads)
    found: dict[str, Any] = {"failed": FAILED, "seconds": {}, "nodes": {}}
    for name, seconds, nodes in work(mib, rounds):
        found["seconds"][name], found["nodes"][name] = seconds, nodes
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(int, sys.argv[2:5]))

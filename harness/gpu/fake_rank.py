"""Rank 0 of a job of eight ranks, without the other ranks: collectives use torch's `fake` group.

`predicted` starts this program. It trains, saves nothing, and prints one JSON object with sizes in
bytes. `reserved` is the most that torch's allocator has reserved. `given` is the GPU memory that
the driver has given to the process since the start. `ledger` has the bytes of the memory ledger as
`[tier, kind of data, bytes]`.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
entry = runpy.run_path(str(ROOT / "daemon" / "zerotoolsd" / "trainer" / "entry.py"))
entry["make_importable"]()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from zerotools.jobs.jobfile_tables.spec import JobSpec  # noqa: E402
from zerotoolsd.trainer import save_during_training  # noqa: E402
from zerotoolsd.trainer.engine.engine_interface import StepResult  # noqa: E402
from zerotoolsd.trainer.prepare_and_train import prepare_training  # noqa: E402
from zerotoolsd.trainer.rank.notify_supervisor import Notifier  # noqa: E402
from zerotoolsd.trainer.rank.process_group import WorldGroup  # noqa: E402
from zerotoolsd.trainer.rank.rank_settings import rank_from, read_spec  # noqa: E402
from zerotoolsd.trainer.reporting.reporter import (  # noqa: E402
    Phases,
    Reporter,
)

RANKS = 8


class FakeGroup(WorldGroup):
    """A process group that behaves as if the other ranks had the same values as this rank."""

    def decided_by_rank_zero(self, decide: Any) -> Any:
        """Call `decide` on this rank."""
        return decide()

    def gathered(self, value: Any) -> list[Any]:
        """Return `value` once for each rank."""
        return [value] * self.rank.world_size

    def total(self, values: list[float]) -> list[float]:
        """Return the sums over the ranks, as if all ranks had these `values`."""
        return [value * self.rank.world_size for value in values]

    def total_of(self, values: torch.Tensor, own: torch.Tensor) -> tuple[list[float], float]:
        """Return the sums over the ranks, as if all ranks had these `values`, and the scalar
        `own`.
        """
        return values.mul_(self.rank.world_size).tolist(), float(own)

    def wait_at_most(self, longest: Any) -> None:
        """Do nothing, because this rank waits for no other rank."""


class Enough(Exception):
    """Raised after the last step."""


class Steps(Reporter):
    """A reporter that ends the run after the last step, before a checkpoint is saved."""

    taken = 0

    def stepped(self, step: int, outcome: StepResult, tokens: int, seconds: float) -> None:
        """Count a step that updated the weights. Raise `Enough` after the last step."""
        self.taken += not outcome.is_skipped
        if step == self._steps:
            raise Enough


def first_part(output: Any, input: Any, *arguments: Any, **options: Any) -> None:
    """Reduce and scatter as if the other ranks had zeros.

    torch's fake group would leave `output` unchanged, so it could contain NaN.
    """
    output.copy_(input.view(-1)[: output.numel()].view_as(output))


def given() -> int:
    """Return the bytes of GPU memory that the driver has given to this process.

    If the driver does not report this, as in a container, return the bytes of all processes.
    """
    import pynvml

    pynvml.nvmlInit()
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    own = sum(each.usedGpuMemory or 0 for each in processes if each.pid == os.getpid())
    free, total = torch.cuda.mem_get_info()
    return int(own or total - free)


def constant(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    """Fill `tensor` with a constant, which is faster than random numbers."""
    return tensor.fill_(0.02)


def _of_all_ranks(run_dir: Path) -> JobSpec:
    """Change the job in `run_dir`, which has one rank, to `RANKS` ranks, and return it."""
    path = run_dir / "spec.json"
    tree = json.loads(path.read_text())
    path.write_text(json.dumps({**tree, "gpus" if tree["device"] == "cuda" else "ranks": RANKS}))
    return read_spec(run_dir)


def main() -> None:
    """Train, and print the memory that was used."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir: Path = parser.parse_args().run_dir
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(RANKS))
    spec, rank = _of_all_ranks(run_dir), rank_from()
    device, before = torch.device(spec.device, *([0] if spec.device == "cuda" else [])), 0
    if spec.device == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.synchronize()  # makes the context
        before = given()
    dist.init_process_group("fake", rank=rank.index, world_size=rank.world_size, store=FakeStore())
    dist.reduce_scatter_tensor = first_part
    # A billion random numbers take a minute, and no value is looked at.
    torch.Tensor.normal_ = constant
    group = FakeGroup(rank, device, dist.group.WORLD)
    # A group of gloo would wait for the other ranks.
    vars(save_during_training)["control_group"] = lambda: group.control
    steps = Steps(rank, Notifier(None, 0), steps=spec.train.steps)
    ready = prepare_training(spec, run_dir, group, steps, Phases(time.monotonic()))
    engine: Any = ready.engine
    with suppress(Enough):
        ready.train()
    found: dict[str, Any] = {"steps": steps.taken, "reserved": 0, "given": 0}
    if spec.device == "cuda":
        found["reserved"] = torch.cuda.max_memory_reserved(device)
        found["given"] = given() - before
    live = engine.live.memory.ledger.live
    found["ledger"] = [[tier, use, size] for (tier, use), size in live.items() if size]
    print(json.dumps(found), flush=True)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

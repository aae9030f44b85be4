"""Rank 0 of a job of eight with collectives that reach no other rank: torch's `fake` group.

Run by `predicted`. It trains its steps, saves nothing, and prints one JSON object: the bytes that
torch's allocator has reserved at most, those that the driver has given out since the start, and
those that the ledger has, as `[tier, use, bytes]`.
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
from zerotoolsd.trainer import background_saves  # noqa: E402
from zerotoolsd.trainer.engine.protocol import StepResult  # noqa: E402
from zerotoolsd.trainer.rank.notify_supervisor import Notifier  # noqa: E402
from zerotoolsd.trainer.rank.process_group import WorldGroup  # noqa: E402
from zerotoolsd.trainer.rank.rank_settings import rank_from, read_spec  # noqa: E402
from zerotoolsd.trainer.reporting.reporter import (  # noqa: E402
    Phases,
    Reporter,
)
from zerotoolsd.trainer.session import prepare_training  # noqa: E402

RANKS = 8


class FakeGroup(WorldGroup):
    """A group that returns this rank's values for the other ranks."""

    def decided_by_rank_zero(self, decide: Any) -> Any:
        """Decide here."""
        return decide()

    def gathered(self, value: Any) -> list[Any]:
        """Return this rank's value for each."""
        return [value] * self.rank.world_size

    def total(self, values: list[float]) -> list[float]:
        """Return the sums, where all ranks have the same."""
        return [value * self.rank.world_size for value in values]

    def total_of(self, values: torch.Tensor, own: torch.Tensor) -> tuple[list[float], float]:
        """Return the sums, where all ranks have the same."""
        return values.mul_(self.rank.world_size).tolist(), float(own)

    def wait_at_most(self, longest: Any) -> None:
        """Do nothing: no rank is waited for."""


class Enough(Exception):
    """All steps were taken."""


class Steps(Reporter):
    """A reporter that ends the run after the last step, before anything is saved."""

    taken = 0

    def stepped(self, step: int, outcome: StepResult, tokens: int, seconds: float) -> None:
        """Count a step that updated the weights."""
        self.taken += not outcome.is_skipped
        if step == self._steps:
            raise Enough


def first_part(output: Any, input: Any, *arguments: Any, **options: Any) -> None:
    """Reduce as if the other ranks had zeros: a fake group leaves the output as it was, which may
    be no numbers at all."""
    output.copy_(input.view(-1)[: output.numel()].view_as(output))


def given() -> int:
    """Return the bytes of the GPU that the driver has given to this process; if it does not say so,
    as in a container, those that all processes use."""
    import pynvml

    pynvml.nvmlInit()
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    own = sum(each.usedGpuMemory or 0 for each in processes if each.pid == os.getpid())
    free, total = torch.cuda.mem_get_info()
    return int(own or total - free)


def constant(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    """Fill a tensor in place of drawing random numbers."""
    return tensor.fill_(0.02)


def _of_all_ranks(run_dir: Path) -> JobSpec:
    """Return the job in `run_dir`, which is written for one rank, for `RANKS`."""
    path = run_dir / "spec.json"
    tree = json.loads(path.read_text())
    path.write_text(json.dumps({**tree, "gpus" if tree["device"] == "cuda" else "ranks": RANKS}))
    return read_spec(run_dir)


def main() -> None:
    """Train, and print the memory held."""
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
    vars(background_saves)["control_group"] = lambda: group.control
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

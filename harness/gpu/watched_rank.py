"""Runs a rank that stores the gradients of its first step, and its memory.

The gradients are those that the optimizer gets, as fp32 on the CPU, keyed by name; `kept` reads
them. The memory is the memory of the process after its first step, without pages of files;
`own_bytes` reads it.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GRADIENTS, MEMORY = "gradients.pt", "memory.txt"
ANONYMOUS = re.compile(r"^RssAnon:\s*(\d+) kB$", re.MULTILINE)


def watched(path: Any, found: dict[str, Any]) -> None:
    """Change the class `path`, an `UpdatePath`, so that it stores gradients in `found`.

    For each name, it stores the gradient of the first `fetch` of this name.
    """
    inner = path.fetch

    def fetch(self: Any, names: Iterable[str], factor: float) -> None:
        from zerotoolsd.trainer.engine_torch.reduce_and_update import local_tensor

        asked = list(names)
        inner(self, asked, factor)
        for name in asked:
            gradient = self.weights[name].grad
            if gradient is not None and name not in found:
                found[name] = local_tensor(gradient).detach().float().cpu().clone()

    path.fetch = fetch


def ended_by(optimizer: Any, run_dir: Path, found: dict[str, Any]) -> None:
    """Change the class `optimizer` so that it writes `found` and the memory to `run_dir` after its
    first step.
    """
    inner = optimizer.step

    def step(self: Any, *arguments: Any, **options: Any) -> None:
        import torch

        inner(self, *arguments, **options)
        optimizer.step = inner
        torch.save(found, run_dir / GRADIENTS)
        (run_dir / MEMORY).write_text(Path("/proc/self/status").read_text("ascii"), "ascii")

    optimizer.step = step


def kept(run_dir: Path) -> dict[str, Any]:
    """Return the gradients of the first step, keyed by name; empty if no step was done."""
    import torch

    path = run_dir / GRADIENTS
    found: dict[str, Any] = torch.load(path, weights_only=True) if path.exists() else {}
    return found


def own_bytes(run_dir: Path) -> int:
    """Return the memory of the process in bytes, without pages of files; 0 if no step was done."""
    path = run_dir / MEMORY
    said = ANONYMOUS.search(path.read_text("ascii")) if path.exists() else None
    return int(said[1]) << 10 if said else 0


def main() -> None:
    """Run the rank, in place of the trainer's `entry`."""
    entry = runpy.run_path(str(ROOT / "daemon" / "zerotoolsd" / "trainer" / "entry.py"))
    entry["make_importable"]()
    from zerotoolsd.trainer.engine_torch.master_weights import MasterWeights
    from zerotoolsd.trainer.engine_torch.optimizer import ShardedOptimizer
    from zerotoolsd.trainer.engine_torch.reduce_and_update import InPlaceUpdate, PartitionedUpdate

    found = dict[str, Any]()
    for path in (InPlaceUpdate, PartitionedUpdate, MasterWeights):
        watched(path, found)
    ended_by(ShardedOptimizer, Path(sys.argv[sys.argv.index("--run-dir") + 1]), found)
    entry["main"]()


if __name__ == "__main__":
    main()

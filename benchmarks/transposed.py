"""Time to export a tensor that lies transposed in its file, as `torch.save(weight.t())` leaves it.

    python benchmarks/transposed.py [MIB] [DIRECTORY]

Needs torch, to write the source. Results: benchmarks/results/consolidate.md.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

from zerotools.ops.conversions.consolidate import Options, prepare
from zerotools.ops.conversions.conversion import perform
from zerotools.ops.execution.workers import MemoryBudget


def measure(mib: int, directory: Path, dtype: str) -> float:
    """Seconds of one export, of which the output is checked."""
    side = int((mib * 2**20 / 4) ** 0.5)
    weight = torch.arange(side * side, dtype=torch.float32).reshape(side, side)
    source, out = directory / "pytorch_model.bin", directory / f"out-{dtype}"
    torch.save({"weight": weight.t()}, source)
    began = time.monotonic()
    perform(prepare(source, out, Options(dtype=dtype)), budget=MemoryBudget(), overwrite=False)
    return time.monotonic() - began


def main(arguments: list[str]) -> None:
    mib = int(arguments[0]) if arguments else 96
    parent = arguments[1] if arguments[1:] else None
    for dtype in ("fp32", "bf16"):
        with tempfile.TemporaryDirectory(dir=parent) as directory:
            print(f"{mib} MiB to {dtype}: {measure(mib, Path(directory), dtype):.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])

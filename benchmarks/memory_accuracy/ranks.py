"""Predicted memory of a rank in bf16 beside what its process holds at most, alone and with others.

`python -m benchmarks.memory_accuracy.ranks` trains two Llamas on the CPU, one rank and two at each
stage. Sequences are short: the state counts, and what FSDP2 gathers and reduces.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.zero_training.cases import Case, job, llama
from benchmarks.zero_training.launch import run_ranks
from benchmarks.zero_training.steps import TEXT
from zerotools.jobs.estimating.estimating import estimate_job
from zerotools.jobs.estimating.job_workload import workload_of
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.ops.estimate.terms import Machine

SCRIPT = Path(__file__).with_name("peak_rank.py")
WIDTHS = (512, 768)
"""Hidden sizes of Llamas of 8 blocks and 8,192 tokens: 34 and 74 million parameters."""
LAYOUTS = ((1, 0), (2, 0), (2, 1), (2, 2), (2, 3))
"""Ranks and stage; a rank that is alone computes the same at every stage."""
MIB = 1 << 20


def tree_of(width: int, ranks: int, stage: int) -> dict[str, Any]:
    """The job file."""
    config = llama(width, width * 43 // 16, layers=8, heads=8, vocabulary=8192)
    return job(
        Case("torch", stage),
        "cpu",
        ranks,
        model=config,
        data={"text": [TEXT], "sequence_length": 32},
        train={"steps": 4, "batch_size": 2, "precision": "bf16"},
    )


def main() -> None:
    """Print one row for each job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="*", default=WIDTHS)
    widths = parser.parse_args().widths
    print(f"load {os.getloadavg()[0]:.0f} at the start\n")
    print("| hidden | ranks | stage | before the model | process | estimate | off |")
    print("|---|---|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as work:
        for width, (ranks, stage) in product(widths, LAYOUTS):
            tree = tree_of(width, ranks, stage)
            found = run_ranks(Path(work) / "job", tree, SCRIPT)
            print(_row(width, ranks, stage, found, _estimated(tree)), flush=True)


def _estimated(tree: dict[str, Any]) -> int:
    """Bytes of one rank; on the CPU the device's are the host's, too."""
    spec = job_from_dict(tree, source="job")
    machine = Machine(spec.all_ranks, 0, 1 << 40, on_gpu=False)
    row = estimate_job(workload_of(spec), machine, (), ()).asked
    assert row is not None
    return row.host_bytes // spec.all_ranks


def _row(width: int, ranks: int, stage: int, found: dict[str, int], estimated: int) -> str:
    before, most = found["before"], found["most"]
    cells = [f"{size / MIB:,.0f} MiB" for size in (before, most, estimated)]
    cells = [str(width), str(ranks), str(stage), *cells, f"{estimated / most - 1:+.0%}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()

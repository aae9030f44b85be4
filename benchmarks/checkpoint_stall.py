"""How long a save keeps training waiting: at a standstill, and beside it.

    python -m benchmarks.checkpoint_stall [--ranks 2] [--stage 3] [--hidden 768] [--layers 12]

Trains a Llama (the default has 98 million parameters, 12 bytes each in a checkpoint) on its own
text on the CPU, once with `checkpoint.asynchronous` and once without, and prints a table. The two
runs take turns, as machines drift.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import machine
from harness.launching import job, start

EVERY, SAVES = 4, 3
LONGEST_SECONDS = 1800.0
MIB = 1 << 20


@dataclass(frozen=True)
class Save:
    """One checkpoint: bytes, seconds until it was committed, seconds that training waited."""

    size_bytes: int
    seconds: float
    stall_seconds: float


@dataclass(frozen=True)
class Run:
    """The saves of a run, and the seconds of its steps but the first one."""

    saves: list[Save]
    steps: list[float]


def config(hidden: int, layers: int) -> dict[str, Any]:
    """A Llama."""
    return {
        "model_type": "llama",
        "vocab_size": 8192,
        "hidden_size": hidden,
        "intermediate_size": hidden * 8 // 3,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "max_position_embeddings": 64,
    }


def train(directory: Path, options: argparse.Namespace, *, beside: bool) -> Run:
    """One run."""
    tree = job(
        Path(__file__).resolve(),
        ranks=options.ranks,
        model={"config": config(options.hidden, options.layers)},
        data={"sequence_length": 16},
        train={"steps": EVERY * SAVES, "batch_size": options.ranks, "learning_rate": 1e-4},
        zero={"stage": options.stage},
        checkpoint={"every": EVERY, "keep_last": 1, "asynchronous": beside},
    )
    attempt = start(directory, tree)
    if attempt.finish(LONGEST_SECONDS) != [0] * options.ranks:
        raise RuntimeError(attempt.log())
    saves = [
        Save(event["bytes"], event["seconds"], event["stall_seconds"])
        for event in attempt.events("checkpoint")
    ]
    steps = [event["step_seconds"] for event in attempt.events("step")][1:]
    shutil.rmtree(directory)
    return Run(saves, steps)


def rows(waiting: list[Run], beside: list[Run]) -> Iterator[str]:
    """The table, in Markdown."""
    yield "| save | bytes written | until committed | training waited | of the synchronous wait |"
    yield "|---|---|---|---|---|"
    stall = median(save.stall_seconds for run in waiting for save in run.saves)
    for name, runs in (("synchronous", waiting), ("asynchronous", beside)):
        for which, some in (("first", slice(0, 1)), ("later", slice(1, None))):
            saves = [save for run in runs for save in run.saves[some]]
            took = median(save.seconds for save in saves)
            waited = median(save.stall_seconds for save in saves)
            yield (
                f"| {name}, {which} | {saves[0].size_bytes / MIB:,.0f} MiB | {took:.2f} s "
                f"| {waited:.3f} s | {waited / stall:.1%} |"
            )
    for name, runs in (("synchronous", waiting), ("asynchronous", beside)):
        steps = [step for run in runs for step in run.steps]
        slowest = max(steps)
        yield f"\nA step of the {name} run: median {median(steps):.2f} s, longest {slowest:.2f} s."


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--runs", type=int, default=1, help="runs of each kind")
    parser.add_argument("--directory", type=Path, help="where checkpoints go; default: temporary")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as place:
        runs: dict[bool, list[Run]] = {False: [], True: []}
        for number in range(options.runs):
            for beside in (False, True):
                directory = Path(place) / f"{number}-{beside}"
                runs[beside].append(train(directory, options, beside=beside))
    load = os.getloadavg()[0]
    print(f"{machine()}; load {load:.1f}; {options.ranks} ranks, stage {options.stage}\n")
    print("\n".join(rows(runs[False], runs[True])))


if __name__ == "__main__":
    main()

"""Conversions in parts: two processes against one, and what a part of a large one plans.

    python -m benchmarks.parts [--model 271M] [--runs 5] [--plan 70B] [--ranks 1024] [--work DIR]

First `consolidate`, `reshard` and `verify` of a ZeRO-3 checkpoint of 4 ranks: one process with one
thread,
and two with one thread each that do a part each at the same time. Then, of a checkpoint whose files
have metadata alone: how long one part of 8 and of 64 plans and proves, and how many bytes are its.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.measuring import Measurement, machine, zerotools
from benchmarks.runs import MIB, checkpoint, fresh
from zerotools.ops.conversions import consolidate, reshard
from zerotools.ops.conversions.consolidate import Options
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.conversions.in_parts import prove_part
from zerotools.ops.execution.parts.share import OutputPart

TOUCHED = 4 * 1024 * MIB
TOGETHER = """
import subprocess, sys
of = int(sys.argv[1])
runs = [subprocess.Popen([*sys.argv[2:], "--part", f"{n}/{of}"], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL) for n in range(1, of + 1)]
sys.exit(max(run.wait() for run in runs))
"""


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="271M")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--plan", default="70B")
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--work", type=Path, help="where all of it lies; /dev/shm: no disk")
    asked = parser.parse_args()
    print(machine())
    with TemporaryDirectory(dir=asked.work) as directory:
        work = Path(directory)
        _two_against_one(work, asked.model, asked.runs)
        _planning(work, asked.plan, asked.ranks)


def _two_against_one(work: Path, model: str, runs: int) -> None:
    with checkpoint(work, "--model", model, "--stage", "3", "--ranks", "4") as source:
        out = work / "out"
        cases = {
            "consolidate": ("consolidate", str(source), str(out)),
            "reshard to 8 ranks": ("reshard", str(source), str(out), "--world-size", "8"),
            "verify": ("verify", str(source)),
        }
        print(f"\n{model}, ZeRO-3 of 4 ranks, {runs} rounds: wall s (range), times as fast")
        for name, command in cases.items():
            one = [*zerotools(*command), "--workers", "1"]
            two = [sys.executable, "-c", TOGETHER, "2", *one]
            rounds = [(_wall(out, one), _wall(out, two)) for _ in range(runs)]
            for label, walls in zip(("one", "two parts"), zip(*rounds, strict=True), strict=True):
                print(f"{name}, {label}: {_said(walls)}")
            ratios = [alone / together for alone, together in rounds]
            print(f"{name}: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        shutil.rmtree(out, ignore_errors=True)


def _wall(out: Path, command: Sequence[str]) -> float:
    done: Measurement = fresh(out, command, None, TOUCHED)
    assert out.is_dir() or "verify" in command
    return done.wall_seconds


def _said(walls: Sequence[float]) -> str:
    return f"{median(walls):.2f} ({min(walls):.2f} to {max(walls):.2f})"


def _planning(work: Path, model: str, ranks: int) -> None:
    sparse = ("--model", model, "--stage", "3", "--ranks", str(ranks), "--sparse")
    with checkpoint(work, *sparse) as source:
        print(f"\n{model}, ZeRO-3 of {ranks} ranks: seconds to lay out, and one part's of the plan")
        for name in ("consolidate", "reshard to half of the ranks"):
            began = time.perf_counter()
            conversion = _laid_out(source, work / "out", name, ranks)
            laid_out = time.perf_counter() - began
            for of in (1, 8, 64):
                print(f"{name}: {laid_out:.1f} s; {_one_part(conversion, of)}")


def _laid_out(source: Path, out: Path, name: str, ranks: int) -> Conversion:
    found = (
        consolidate.prepare(source, out, Options())
        if name == "consolidate"
        else reshard.prepare(source, out, world_size=ranks // 2)
    )
    assert isinstance(found, Conversion)
    # That ranks hold the same numbers, which are none, is no matter here.
    return replace(found, source=replace(found.source, problems=()))


def _one_part(conversion: Conversion, of: int) -> str:
    chosen = sorted({1, of // 2 + 1, of})
    began = time.perf_counter()
    found = [prove_part(conversion, OutputPart(index, of)) for index in chosen]
    seconds = (time.perf_counter() - began) / len(chosen)
    sizes = [planned.nbytes for _, planned in found]
    files = [len(planned.share) for _, planned in found]
    copies = [count for count, _ in found]
    return (
        f"parts {chosen} of {of}: {seconds:.1f} s each, {min(sizes):,} to {max(sizes):,} bytes in "
        f"{min(files)} to {max(files)} files, {min(copies):,} to {max(copies):,} copies"
    )


if __name__ == "__main__":
    main()

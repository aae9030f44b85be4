"""`zerotools diff` against reading both checkpoints.

    python -m benchmarks.diff 271M [--runs 3]

ZeRO-3 of 4 ranks (3.2 GB of optimizer state) and its DCP conversion, warm cache: how long `diff`
takes when they are equal, when a byte differs every few megabytes, and when every value does,
against a program that reads every file of both in as many threads and looks at nothing. The reading
program is a process of its own, too, and imports numpy for its buffers, as `diff` does.

Whole processes, each in turn; a ratio is the median of those within one round.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.measuring import HEADER, Measurement, interleaved, machine, measure, row, zerotools
from benchmarks.runs import MIB, checkpoint, middle, peak_anonymous, wall

READ = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
files = [p for root in sys.argv[1:] for p in sorted(Path(root).rglob("*")) if p.is_file()]
def read(path):
    buffer, at = np.empty(2**20, np.uint8), 0
    with open(path, "rb", buffering=0) as file:
        while count := os.preadv(file.fileno(), [buffer], at):
            at += count
threads = min(8, len(os.sched_getaffinity(0)))
with ThreadPoolExecutor(threads) as pool:
    list(pool.map(read, files))
"""
STEP_BYTES = 4 * MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--ranks", default="4")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=Path, default=None)
    given = parser.parse_args()
    options = ("--model", given.model, "--ranks", given.ranks, "--stage", "3")
    with (
        tempfile.TemporaryDirectory(dir=given.work) as folder,
        checkpoint(Path(folder), *options) as source,
    ):
        show(source, Path(folder), given.runs)


def show(source: Path, work: Path, runs: int) -> None:
    converted, touched = work / "converted", work / "touched"
    subprocess.run(
        zerotools("convert", source, converted, "--to", "dcp"), check=True, capture_output=True
    )
    shutil.copytree(converted, touched)
    touch(touched)
    other = work / "other"
    shutil.copytree(converted, other)
    touch(other, every=True)
    read = [sys.executable, "-c", READ, str(source), str(converted)]
    commands = {
        "read every file of both": lambda: measure(read, sampling=True),
        "diff, equal": lambda: compared(source, converted, differs=False),
        "diff, bytes here and there differ": lambda: compared(source, touched, differs=True),
        "diff, every value differs": lambda: compared(source, other, differs=True),
    }
    results = interleaved(commands, runs=runs)
    print(f"{machine()}\n\n{HEADER}")
    for name, found in results.items():
        print(row(name, found))
    floor = results["read every file of both"]
    print("\n| command | times reading both | peak anonymous MiB |\n|---|---|---|")
    for name, found in list(results.items())[1:]:
        ratios = [a.wall_seconds / b.wall_seconds for a, b in zip(found, floor, strict=True)]
        anonymous = middle(found, peak_anonymous) / MIB
        print(f"| {name} | {median(ratios):.2f} | {anonymous:.0f} |")
    print(f"\n{middle(floor, wall):.2f} s to read {size(source, converted) / 2**30:.1f} GiB")


def compared(a: Path, b: Path, *, differs: bool) -> Measurement:
    """One run of `diff`, whose verdict must be as expected."""
    inner = " ".join(zerotools("diff", a, b, "--top", "3"))
    return measure(["sh", "-c", f"{inner}; test $? -eq {int(differs)}"], sampling=False)


def size(*roots: Path) -> int:
    return sum(file.stat().st_size for root in roots for file in root.rglob("*") if file.is_file())


def touch(root: Path, *, every: bool = False) -> None:
    """Change one byte of every few megabytes of the data files, or all floats a little."""
    import numpy as np

    for path in root.rglob("*.distcp"):
        values = np.memmap(path, np.uint8, "r+")
        if every:
            values[::4] ^= 1
        else:
            values[STEP_BYTES // 2 :: STEP_BYTES] ^= 1
        values.flush()


if __name__ == "__main__":
    main()

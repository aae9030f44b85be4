"""`zerotools diff` against reading both checkpoints.

    python -m benchmarks.comparison 271M [--runs 3]

ZeRO-3 of 4 ranks (3.2 GB of optimizer state) and its DCP conversion, in the cache and not: how long
`diff` takes when they are equal and when every value differs, against a program that reads every
file of both in as many threads and looks at nothing. The reading program is a process of its own,
too, and imports numpy for its buffers, as `diff` does.

Whole processes, each in turn; a ratio is the median of those within one round.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.measuring import (
    HEADER,
    Measurement,
    interleaved,
    machine,
    measure,
    row,
    work_directory,
    zerotools,
)
from benchmarks.runs import MIB, checkpoint, middle, peak_anonymous
from zerotools import formats

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
# `zerotools`, whose exit status must be the first argument.
EXPECTING = """
import sys
from zerotools.cli.main import main
expected = int(sys.argv.pop(1))
try:
    main()
except SystemExit as leaving:
    sys.exit(leaving.code != expected)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--ranks", default="4")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=work_directory, default=None)
    given = parser.parse_args()
    options = ("--model", given.model, "--ranks", given.ranks, "--stage", "3")
    with (
        tempfile.TemporaryDirectory(dir=given.work) as folder,
        checkpoint(Path(folder), *options) as source,
    ):
        show(source, Path(folder), given.runs)


def show(source: Path, work: Path, runs: int) -> None:
    converted, other = work / "converted", work / "other"
    subprocess.run(
        zerotools("convert", source, converted, "--to", "dcp"), check=True, capture_output=True
    )
    shutil.copytree(converted, other)
    change(other)
    read = [sys.executable, "-c", READ, str(source), str(converted)]
    commands = {
        "read every file of both": lambda: measure(read, sampling=True),
        "read every file of both, cold": lambda: cold(source, converted, read),
        "diff, equal": lambda: compared(source, converted, differs=False),
        "diff, equal, cold": lambda: cold(source, converted, zerotools("diff", source, converted)),
        "diff, every value differs": lambda: compared(source, other, differs=True),
    }
    results = interleaved(commands, runs=runs)
    print(f"{machine()}\n\n{HEADER}")
    for name, found in results.items():
        print(row(name, found))
    print("\n| command | times reading both |\n|---|---|")
    for name, found in results.items():
        if name.startswith("diff"):
            floor = results["read every file of both" + ", cold" * name.endswith("cold")]
            ratios = [a.wall_seconds / b.wall_seconds for a, b in zip(found, floor, strict=True)]
            print(f"| {name} | {median(ratios):.2f} |")
    peak = middle(results["diff, equal"], peak_anonymous) / MIB
    worst = middle(results["diff, every value differs"], peak_anonymous) / MIB
    print(
        f"\npeak anonymous memory: {peak:.0f} MiB if equal, {worst:.0f} MiB if every value differs"
    )
    print(f"{size(source, converted) / 2**30:.1f} GiB are read")


def cold(a: Path, b: Path, command: list[str]) -> Measurement:
    """One run that must succeed, of which no file is in the cache before."""
    os.sync()
    for file in (file for root in (a, b) for file in root.rglob("*") if file.is_file()):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return measure(command, sampling=True)


def compared(a: Path, b: Path, *, differs: bool) -> Measurement:
    """One run of `diff`, whose verdict must be as expected."""
    command = [sys.executable, "-c", EXPECTING, str(int(differs)), "diff", str(a), str(b)]
    return measure(command, sampling=True)


def size(*roots: Path) -> int:
    return sum(file.stat().st_size for root in roots for file in root.rglob("*") if file.is_file())


def change(root: Path) -> None:
    """Change the last bit of every float of a checkpoint whose chunks are contiguous."""
    found = formats.read(root)
    for tensor in found.tensors.values():
        for chunk in tensor.chunks:
            length = chunk.box.numel * tensor.dtype.itemsize
            path = found.path_of(chunk)
            values = np.memmap(path, np.uint8, "r+", offset=chunk.offset, shape=(length,))
            values[:: tensor.dtype.itemsize] ^= 1
            values.flush()


if __name__ == "__main__":
    main()

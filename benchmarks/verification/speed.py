"""`zerotools verify` against reading the same bytes with CRC-32, in as many threads.

    python -m benchmarks.verification.speed [--model 271M] [--runs 5] [--work DIRECTORY]
    python -m benchmarks.verification.speed --floor PATH

271M: 4 ranks of ZeRO-3, 3.2 GB, warm cache. The floor opens every file below PATH, and takes the
CRC-32 of each stretch of 1 MiB: no zip directory, no number is looked at. Both are timed without
their imports, and as whole processes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from threading import Lock

from benchmarks.measuring import (
    Measurement,
    interleaved,
    machine,
    measure,
    work_directory,
    zerotools,
)
from benchmarks.runs import MIB, Commands, checkpoint, middle, peak_anonymous, wall


def floor(path: Path, threads: int) -> float:
    """Seconds to read all files below `path` with CRC-32."""
    files = [each for each in sorted(path.rglob("*")) if each.is_file()]
    lock, began = Lock(), time.perf_counter()
    descriptors = [os.open(each, os.O_RDONLY) for each in files]

    def stretches() -> Iterator[tuple[int, int]]:
        for descriptor in descriptors:
            for offset in range(0, os.fstat(descriptor).st_size, MIB):
                yield descriptor, offset

    every = stretches()

    def work() -> None:
        buffer = memoryview(bytearray(MIB))
        while True:
            with lock:
                stretch = next(every, None)
            if stretch is None:
                return
            count = os.preadv(stretch[0], [buffer], stretch[1])
            zlib.crc32(buffer[:count])

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result()
    seconds = time.perf_counter() - began
    for descriptor in descriptors:
        os.close(descriptor)
    return seconds


def own_seconds(result: Measurement) -> float:
    """What the process says that it took without its imports."""
    return float(json.loads(result.output)["seconds"])


def compare(source: Path, runs: int) -> None:
    threads = min(8, len(os.sched_getaffinity(0)))
    least = [sys.executable, "-m", "benchmarks.verification.speed", "--floor", str(source)]
    manifest = source.parent / "manifest.json"
    commands: Commands = {
        "reading with CRC-32": partial(measure, least, sampling=True),
        "verify": partial(measure, zerotools("verify", source, "--json"), sampling=True),
        "verify --fast": partial(
            measure, zerotools("verify", source, "--json", "--fast"), sampling=True
        ),
        "verify --write-manifest": partial(
            measure,
            zerotools("verify", source, "--json", "--write-manifest", manifest),
            sampling=True,
        ),
        "verify --against": partial(
            measure, zerotools("verify", source, "--json", "--against", manifest), sampling=True
        ),
    }
    results = {**interleaved(commands, runs=runs)}
    size = sum(each.stat().st_size for each in source.rglob("*") if each.is_file())
    print(f"{size / 1e9:.2f} GB, {threads} threads\n")
    print("| | own seconds (range) | GB/s | wall s | peak anonymous MiB |\n|---|---|---|---|---|")
    for name, found in results.items():
        own = sorted(map(own_seconds, found))
        peak = middle(found, peak_anonymous) / MIB
        print(
            f"| {name} | {median(own):.2f} ({own[0]:.2f} to {own[-1]:.2f}) "
            f"| {size / 1e9 / median(own):.2f} | {middle(found, wall):.2f} | {peak:.0f} |"
        )
    ratio = middle(results["reading with CRC-32"], own_seconds) / middle(
        results["verify"], own_seconds
    )
    print(f"\nverify has {ratio:.2f} times the speed of reading with CRC-32")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="271M")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--work", type=work_directory, help="where to put the checkpoint")
    parser.add_argument("--floor", type=Path, metavar="PATH")
    asked = parser.parse_args()
    if asked.floor is not None:
        threads = min(8, len(os.sched_getaffinity(0)))
        print(json.dumps({"seconds": floor(asked.floor, threads)}))
        return
    with tempfile.TemporaryDirectory(dir=asked.work) as temporary:
        os.environ["PYTHONPYCACHEPREFIX"] = f"{temporary}/compiled"
        print(f"{asked.model}: {machine()}; medians of {asked.runs}, interleaved\n")
        with checkpoint(Path(temporary), "--model", asked.model, "--ranks", "4") as source:
            compare(source, asked.runs)


if __name__ == "__main__":
    main()

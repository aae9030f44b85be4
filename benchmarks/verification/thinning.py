"""`zerotools thin` against copying what stays, each flushed to the disk.

    python -m benchmarks.verification.thinning [--model 271M] [--runs 5] [--work DIRECTORY]
    python -m benchmarks.verification.thinning --floor FROM TO

271M: 4 ranks of ZeRO-3, of which a third stays, warm cache. The floor copies the files of the
thinned checkpoint, and flushes each. Every run begins with a copy that has the files of the first
under other names, so that nothing but what is timed is written. Both are timed as whole processes,
and without their imports.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.measuring import Measurement, machine, measure, work_directory, zerotools
from benchmarks.runs import MIB, checkpoint, middle, peak_anonymous, wall
from zerotools.io.files.open_files import sync_directory, sync_file
from zerotools.io.files.open_source import LocalSource
from zerotools.io.files.transfer import transfer


def floor(source: Path, out: Path) -> float:
    """Seconds to copy all files below `source`, and to flush them."""
    began = time.perf_counter()
    for path in sorted(source.rglob("*")):
        there = out / path.relative_to(source)
        if path.is_dir():
            there.mkdir(parents=True)
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as read, there.open("wb") as written:
            size = os.fstat(read.fileno()).st_size
            transfer(LocalSource(read.fileno()), 0, written.fileno(), 0, size)
        sync_file(there)
    for folder, _, _ in os.walk(out, topdown=False):
        sync_directory(Path(folder))
    return time.perf_counter() - began


def linked(source: Path, out: Path) -> Path:
    """The same files under other names."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(source, out, copy_function=os.link)
    os.sync()
    return out


def seconds_of(result: Measurement) -> float:
    """What the process says that it took without its imports."""
    return float(json.loads(result.output)["seconds"])


def compare(source: Path, runs: int) -> None:
    work = source.parent
    thinned = linked(source, work / "thinned")
    measure(zerotools("thin", thinned, "--yes"))
    size = sum(each.stat().st_size for each in thinned.rglob("*") if each.is_file())
    whole = sum(each.stat().st_size for each in source.rglob("*") if each.is_file())
    print(f"{whole / 1e9:.2f} GB, of which {size / 1e9:.2f} GB stay\n")
    copying = [sys.executable, "-m", "benchmarks.verification.thinning", "--floor", str(thinned)]
    found: dict[str, list[Measurement]] = {"copying what stays": [], "thin": []}
    for run in range(runs + 1):
        out = work / "out"
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        one = measure([*copying, str(out)], sampling=True)
        shutil.rmtree(out)
        path = linked(source, work / "again")
        other = measure(zerotools("thin", path, "--yes", "--json"), sampling=True)
        shutil.rmtree(path)
        if run:
            found["copying what stays"].append(one)
            found["thin"].append(other)
    print(
        "| | own s (range) | wall s (range) | CPU s | peak anonymous MiB |\n|---|---|---|---|---|"
    )
    for name, results in found.items():
        own, walls = (sorted(map(of, results)) for of in (seconds_of, wall))
        cpu, peak = median(r.cpu_seconds for r in results), middle(results, peak_anonymous) / MIB
        print(
            f"| {name} | {median(own):.2f} ({own[0]:.2f} to {own[-1]:.2f}) "
            f"| {median(walls):.2f} ({walls[0]:.2f} to {walls[-1]:.2f}) | {cpu:.2f} | {peak:.0f} |"
        )
    ratio = middle(found["thin"], seconds_of) / middle(found["copying what stays"], seconds_of)
    print(f"\nthin takes {ratio:.2f} times as long as copying what stays")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="271M")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--work", type=work_directory, help="where to put the checkpoint")
    parser.add_argument("--floor", type=Path, nargs=2, metavar=("FROM", "TO"))
    asked = parser.parse_args()
    if asked.floor is not None:
        print(json.dumps({"seconds": floor(*asked.floor)}))
        return
    with tempfile.TemporaryDirectory(dir=asked.work) as temporary:
        os.environ["PYTHONPYCACHEPREFIX"] = f"{temporary}/compiled"
        os.environ["ZEROTOOLS_SOCKET"] = f"{temporary}/nobody.sock"
        print(f"{asked.model}: {machine()}; medians of {asked.runs}, in turn\n")
        with checkpoint(Path(temporary), "--model", asked.model, "--ranks", "4") as source:
            compare(source, asked.runs)


if __name__ == "__main__":
    main()

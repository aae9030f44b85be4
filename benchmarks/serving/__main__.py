"""Reading a sharded checkpoint through `zerotools serve`, against reading the consolidated file.

    python -m benchmarks.serving [--model 271M] [--runs 5] [--work DIR]

A client process reads all of a model once, by curl: from the server (made of the shards as it is
asked for), and from a plain file server of Python over the file that consolidate wrote. Also: the
time to the first byte of a range in the middle, and the most memory that the server takes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from benchmarks.measuring import machine, zerotools
from benchmarks.runs import checkpoint
from harness.started import Started

FORMAT = "%{time_starttransfer} %{time_total} %{size_download}"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="271M")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--work", type=Path, help="where all of it lies; /dev/shm: no disk")
    asked = parser.parse_args()
    print(machine())
    with TemporaryDirectory(dir=asked.work) as directory:
        work = Path(directory)
        with checkpoint(work, "--model", asked.model, "--stage", "3", "--ranks", "4") as source:
            _compare(source, work / "out", asked.runs)


def _compare(source: Path, out: Path, runs: int) -> None:
    one = ("--max-shard-size", "1TB")
    subprocess.run(zerotools("consolidate", str(source), str(out), *one), check=True)
    server = Started(
        zerotools("serve", str(source), "--json", *one), stdout=subprocess.PIPE, text=True
    )
    plain = Started(
        [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1", "-d", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PYTHONUNBUFFERED": "1"},
        text=True,
    )
    try:
        began = time.monotonic()
        told = _json(server)
        print(f"until it serves: {time.monotonic() - began:.2f} s")
        assert plain.stdout is not None
        port = plain.stdout.readline().split("port ")[1].split()[0]
        keys = ("-H", f"Authorization: Bearer {told['token']}")
        urls = {
            "served": (f"{told['url']}/model.safetensors", *keys),
            "written file": (f"http://127.0.0.1:{port}/model.safetensors",),
        }
        size = (out / "model.safetensors").stat().st_size
        rates: dict[str, list[float]] = {name: [] for name in urls}
        firsts = []
        for _ in range(runs):
            for name, url in urls.items():
                _, total, count = _curl(url)
                assert count == size
                rates[name].append(size / total / 1e9)
            middle = (*urls["served"], "-r", f"{size // 2}-{size // 2 + 4095}")
            firsts.append(_curl(middle)[0])
        for name, each in rates.items():
            print(f"{name}: {median(each):.2f} GB/s ({min(each):.2f} to {max(each):.2f})")
        ratios = [a / b for a, b in zip(rates["served"], rates["written file"], strict=True)]
        print(f"served / written: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        print(f"4 KiB in the middle: {median(firsts) * 1000:.1f} ms to the first byte")
        peak = psutil.Process(server.pid).memory_full_info().rss
        print(f"memory of the server after all: {peak / 2**20:.0f} MiB, of {size / 2**20:.0f} MiB")
    finally:
        for each in (server, plain):
            each.end()


def _curl(words: Sequence[str]) -> tuple[float, float, int]:
    done = subprocess.run(
        ["curl", "-s", "-o", "/dev/null", "-w", FORMAT, *words],
        capture_output=True,
        text=True,
        check=True,
    )
    first, total, count = done.stdout.split()
    return float(first), float(total), int(count)


def _json(server: Started) -> dict[str, str]:
    assert server.stdout is not None
    found: dict[str, str] = json.loads(server.stdout.readline())
    return found


if __name__ == "__main__":
    main()

"""The digests that a manifest could have, and CRC-32, in GiB/s of 1 MiB blocks.

    python -m benchmarks.verification.digests [--seconds 1]

Needs xxhash; blake3 is measured where it is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec

from benchmarks.measuring import machine

BLOCK = 2**20
Digest = Callable[[bytes], object]


def candidates() -> dict[str, Digest]:
    """By name; those that are installed."""
    xxhash = import_module("xxhash")
    found: dict[str, Digest] = {
        "CRC-32 (zlib)": zlib.crc32,
        "XXH3, 128 bits": xxhash.xxh3_128_digest,
        "XXH3, 64 bits": xxhash.xxh3_64_digest,
        "SHA-256": lambda block: hashlib.sha256(block).digest(),
    }
    if find_spec("blake3"):
        blake3 = import_module("blake3").blake3
        found["BLAKE3"] = lambda block: blake3(block).digest()
    return found


def speed(digest: Digest, threads: int, seconds: float) -> float:
    """GiB/s of all threads together."""
    block = os.urandom(BLOCK)

    def work() -> int:
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            digest(block)
            count += 1
        return count

    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        done = [pool.submit(work) for _ in range(threads)]
        blocks = sum(each.result() for each in done)
    return blocks * BLOCK / 2**30 / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0)
    asked = parser.parse_args()
    print(f"{machine()}\n")
    print("| digest | GiB/s, 1 thread | GiB/s, 2 threads |\n|---|---|---|")
    for name, digest in candidates().items():
        one, two = (speed(digest, threads, asked.seconds) for threads in (1, 2))
        print(f"| {name} | {one:.1f} | {two:.1f} |")


if __name__ == "__main__":
    main()

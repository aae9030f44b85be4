"""The floor of a consolidation: read the masters' bytes, cast them, write the bytes of the output.

    python -m benchmarks.floor CHECKPOINT OUT [--dtype bf16] [--workers N] [--fsync]

No names, no order, no header, no proof, no check of what is lost: what is left when everything but
moving and casting is taken away. Prints the seconds that it took after all imports.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np

from zerotools import formats
from zerotools.core.checkpoint import Checkpoint

TYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "fp16": np.dtype(np.float16)}
STRETCH = 2**18  # measured: the fastest


def stretches(checkpoint: Checkpoint) -> Iterator[tuple[str, int, int]]:
    """(file, byte offset, elements) of all masters, as long as they lie in one piece."""
    found = sorted(
        (chunk.file, chunk.offset, chunk.box.numel)
        for key, tensor in checkpoint.tensors.items()
        if key.role == "param"
        for chunk in tensor.chunks
    )
    file, begin, count = found[0][0], found[0][1], 0
    for next_file, offset, numel in found:
        if (next_file, offset) != (file, begin + 4 * count):
            yield file, begin, count
            file, begin, count = next_file, offset, 0
        count += numel
    yield file, begin, count


def tiles(checkpoint: Checkpoint, elements: int) -> Iterator[tuple[str, int, int, int]]:
    """(file, byte offset, elements, elements before it in the output)."""
    before = 0
    for file, offset, count in stretches(checkpoint):
        for done in range(0, count, elements):
            size = min(elements, count - done)
            yield file, offset + 4 * done, size, before
            before += size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", choices=TYPES, default="bf16")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--fsync", action="store_true")
    parser.add_argument("--elements", type=int, default=STRETCH, help="in one read")
    asked = parser.parse_args()
    checkpoint = formats.read(asked.checkpoint)
    work = list(tiles(checkpoint, asked.elements))
    files = {file: os.open(checkpoint.root / file, os.O_RDONLY) for file in checkpoint.files}
    local = threading.local()

    def move(tile: tuple[str, int, int, int]) -> None:
        file, offset, size, before = tile
        if not hasattr(local, "source"):
            local.source = np.empty(asked.elements, np.float32)
            local.cast = np.empty(asked.elements, TYPES[asked.dtype])
        source, cast = local.source[:size], local.cast[:size]
        os.preadv(files[file], [source.view(np.uint8).data], offset)
        np.copyto(cast, source, casting="unsafe")
        os.pwrite(out, cast.view(np.uint8).data, 2 * before)

    began = time.perf_counter()
    out = os.open(asked.out, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with ThreadPoolExecutor(asked.workers) as pool:
        for _ in pool.map(move, work):
            pass
    if asked.fsync:
        os.fsync(out)
    print(f"{time.perf_counter() - began:.3f}")


if __name__ == "__main__":
    main()

"""The floor of a reshard: read every byte, compute its CRC-32, write it, flush; and of verify.

    python -m benchmarks.move_floor CHECKPOINT [OUT] [--workers N] [--apply]

Each file of tensors becomes two of half the size below OUT, in MiB, by the system calls that
zerotools makes. A thread takes a whole file. Without OUT nothing is written. With --apply there are
two XXH3-128 in place of the CRC-32, as in `zerotools apply`. No names, no plan, no proof, no zip.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import xxhash

from zerotools.io.files.crc32 import crc32
from zerotools.ops.execution.write_files import reserve_blocks

TILE = 2**20
WRITE = 2**17


class Tile(NamedTuple):
    """Bytes of an open file, and where they go."""

    source: int
    begin: int
    length: int
    output: int
    offset: int


def files_of_tiles(checkpoint: Path, out: Path | None) -> Iterator[list[Tile]]:
    kinds = {".pt", ".safetensors"}
    paths = sorted(path for path in checkpoint.rglob("*") if path.suffix in kinds)
    for number, path in enumerate(paths):
        source = os.open(path, os.O_RDONLY)
        size = os.fstat(source).st_size
        half = size // 2 // TILE * TILE
        for begin, end in ((0, half), (half, size)) if half else ((0, size),):
            output = -1
            if out is not None:
                output = os.open(out / f"{number}-{begin}", os.O_RDWR | os.O_CREAT | os.O_EXCL)
                os.truncate(output, end - begin)
                reserve_blocks(output, end - begin)
            yield [
                Tile(source, at, min(TILE, end - at), output, at - begin)
                for at in range(begin, end, TILE)
            ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--apply", action="store_true")
    asked = parser.parse_args()
    if asked.out is not None:
        asked.out.mkdir()
    outputs = set[int]()

    def move(tiles: list[Tile]) -> None:
        buffer, crc = memoryview(bytearray(TILE)), 0
        for tile in tiles:
            data = buffer[: tile.length]
            os.preadv(tile.source, [data], tile.begin)
            if asked.apply:
                xxhash.xxh3_128_digest(data)
                xxhash.xxh3_128_digest(data)
            else:
                crc = crc32(data, crc)
            if tile.output >= 0:
                for at in range(0, tile.length, WRITE):
                    os.pwrite(tile.output, data[at : at + WRITE], tile.offset + at)
                outputs.add(tile.output)

    with ThreadPoolExecutor(asked.workers) as pool:
        list(pool.map(move, files_of_tiles(asked.checkpoint, asked.out)))
        list(pool.map(os.fsync, outputs))


if __name__ == "__main__":
    main()

"""What benchmarks of writing commands share: checkpoints to read, and runs that begin alike."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.measuring import Measurement, measure

MIB = 2**20
Runs = dict[str, list[Measurement]]
Commands = dict[str, Callable[[], Measurement]]

# The same program, but nothing is flushed to the disk.
UNFLUSHED = "import os; os.fsync = lambda _: None; from zerotools.cli.main import main; main()"


@contextmanager
def checkpoint(work: Path, *options: str, name: str = "checkpoint") -> Iterator[Path]:
    """A generated checkpoint, removed afterwards."""
    path = work / name
    command = [sys.executable, "-m", "benchmarks.zero_checkpoints", str(path), *options]
    subprocess.run(command, check=True)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def fresh(
    out: Path, command: Sequence[str], cold: Path | None = None, touched: int = 0
) -> Measurement:
    """Run with no output there, nothing left to flush, and the source cached or, if `cold`, not.

    `touched` bytes of memory are used and freed before: a virtual machine that gives free memory
    back to its host pays for the first use of every page, some seconds for each gigabyte, and who
    writes first after a pause would pay for all.
    """
    if out.is_dir():
        shutil.rmtree(out)
    out.unlink(missing_ok=True)
    os.sync()
    for path in cold.rglob("*.pt") if cold is not None else ():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    if touched:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        mmap.mmap(-1, touched, flags=flags).close()
    return measure(command, sampling=True)


def middle(results: Sequence[Measurement], of: Callable[[Measurement], float]) -> float:
    return median(of(result) for result in results)


def wall(result: Measurement) -> float:
    return result.wall_seconds


def peak_anonymous(result: Measurement) -> float:
    return result.peak_anonymous_bytes

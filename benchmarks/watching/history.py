"""The history of a busy day: its file, and what keeping and reading it takes of a processor.

    python -m benchmarks.watching.history

Eight GPUs and a job on each, sampled once a second for 24 h and once more for the part
of a month that is left, as the daemon does: seconds are written ten at a time, rolled up, dropped.
A sample of NVML comes from the shared library of the tests (`harness/nvml_double.c`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measuring import machine
from zerotools.sensors.fake import FakeProbe, fake_gpu
from zerotools.sensors.snapshot import Snapshot
from zerotools.sensors.source import SnapshotSource
from zerotoolsd.monitoring.history.downsampling import (
    TIERS,
    bucket_of,
    rolled_up,
    step_for,
    tier_for,
)
from zerotoolsd.monitoring.history.history_file import FILE, HistoryFile
from zerotoolsd.monitoring.history.series import series_of

DAY, GPUS, BATCH = 86400, 8, 10
BEGIN = 1_700_000_000
READS = {"1 h": 3600, "24 h": DAY, "30 d": 30 * DAY}
POINTS = 240


def main() -> None:
    """Print the table."""
    print(machine())
    snapshot = SnapshotSource(FakeProbe([fake_gpu(n, used_gib=60.0) for n in range(GPUS)])).read()
    with TemporaryDirectory() as work:
        file = HistoryFile(Path(work))
        used = _seconds(lambda: _keep(file, snapshot, BEGIN, DAY, 1))
        print(f"series                     {len(_sample(snapshot, random.Random(0)))}")
        print(f"file after 24 h            {_size(work):.1f} MB (aim: below 20)")
        print(f"processor for 24 h         {used:.0f} s = {100 * used / DAY:.3f} % of a core")
        # A day of seconds takes minutes to make: the rest of the month is a sample a minute.
        _keep(file, snapshot, BEGIN + DAY, 29 * DAY, 60)
        print(f"file after 30 days         {_size(work):.1f} MB (bound: 64 MiB)")
        for name, span in READS.items():
            found = _seconds(lambda span=span: _read(file, BEGIN + 30 * DAY, span))  # type: ignore[misc]
            print(f"reading {name:<5} in 240 points {1000 * found:.0f} ms")
        file.close()


def _sample(snapshot: Snapshot, dice: random.Random) -> dict[str, float]:
    gpus = {(n, 1): {f"GPU-fake-{n}": dice.randrange(60 << 30)} for n in range(GPUS)}
    hosts = {(n, 1): dice.randrange(30 << 30) for n in range(GPUS)}
    return series_of(snapshot, gpus, hosts)


def _keep(file: HistoryFile, snapshot: Snapshot, begin: int, seconds: int, each: int) -> None:
    dice = random.Random(begin)
    for at in range(begin, begin + seconds, BATCH * each):
        times = range(at, at + BATCH * each, each)
        file.add([bucket_of(time, _sample(snapshot, dice)) for time in times], [])
        file.roll_up(at + BATCH * each)


def _read(file: HistoryFile, now: int, span: int) -> None:
    number = tier_for(span, POINTS)
    found = file.buckets(number, now - span, now)
    assert rolled_up(found, step_for(TIERS[number], span, POINTS))


def _size(work: str) -> float:
    return sum(each.stat().st_size for each in Path(work).glob(f"{FILE}*")) / 1e6


def _seconds(do: Callable[[], object]) -> float:
    began = time.process_time()
    do()
    return time.process_time() - began


if __name__ == "__main__":
    main()

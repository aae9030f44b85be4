"""What one sample of the machine costs, in milliseconds of a processor.

    python -m benchmarks.watching.sensing

NVML is a double (`harness/nvml_double.c`), as no GPU is at hand. It reads a text file at every
call, and no driver is behind it: what is measured is this side of the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.measuring import machine
from benchmarks.watching.doubles import gpus_of
from zerotools.sensors.host import HostSensor
from zerotools.sensors.nvml import NvmlProbe

TIMES = 300


def main() -> None:
    """Print the table."""
    print(machine())
    host = HostSensor()
    print(f"HostSensor.read         {_each(host.read):.2f} ms")
    costs = {}
    for count in (1, 4, 8):
        with TemporaryDirectory() as work:
            here, probe = _gpus(Path(work), count)
        costs[count] = here + probe
        print(f"NvmlProbe.read, {count} GPUs  {here:.2f} ms here + {probe:.2f} ms in the probe")
    print(f"each GPU more           {(costs[8] - costs[1]) / 7:.2f} ms")


def _gpus(work: Path, count: int) -> tuple[float, float]:
    probe = NvmlProbe(environment=gpus_of(work, count))
    try:
        assert len(probe.read().gpus) == count
        (child,) = psutil.Process().children()
        before = sum(child.cpu_times()[:2])
        here = _each(probe.read)
        return here, 1000 * (sum(child.cpu_times()[:2]) - before) / TIMES
    finally:
        probe.close()


def _each(do: Callable[[], object]) -> float:
    begun = time.process_time()
    for _ in range(TIMES):
        do()
    return 1000 * (time.process_time() - begun) / TIMES


if __name__ == "__main__":
    main()

"""Whole processes, measured by the kernel's own accounting of each when it has ended."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Measurement:
    """One finished process: wall and CPU seconds, peak resident bytes of the largest process."""

    wall_seconds: float
    cpu_seconds: float
    peak_rss_bytes: int


def measure(command: Sequence[str]) -> Measurement:
    """Run a command that must succeed.

    Raises:
        RuntimeError: it failed.
    """
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    if status:
        assert process.stderr is not None
        raise RuntimeError(f"{' '.join(command)} failed: {process.stderr.read().decode()[-2000:]}")
    return Measurement(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def interleaved(
    commands: dict[str, Callable[[], Measurement]], *, runs: int
) -> dict[str, list[Measurement]]:
    """Each in turn, `runs` times after one warm-up, so that drift of the machine hits all."""
    results: dict[str, list[Measurement]] = {name: [] for name in commands}
    for run in range(runs + 1):
        for name, once in commands.items():
            result = once()
            if run:
                results[name].append(result)
    return results


def row(name: str, results: Sequence[Measurement]) -> str:
    """A table row of medians, with the range of wall times."""
    walls = sorted(result.wall_seconds for result in results)
    return (
        f"| {name} | {median(walls):.2f} ({walls[0]:.2f} to {walls[-1]:.2f}) "
        f"| {median(r.cpu_seconds for r in results):.2f} "
        f"| {median(r.peak_rss_bytes for r in results) / 2**20:.0f} |"
    )


HEADER = "| command | wall s (range) | CPU s | peak RSS MiB |\n|---|---|---|---|"


def machine() -> str:
    """Hardware and versions, for beside the figures."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return (
        f"{len(os.sched_getaffinity(0))} cores ({model}), {memory:.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}"
    )


def zerotools(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "zerotools", *map(str, arguments)]

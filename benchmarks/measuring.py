"""Whole processes, measured by the kernel's own accounting of each when it has ended."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Measurement:
    """One finished process: wall and CPU seconds, peak resident bytes of the largest process.

    `peak_anonymous_bytes` leaves out mapped files; it is sampled, so a short peak may be missed.
    """

    wall_seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    peak_anonymous_bytes: int = 0
    output: str = ""


@dataclass(frozen=True)
class SizedBenchmark:
    """How large the checkpoint is to be, how often each is run, and where."""

    size: str
    runs: int
    work: Path
    deepspeed_python: str


SAMPLE_SECONDS = 0.005


def measure(command: Sequence[str], *, sampling: bool = False) -> Measurement:
    """Run a command that must succeed; `sampling` watches its anonymous memory.

    Python's compiled modules are kept: whoever measures warms up first.

    Raises:
        RuntimeError: it failed.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with TemporaryFile() as output, TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
        anonymous = _watch(process.pid) if sampling else 0
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = status
        output.seek(0)
        errors.seek(0)
        if status:
            raise RuntimeError(f"{' '.join(command)} failed: {errors.read().decode()[-2000:]}")
        cpu, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        return Measurement(wall, cpu, peak, anonymous, output.read().decode())


def _watch(pid: int) -> int:
    """The largest RssAnon of a child until it ends, in bytes."""
    largest = 0
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                largest = max(largest, 1024 * int(line.split()[1]))
        time.sleep(SAMPLE_SECONDS)
    return largest


def interleaved(
    commands: Mapping[str, Callable[[], Measurement]], *, runs: int, warm: bool = True
) -> dict[str, list[Measurement]]:
    """Each in turn, `runs` times, so that drift of the machine hits all; `warm`: after one more."""
    results: dict[str, list[Measurement]] = {name: [] for name in commands}
    for run in range(runs + warm):
        for name, once in commands.items():
            result = once()
            if run >= warm:
                results[name].append(result)
    return results


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
        f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    )


def work_directory(text: str) -> Path:
    """That of `--work`, made where it is not there."""
    path = Path(text)
    path.mkdir(parents=True, exist_ok=True)
    return path


def zerotools(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "zerotools", *map(str, arguments)]


@contextmanager
def sized_benchmark(about: str | None, sizes: Sequence[str], runs: int) -> Iterator[SizedBenchmark]:
    """What the command line asks for, in a directory that is removed in the end. `about` is the
    module's docstring, `runs` how often each is run by default."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("size", choices=sizes)
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--work", type=work_directory, help="where to put checkpoints and outputs")
    parser.add_argument("--deepspeed-python", default=sys.executable)
    asked = parser.parse_args()
    with TemporaryDirectory(dir=asked.work) as temporary:
        os.environ["PYTHONPYCACHEPREFIX"] = f"{temporary}/compiled"
        os.environ["DS_ACCELERATOR"] = "cpu"
        yield SizedBenchmark(asked.size, asked.runs, Path(temporary), asked.deepspeed_python)

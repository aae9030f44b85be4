"""Measurements: the speed compared with simple training loops, the largest model that trains in a
fixed amount of memory, and the speed of conversions compared with `cp`.

Each measurement runs a benchmark as a user would. The log contains its tables.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.gpu.checks import Check, Found, Look, last_line
from harness.launching import ROOT
from harness.started import run

LEAST_RATIO = 0.9
"""Smallest speed, relative to the fastest other training loop."""
UNMEASURED = "not measured"
GIB = "8"
MIB = 1 << 20
SECONDS = 200.0
ENGINES = ("torch", "deepspeed")
STEPS = {
    "speed": "stage 2",
    "speed at stage 3": "stage 3",
    "speed with offload": "stage 2, optimizer on the cpu",
}
"""The names of the checks of speed, with the case that both engines run."""
LARGEST = ["torch, stage 2", "torch, stage 2, optimizer on the cpu"]
COPY = 'cp -r --reflink=never "$1" "$2" && find "$2" -type f -exec sync {} +'
SLOWER = 2.0
"""If a command writes as many bytes as `cp`, it may take this many times as long."""
START_SECONDS = 2.0
"""Seconds that the start of a command may take."""


def table_of(said: str, title: str) -> list[list[str]]:
    """Return the rows of the Markdown table in `said` with the first column `title`, without the
    header.
    """
    lines = said.splitlines()
    begin = next((n for n, line in enumerate(lines) if line.startswith(f"| {title} |")), None)
    rows = []
    for line in [] if begin is None else lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def _benchmark(table: str, cases: Sequence[str], read: Callable[[str], Found]) -> Look:
    def look(device: str, directory: Path) -> Found:
        place = ("--ranks", "1", "--gib", GIB, "--work", directory)
        command = [sys.executable, "-m", "benchmarks.zero", table, *place, "--only", *cases]
        done = run(command, timeout=SECONDS, cwd=ROOT, capture_output=True, text=True)
        print(done.stdout, done.stderr, sep="\n", flush=True)
        return Found(last_line(done.stderr), False) if done.returncode else read(done.stdout)

    return look


def of_steps(said: str) -> Found:
    """Compare the tokens per second with the fastest other training loop, for each stage and
    offload.
    """
    rows = table_of(said, "stage, offload")
    failed = [line for line in said.splitlines() if UNMEASURED in line]
    words = "; ".join(f"stage {row[0]}: {row[1]} tokens/s, {row[-1]}" for row in rows)
    ok = bool(rows) and not failed and all(float(row[-1]) >= LEAST_RATIO for row in rows)
    return Found("; ".join([words, *failed]), ok)


def of_largest(said: str) -> Found:
    """Return the sizes of the largest models. The check fails if a case has no model that
    trains.
    """
    rows = table_of(said, "engine")
    failed = [" ".join(row[:3]) for row in rows if not re.fullmatch(r"[\d.]+B", row[-1])]
    memory = [f"{row[0]}, stage {row[1]}, offload {row[2]}: {row[-1]}" for row in rows]
    words = "; ".join(memory) if not failed else f"no model for {', '.join(failed)}"
    return Found(words, bool(rows) and not failed, memory)


def copies(device: str, directory: Path) -> Found:
    """Compare the time of `consolidate` and `reshard` on the local disk with `cp` of the same
    checkpoint.
    """
    found = copied("271M", directory)
    at_most = START_SECONDS + SLOWER * found["cp"][0]
    told = [f"{name} {size / MIB:,.0f} MiB in {took:.2f} s" for name, (took, size) in found.items()]
    return Found("; ".join(told), all(took <= at_most for took, _ in found.values()))


def copied(model: str, directory: Path) -> dict[str, tuple[float, int]]:
    """Return (seconds, bytes written) for each command, with a checkpoint of `model`."""
    source, found = directory / "source", dict[str, tuple[float, int]]()
    made = [sys.executable, "-m", "benchmarks.zero_checkpoints", str(source)]
    run([*made, "--model", model, "--ranks", "4"], timeout=SECONDS, cwd=ROOT, check=True)
    ours = [sys.executable, "-m", "zerotools"]
    commands = {
        "cp": (["sh", "-c", COPY, "sh"], []),
        "consolidate": ([*ours, "consolidate"], []),
        "reshard": ([*ours, "reshard"], ["--world-size", "8"]),
    }
    for name, (command, options) in commands.items():
        began, out = time.monotonic(), directory / name
        run([*command, source, out, *options], timeout=SECONDS, cwd=ROOT, check=True)
        found[name] = time.monotonic() - began, size_of(out)
    return found


def size_of(path: Path) -> int:
    """Return the size of a file, or of all files in a directory, in bytes."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(each.stat().st_size for each in files if each.is_file())


OF_CPUS = "the figures of CPUs are in benchmarks/results"
CHECKS = {
    **{
        name: Check(
            f"{LEAST_RATIO:g} of the fastest other loop",
            220,
            _benchmark("steps", [f"{engine}, {case}" for engine in ENGINES], of_steps),
            OF_CPUS,
        )
        for name, case in STEPS.items()
    },
    "largest model": Check(
        f"one trains in {GIB} GiB", 220, _benchmark("largest", LARGEST, of_largest), OF_CPUS
    ),
    "copies on the disk": Check(f"{SLOWER:g} times the seconds of cp", 120, copies, OF_CPUS),
}

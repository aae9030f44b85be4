"""What `zerotools top` takes of a core, and how long `zerotools monitor --once` takes.

    python -m benchmarks.watching.full_screen [--seconds 60] [--steps 20000]

A real zerotoolsd with a job that has reported 20,000 steps and goes on with two a second, on a
machine with eight GPUs that NVML's double pretends. `top` runs in pseudo-terminals of three sizes,
with a reading every 2 s; its processor time is the kernel's, that of the probe and of the process
that looks at disks beside it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from benchmarks.daemon import daemon
from benchmarks.measuring import machine, measure, zerotools
from benchmarks.watching.doubles import gpus_of
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict

GPUS, RUNS, SETTLING_SECONDS = 8, 7, 20.0
SIZES = ((80, 24), (110, 40), (200, 60))
PROGRAM = """
import math, sys, time
from zerotools import worker
total = int(sys.argv[1])
for step in range(1, 10 * total):
    worker.report(step, steps=10 * total, loss=1.8 + 4 * math.exp(-10 * step / total),
                  tokens_per_second=72000.0, lr=3e-4, grad_norm=0.5)
    if step > total:
        print("step", step, flush=True)
        time.sleep(0.5)
    elif step % 50 == 0:
        time.sleep(0.005)  # the supervisor takes them in
"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--steps", type=int, default=20_000)
    asked = parser.parse_args()
    print(machine())
    with TemporaryDirectory() as directory:
        work = Path(directory)
        environment = gpus_of(work, GPUS)
        os.environ.update(environment)  # the daemon's, too
        with daemon(work / "state") as (_, client):
            job_id = _submit(client, work, asked.steps)
            _once(client, environment)
            for size in SIZES:
                _screen(client, environment, size, asked.seconds)
            print(f"the job had reported    {client.job(job_id)['progress']['step']} steps")
            client.cancel(job_id)


def _submit(client: DaemonClient, work: Path, steps: int) -> int:
    program = work / "program.py"
    program.write_text(PROGRAM)
    job = {
        "name": "long",
        "device": "cpu",
        "engine": "script",
        "output_dir": str(work / "out"),
        "script": {
            "command": [sys.executable, str(program), str(steps)],
            "directory": str(work),
        },
    }
    number = int(client.submit(job_from_dict(job, source="benchmark"))["id"])
    while ((client.job(number)["progress"] or {}).get("step") or 0) < steps:
        time.sleep(0.5)
    return number


def _once(client: DaemonClient, environment: Mapping[str, str]) -> None:
    command = zerotools("monitor", "--once", "--socket", client.socket)
    found = [measure(command) for _ in range(RUNS + 1)][1:]
    walls = sorted(each.wall_seconds for each in found)
    cpu = median(each.cpu_seconds for each in found)
    print(
        f"monitor --once          {median(walls):.2f} s ({walls[0]:.2f} to {walls[-1]:.2f}), "
        f"processor {cpu:.2f} s"
    )


def _screen(
    client: DaemonClient, environment: Mapping[str, str], size: tuple[int, int], seconds: float
) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    command = [*zerotools("top", "--socket", client.socket), "--background", "dark"]
    clean = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**clean, "TERM": "xterm-256color"}
    )
    written = [0]
    threading.Thread(target=_drain, args=(ours, written), daemon=True).start()
    time.sleep(SETTLING_SECONDS)
    top = psutil.Process(process.pid)
    family = [top, *top.children(recursive=True)]
    before = [sum(each.cpu_times()[:2]) for each in family]
    bytes_before = written[0]
    time.sleep(seconds)
    used = [
        100 * (sum(each.cpu_times()[:2]) - past) / seconds
        for each, past in zip(family, before, strict=True)
    ]
    rate = (written[0] - bytes_before) / seconds
    memory = top.memory_info().rss / 2**20
    print(
        f"top, {size[0]:>3}x{size[1]}             {used[0]:.2f} % of a core + "
        f"{sum(used[1:]):.2f} % in the processes that look, {memory:.0f} MiB, "
        f"{rate / 1024:.1f} KiB/s to the terminal"
    )
    os.write(ours, b"q")
    process.wait(30)
    os.close(theirs)
    os.close(ours)


def _drain(terminal: int, written: list[int]) -> None:
    while True:
        try:
            written[0] += len(os.read(terminal, 1 << 16))
        except OSError:
            return


if __name__ == "__main__":
    sys.exit(main())

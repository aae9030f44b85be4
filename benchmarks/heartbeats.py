"""What heartbeats cost: a rank for each step, and the supervisor of eight ranks.

    python -m benchmarks.heartbeats [--seconds 60] [TREE...]

A step writes four lines: one when it is done, one with its report, two around the all-reduce. The
supervisor is measured while eight processes take 20 steps a second each and report nothing, for
each checkout TREE (default: this one); checkouts take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from zerotoolsd.supervisor.heartbeats.shared_heartbeat import (
    VARIABLE,
    Pulse,
    PulseBoard,
    open_pulse,
)
from zerotoolsd.supervisor.plan import Plan

ROOT = Path(__file__).resolve().parents[1]
ROUNDS, STEPS, RANKS = 20, 20_000, 8
STEP_SECONDS = 0.05
RANK = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
try:
    from zerotoolsd.supervisor.heartbeats.shared_heartbeat import open_pulse
    pulse = open_pulse(os.environ, int(os.environ["RANK"]))
    pulse.enter("step")
except ImportError:
    pulse = None
step = 0
while True:
    time.sleep(float(sys.argv[2]))
    step += 1
    if pulse is not None:
        with pulse.waiting("all-reduce"):
            pass
        pulse.beat(step)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path, default=[ROOT], metavar="TREE")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    board = PulseBoard(1)
    print(f"a step, with a board      {cost(open_pulse({VARIABLE: board.path}, 0)):.2f} us")
    print(f"a step, without a board   {cost(Pulse()):.2f} us")
    board.close()
    for tree in options.trees:
        share, memory = supervisor(tree.absolute(), options.seconds)
        print(f"supervisor of {tree}: {share:.3%} of a processor, {memory:.1f} MiB resident")


def cost(pulse: Pulse) -> float:
    """Microseconds for the lines of one step: the best of some rounds."""
    pulse.enter("step")
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for step in range(STEPS):
            with pulse.waiting("all-reduce"):
                pass
            pulse.beat(step)
            pulse.beat(step)
        best = min(best, (time.perf_counter() - began) / STEPS)
    return best * 1e6


def supervisor(tree: Path, seconds: float) -> tuple[float, float]:
    """The share of a processor that the supervisor and its keeper of `tree` take, and the resident
    MiB of the supervisor."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        run.mkdir()
        daemon = str(tree / "daemon")
        plan = Plan(
            job_id=1,
            attempt=1,
            token="t" * 32,
            argv=(sys.executable, "-I", "-S", "-c", RANK, daemon, str(STEP_SECONDS)),
            env={},
            cwd="/",
            umask=0o077,
            world_size=RANKS,
            gpu_uuids=(),
            grace_seconds=1.0,
            straggler_seconds=1.0,
            log_limit_bytes=2**20,
            stall={"action": "end", "factor": 120, "start": 7200, "step": 600},
        )
        (run / "attempt.json").write_text(json.dumps(plan.to_json()))
        entry = tree / "daemon" / "zerotoolsd" / "supervisor" / "entry.py"
        command = [sys.executable, "-I", "-S", str(entry), str(run)]
        keeper = subprocess.Popen(command)
        try:
            return measured(run, seconds)
        finally:
            keeper.terminate()
            keeper.wait()


def measured(run: Path, seconds: float) -> tuple[float, float]:
    while not (run / "run.json").exists():
        time.sleep(0.1)
    time.sleep(5.0)  # ranks have started
    record = json.loads((run / "run.json").read_text())
    pids = [record["pid"], record["keeper"]["pid"]]
    before = sum(map(processor_seconds, pids))
    time.sleep(seconds)
    used = sum(map(processor_seconds, pids)) - before
    status = Path(f"/proc/{pids[0]}/status").read_text()
    rss = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return used / seconds, int(rss.split()[1]) / 1024


def processor_seconds(pid: int) -> float:
    """Of all threads; schedstat counts in nanoseconds where stat has ticks of 10 ms."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


if __name__ == "__main__":
    os.environ.pop(VARIABLE, None)
    main()

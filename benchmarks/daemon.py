"""The daemon idle, and the time from `submit` to the first training step.

    python -m benchmarks.daemon [IDLE_SECONDS]

Prints a table. The job is a two-layer Llama on this file's own text: its time is all start-up.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine
from zerotools.core.errors import DaemonUnreachable
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict

TICK = os.sysconf("SC_CLK_TCK")
JOB: dict[str, Any] = {
    "device": "cpu",
    "ranks": 2,
    "model": {
        "config": {
            "model_type": "llama",
            "vocab_size": 256,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
    },
    "data": {"text": [str(Path(__file__).resolve())], "sequence_length": 16},
    "train": {"steps": 3, "batch_size": 4},
}


@contextmanager
def daemon(state: Path, config: str = "") -> Iterator[tuple[int, DaemonClient]]:
    """A zerotoolsd on `state` with this configuration: its pid, and a client."""
    written = state.with_suffix(".toml")
    written.write_text(config)
    command = [sys.executable, "-m", "zerotoolsd", "--state-dir", str(state)]
    with state.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen([*command, "--config", str(written)], stderr=log)
    try:
        client = DaemonClient(state / "api.sock")
        while True:
            try:
                client.health()
                break
            except DaemonUnreachable:
                time.sleep(0.01)
        yield process.pid, client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def first(run_dir: Path, **wanted: object) -> float:
    """The time of the first record in `progress.jsonl` with these fields, once it is there."""
    path = run_dir / "progress.jsonl"
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        for record in map(json.loads, lines):
            if all(record.get(name) == value for name, value in wanted.items()):
                return float(record["time"])
        time.sleep(0.01)


def phases(run_dir: Path) -> str:
    """What rank 0 says of its own start: seconds for imports, process group, data, model."""
    lines = (run_dir / "rank-0.log").read_text().splitlines()
    return next(line.partition("ready in ")[2] for line in lines if "ready in " in line)


def main() -> None:
    print(f"{machine()}\n")
    idle = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    with tempfile.TemporaryDirectory() as work, daemon(Path(work) / "state") as (pid, client):
        before = cpu_seconds(pid)
        time.sleep(idle)
        print(f"idle daemon: CPU         {(cpu_seconds(pid) - before) / idle:.2%}")
        print(f"idle daemon: memory      {rss_mib(pid):.1f} MiB")
        submitted = time.time()
        job_id = client.submit(job_from_dict(JOB, source="benchmark"))["id"]
        print(f"submit to acknowledged   {time.time() - submitted:.3f} s")
        run_dir = Path(work) / "state" / "jobs" / str(job_id) / "attempt-1"
        stepped = first(run_dir, event="step", step=1)
        supervisor = json.loads((run_dir / "run.json").read_text())["started"]
        print(f"submit to supervisor     {supervisor - submitted:.3f} s")
        print(f"submit to first step     {stepped - submitted:.3f} s")
        print(f"  of which, on rank 0    {phases(run_dir)}")
        while client.job(job_id)["state"] == "running":
            time.sleep(0.05)


if __name__ == "__main__":
    main()

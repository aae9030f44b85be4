"""gflow's daemon under the same load, where it is installed (`runqd` of the package index).

Its jobs are as its `gbatch -g 1 "sleep 3600"` sends them. The machine shows it no GPU, so that all
of them wait.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.queue.http_load import connect_port, request, send
from benchmarks.queue.report import line, megabytes, percent, show
from benchmarks.queue.running import resident, share

JOBS = 1000
JOB: dict[str, Any] = {
    "id": 0,
    "script": None,
    "command": "'sleep 3600'",
    "gpus": 1,
    "conda_env": None,
    "run_dir": "/",
    "priority": 10,
    "depends_on": None,
    "depends_on_ids": [],
    "dependency_mode": None,
    "auto_cancel_on_dependency_failure": True,
    "task_id": None,
    "gpu_sharing_mode": "Exclusive",
    "gpu_memory_limit_mb": None,
    "time_limit": None,
    "memory_limit_mb": None,
    "submitted_by": "unknown",
    "redone_from": None,
    "retried_from": None,
    "max_retries": 0,
    "auto_close_tmux": False,
    "parameters": {},
    "group_id": None,
    "max_concurrent": None,
    "run_name": None,
    "project": None,
    "state": "Queued",
    "gpu_ids": None,
    "submitted_at": None,
    "started_at": None,
    "finished_at": None,
    "reason": None,
    "scheduled_at": None,
}


@contextmanager
def _daemon(program: Path, home: Path, port: int) -> Iterator[tuple[int, float]]:
    """Its pid, and the seconds until it answered."""
    config = home / "gflow.toml"
    config.write_text(f'[daemon]\nhost = "127.0.0.1"\nport = {port}\n')
    began = time.perf_counter()
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "-c", config],
            stdout=log,
            stderr=log,
            env={"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "PATH": os.environ["PATH"]},
        )
    try:
        while process.poll() is None:
            with suppress(OSError):
                connect_port(port, 1)[0].close()
                break
            time.sleep(0.005)
        yield process.pid, time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def measure_gflow(program: Path, work: Path, idle_seconds: float) -> None:
    """Submits, its list, what it holds, and a restart."""
    home = work / "gflow"
    home.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with _daemon(program, home, port) as (pid, _):
        one = request("POST", "/jobs", json.dumps(JOB).encode())
        load = send(connect_port(port, 16), iter([one] * JOBS))
        show(f"gflow: submits of {JOBS:,} jobs", load)
        listed = [request("GET", "/jobs?limit=100")] * 20
        show("gflow: its list with limit=100", send(connect_port(port, 1), iter(listed)))
        used = share([pid], idle_seconds)
        line("gflow: idle", f"{percent(used)} CPU, {megabytes(resident(pid))} resident")
    with _daemon(program, home, port) as (_, seconds):
        (link,) = connect_port(port, 1)
        began = time.perf_counter()
        send([link], iter([request("GET", "/jobs?limit=100")]))
        seconds += time.perf_counter() - began
        line(f"gflow: restart with {JOBS:,} queued", f"its list after {seconds:.2f} s")

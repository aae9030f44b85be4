"""A zerotoolsd that is measured, the jobs that it gets, and what its processes hold."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.daemon import cpu_seconds
from benchmarks.queue.http_load import request
from harness.soak.trouble import nvml_library

CONFIG = "[limits]\ncpu_ranks = 1\n"
JOB: dict[str, Any] = {
    "engine": "script",
    "script": {"command": ["sleep", "3600"], "directory": "/"},
}
CPU: dict[str, Any] = {"device": "cpu", "ranks": 1}
READY = b"READY=1"


def submit(number: int, wants: Mapping[str, Any] = CPU) -> bytes:
    """The request that queues one job."""
    job = {**JOB, **wants, "name": f"job-{number}"}
    return request("POST", "/v1/jobs", json.dumps({"job": job}).encode())


class Daemon:
    """A zerotoolsd on a state directory; `seconds_to_ready` is what it told systemd. `module` is
    what is run."""

    def __init__(self, state: Path, env: Mapping[str, str], module: str = "zerotoolsd") -> None:
        self.state = state
        self.socket = state / "api.sock"
        state.parent.mkdir(parents=True, exist_ok=True)
        config = state.parent / "zerotoolsd.toml"
        config.write_text(CONFIG)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            address = state.parent / "notify"
            address.unlink(missing_ok=True)
            notified.bind(str(address))
            notified.settimeout(600)
            began = time.perf_counter()
            with (state.parent / "log").open("wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", module, "--state-dir", state, "--config", config],
                    stderr=log,
                    env={**os.environ, **env, "NOTIFY_SOCKET": str(address)},
                )
            while READY not in notified.recv(4096):
                pass
            self.seconds_to_ready = time.perf_counter() - began

    @property
    def pid(self) -> int:
        """Of the daemon itself."""
        return self.process.pid

    def stop(self) -> None:
        """End it; jobs go on."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def wait_until_quiet(self) -> float:
        """Seconds until it has nothing more to do: it used no CPU for a quarter of a second."""
        began = time.perf_counter()
        used = -1.0
        while (now := cpu_seconds(self.pid)) != used:
            used = now
            time.sleep(0.25)
        return time.perf_counter() - began - 0.25

    def attempt(self) -> dict[str, Any]:
        """The record of the job that runs."""
        path = self.state / "jobs" / "1" / "attempt-1" / "run.json"
        record: dict[str, Any] = json.loads(path.read_text())
        return record


@contextmanager
def daemon(
    state: Path, env: Mapping[str, str] | None = None, module: str = "zerotoolsd"
) -> Iterator[Daemon]:
    """A daemon; stopped in the end."""
    one = Daemon(state, env or {}, module)
    try:
        yield one
    finally:
        one.stop()


def share(pids: list[int], seconds: float) -> float:
    """Of one processor, that these processes use together."""
    used = sum(map(_nanoseconds, pids))
    time.sleep(seconds)
    return (sum(map(_nanoseconds, pids)) - used) / 1e9 / seconds


def _nanoseconds(pid: int) -> int:
    """On a processor, of all threads."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads)


def held_together(pids: list[int]) -> float:
    """Bytes that these processes hold, each page by its share of those that have it (PSS)."""
    return sum(_kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss") for pid in pids) * 1024


def resident(pid: int) -> float:
    """Resident bytes of a process."""
    return _kilobytes(Path(f"/proc/{pid}/status"), "VmRSS") * 1024


def _kilobytes(path: Path, name: str) -> int:
    lines = path.read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def children(pid: int) -> list[int]:
    """Of the daemon: the processes that it keeps to look at files and GPUs, without supervisors."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (thread / "children").read_text().split()):
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"/supervisor/" not in command:
                found += [child, *children(child)]
    return found


def eight_gpus(directory: Path) -> dict[str, str] | None:
    """The environment in which eight GPUs are seen, all in use by others; None: no C compiler."""
    library = nvml_library(directory)
    if library is None:
        return None
    (directory / "gpus").write_text("".join(f"gpu GPU-{i} 81920 20480 0\n" for i in range(8)))
    return {"LD_LIBRARY_PATH": str(directory), "NVML_DOUBLE": str(directory / "gpus")}


def end_everything(state: Path) -> None:
    """End the one job that runs: its supervisor ends with its rank."""
    record = json.loads((state / "jobs" / "1" / "attempt-1" / "run.json").read_text())
    for rank in record["ranks"]:
        os.kill(rank["pid"], signal.SIGKILL)
    while Path(f"/proc/{record['pid']}").exists():
        time.sleep(0.01)

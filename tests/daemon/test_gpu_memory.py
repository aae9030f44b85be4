"""Memory of GPUs, as a real daemon sees it through a library that stands for the driver's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.daemon.daemons import CONFIG, Daemon, daemon_in, make_job
from tests.daemon.waiting import wait_for
from tests.sensors.conftest import compiled
from tests.sensors.double import Double

UUID = "GPU-8c1d0f2e"
TOTAL_MIB = 81920


@dataclass
class OneGpu:
    """A daemon of a machine with one GPU of 80 GiB."""

    daemon: Daemon
    machine: Double

    @property
    def seen(self) -> dict[str, str]:
        """What the daemon needs in its environment to see it."""
        return {name: self.machine.environment[name] for name in ("LD_LIBRARY_PATH", "NVML_DOUBLE")}

    def holds(self, loose_mib: int = 0, **pids: int) -> None:
        """So much is in use, of it this by each process (`pid_7=1024`)."""
        used = loose_mib + sum(pids.values())
        lines = [f"hold 0 {name.removeprefix('pid_')} {size}" for name, size in pids.items()]
        display = "draw 0 1 0"  # a driver that lists processes, also to a test in a container
        self.machine.says(f"gpu {UUID} {TOTAL_MIB} {used} 0", *lines, display)

    def sees(self, mib: int) -> None:
        """Wait until the daemon sees that so much is in use."""

        def seen() -> bool:
            (gpu,) = self.daemon.client.machine()["snapshot"]["gpus"]
            return bool(gpu["memory_used_bytes"] == mib << 20)

        wait_for(seen, f"the daemon to see {mib} MiB")

    def reason(self, job_id: int, *words: str) -> str:
        """Why the job waits, once all of these are said."""

        def said() -> str | None:
            found = str(self.daemon.client.job(job_id)["reason"])
            return found if all(word in found for word in words) else None

        return str(wait_for(said, f"job {job_id} to wait for {words}", 40.0))


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[OneGpu]:
    (tmp_path / "nvml").mkdir()
    machine = Double(compiled(tmp_path / "nvml", 3), tmp_path)
    config = f'{CONFIG}\n[pressure]\nmost = "save"\n'
    with daemon_in(tmp_path / "daemon", config) as daemon:
        daemon.state.mkdir(mode=0o700)
        found = OneGpu(daemon, machine)
        found.holds()
        daemon.start(**found.seen)
        yield found


def test_memory_that_a_job_left_keeps_its_gpu_also_for_the_next_daemon(gpu: OneGpu) -> None:
    client = gpu.daemon.client
    job = make_job("release exit=0", device="cuda", gpus=1, ranks=None)
    first = client.submit(job)["id"]
    gpu.daemon.wait_for_state(first, "running")
    gpu.holds(12595)
    gpu.sees(12595)
    (gpu.daemon.run_dir(first) / "release").touch()
    gpu.daemon.wait_for_end(first)
    later = client.submit(job)["id"]
    said = gpu.reason(later, "which job 1 left behind")
    assert "GPU 0: in use by 12.3 GiB of memory that no visible process holds" in said
    events = [each for each in client.explain(first)["events"] if each["kind"] == "gpu_residue"]
    assert [each["why"][:37] for each in events] == ["GPU 0 gets no job after attempt 1: it"]
    (lease,) = client.machine()["leases"]
    assert (lease["gpu_uuid"], lease["job_id"]) == (UUID, first)
    gpu.daemon.kill()
    gpu.daemon.start(**gpu.seen)
    gpu.reason(later, "which job 1 left behind")
    gpu.holds()
    gpu.daemon.wait_for_state(later, "running")
    (gpu.daemon.run_dir(later) / "release").touch()
    assert gpu.daemon.wait_for_end(later)["state"] == "succeeded"
    assert client.machine()["leases"] == []


def test_the_job_that_takes_more_than_its_share_saves_and_makes_room(gpu: OneGpu) -> None:
    client = gpu.daemon.client

    def start(gib: int) -> tuple[int, str]:
        fake = "attempt=1:stop attempt=2:release exit=0"
        memory = {"per_gpu": f"{gib}GiB"}
        job = make_job(fake, device="cuda", gpus=1, ranks=None, memory=memory)
        number = client.submit(job)["id"]
        gpu.daemon.wait_for_state(number, "running")
        return number, f"pid_{gpu.daemon.pids(number)[0]}"

    (leaks, first), (beside, second) = start(10), start(40)
    begun = time.monotonic()

    def makes_room() -> bool:
        more = min(20 * 1024, int(512 * (time.monotonic() - begun)))  # half a GiB each second
        gpu.holds(**{first: 10 * 1024 + more, second: 40 * 1024})
        return client.job(leaks)["state"] != "running"

    wait_for(makes_room, "it to be asked", 60.0)
    gpu.holds(**{second: 40 * 1024})
    said = gpu.reason(leaks, "stops because the memory of GPU 0 runs out: the job holds")
    assert "more than it declared); GPU 0 has" in said
    assert client.job(beside)["state"] == "running"
    for number, attempt in ((beside, 1), (leaks, 2)):
        gpu.daemon.wait_for_state(number, "running")
        (gpu.daemon.run_dir(number, attempt) / "release").touch()

"""What is said of GPUs."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.fake_gpu_probe import fake_gpu
from tests.daemon.queue.scheduling.deciding import seen
from tests.sensors.numa_machines import EIGHT, a_topology, dual_socket
from zerotools.jobs.doctor.finding import DoctorFinding
from zerotools.jobs.doctor.gpus import (
    check_fences,
    check_gpu_choice,
    check_gpu_locks,
    check_gpus,
    check_memory_nodes,
)
from zerotools.sensors.numa import NumaTopology
from zerotools.sensors.snapshot import Gpu, GpuProcess


def test_a_machine_without_a_driver_runs_jobs_on_its_cpus() -> None:
    [found] = check_gpus(seen(error="no NVML: the NVIDIA driver is not loaded"))
    assert (found.level, found.found) == ("warning", "the NVIDIA driver is not loaded")
    [found] = check_gpus(seen())
    assert found.found == "the driver shows no GPU"


@pytest.mark.parametrize(
    ("gpu", "level", "said"),
    [
        (fake_gpu(0), "ok", "Fake H100, GPU-fake-0"),
        (fake_gpu(0, error="NVML: GPU is lost"), "problem", "GPU is lost"),
        (fake_gpu(0, mig_instances=["MIG-1"], error="it is divided"), "warning", "divided"),
        (fake_gpu(0, unmeasured="its memory is not told"), "warning", "not told"),
        (fake_gpu(0, used_gib=20), "warning", "20.0 GiB are in use by no visible process"),
        (fake_gpu(0, used_gib=20, processes=[GpuProcess(7, 1)]), "warning", "by pid 7"),
        (dataclasses.replace(fake_gpu(0), temperature_celsius=95), "warning", "95 degrees"),
    ],
)
def test_each_gpu_is_looked_at(gpu: Gpu, level: str, said: str) -> None:
    first, found = check_gpus(seen(gpu))
    assert (first.level, found.level) == ("ok", level)
    assert said in found.found
    assert (found.do is None) == (level == "ok")


def test_what_our_own_jobs_hold_is_well() -> None:
    _, found = check_gpus(seen(fake_gpu(0, used_gib=20)), frozenset({"GPU-fake-0"}))
    assert found.level == "ok"


def test_a_gpu_that_stays_reserved_is_named_with_who_holds_it() -> None:
    held = {"gpu_uuid": "GPU-1", "job_id": 7, "held_by": "pid 812 (python), in state D (nfs_wait)"}
    [found] = check_fences([{"gpu_uuid": "GPU-0", "job_id": 8, "held_by": None}, held])
    assert (found.level, found.what) == ("warning", "GPU GPU-1")
    assert "pid 812 (python), in state D (nfs_wait), which job 7 left behind" in found.found


def test_what_only_draws_is_well_and_advice_names_the_keys() -> None:
    screen = [GpuProcess(812, 2 << 30, graphics=True)]
    _, found = check_gpus(seen(fake_gpu(0, total_gib=8, used_gib=2.3, processes=screen)))
    assert found.level == "ok"
    busy = fake_gpu(0, total_gib=8, used_gib=4, processes=[*screen, GpuProcess(9, 1 << 30)])
    _, found = check_gpus(seen(busy))
    assert found.found == "2.0 GiB are in use by pid 9"
    assert "more than 0.5 GiB (5 % of the GPU's memory, at least 512 MiB)" in str(found.do)
    assert "limits.foreign_memory_bytes" in str(found.do)
    assert "gpus.exclude" in str(found.do)


def test_gpus_that_no_job_gets_are_said_and_entries_that_are_none() -> None:
    _, found = check_gpus(seen(fake_gpu(0, used_gib=20)), excluded=frozenset({"GPU-fake-0"}))
    assert (found.level, "gpus.exclude" in found.found) == ("ok", True)
    [warned] = check_gpu_choice({"unknown": ['gpus.prefer: "GPU-5"']})
    assert warned.found == 'gpus.prefer: "GPU-5" matches no GPU of this machine'
    assert not [*check_gpu_choice(None)]


def test_what_the_daemon_says_counts() -> None:
    (fine,) = check_gpu_locks({"directory": "/run/zerotools/gpus", "trouble": None})
    assert fine.level == "ok"
    (found,) = check_gpu_locks({"directory": "/x", "trouble": "/x: No such file or directory"})
    assert found.level == "warning"
    assert "two daemons may give one GPU to two jobs: /x: No such file" in found.found
    assert found.do is not None
    assert "install -d -m 1777 /x" in found.do


def test_without_a_daemon_the_directory_is_looked_at(tmp_path: Path) -> None:
    (found,) = check_gpu_locks(None, tmp_path / "gpus")
    assert "No such file or directory" in found.found
    (tmp_path / "gpus").mkdir(mode=0o755)
    (found,) = check_gpu_locks(None, tmp_path / "gpus")
    assert found.level == "warning"
    (tmp_path / "gpus").chmod(0o1777)
    if os.geteuid() != 0:
        pytest.skip("the directory must be root's")
    assert [each.level for each in check_gpu_locks(None, tmp_path / "gpus")] == ["ok"]


def look(
    topology: NumaTopology, policy: Callable[[], object] = lambda: None, *, told: bool = False
) -> list[DoctorFinding]:
    def here(*, cores: bool = False) -> NumaTopology:
        return a_topology("0-63") if told else topology

    return list(check_memory_nodes(EIGHT, topology.to_json() if told else None, here, policy))


def test_of_one_node_nothing_is_said() -> None:
    assert look(a_topology("0-63")) == []
    assert look(NumaTopology()) == []


def test_each_node_has_its_processors_its_memory_and_its_gpus() -> None:
    (found,) = look(dual_socket())
    assert (found.level, found.what) == ("ok", "memory nodes")
    assert found.found == (
        "node 0 has 32 of 32 processors, 256 GiB, GPUs 0-3; "
        "node 1 has 32 of 32 processors, 256 GiB, GPUs 4-7"
    )


def test_what_the_daemon_may_use_counts_not_what_the_command_may() -> None:
    found = look(dual_socket("0-7"), told=True)
    assert found[0].found.startswith("node 0 has 8 of 32 processors, 256 GiB; node 1 has 0 of 32")
    warnings = [each for each in found if each.level == "warning"]
    assert [each.what for each in warnings] == ["GPU 4", "GPU 5", "GPU 6", "GPU 7"]
    assert "none of the processors near GPU 4 (16-31,48-63) may be used here" in warnings[0].found
    assert "AllowedCPUs=" in str(warnings[0].do)


def test_words_of_a_newer_daemon_are_not_believed_half() -> None:
    def here(*, cores: bool = False) -> NumaTopology:
        return dual_socket()

    (found,) = check_memory_nodes(EIGHT, {"sockets": []}, here, lambda: None)
    assert found.level == "ok"


def test_a_container_that_forbids_policies_is_told_how_to_allow_them() -> None:
    def forbidden() -> object:
        raise PermissionError(errno.EPERM, "x")

    _, found = look(dual_socket(), forbidden)
    assert found.found == "the daemon cannot choose the node of memory: Operation not permitted"
    assert "--cap-add SYS_NICE" in str(found.do)

    def absent() -> object:
        raise OSError(errno.ENOSYS, "x")

    _, found = look(dual_socket(), absent)
    assert "SYS_NICE" not in str(found.do)

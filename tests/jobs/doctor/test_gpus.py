"""What is said of GPUs."""

from __future__ import annotations

import dataclasses

import pytest

from tests.daemon.queue.scheduling.deciding import seen
from zerotools.jobs.doctor.gpus import look_at_fences, look_at_gpu_choice, look_at_gpus
from zerotools.sensors.fake import fake_gpu
from zerotools.sensors.snapshot import Gpu, GpuProcess


def test_a_machine_without_a_driver_runs_jobs_on_its_cpus() -> None:
    [found] = look_at_gpus(seen(error="no NVML: the NVIDIA driver is not loaded"))
    assert (found.level, found.found) == ("warning", "no NVML: the NVIDIA driver is not loaded")
    [found] = look_at_gpus(seen())
    assert found.found == "the driver shows no GPU"


@pytest.mark.parametrize(
    ("gpu", "level", "said"),
    [
        (fake_gpu(0), "ok", "Fake H100, GPU-fake-0"),
        (fake_gpu(0, error="NVML: GPU is lost"), "problem", "GPU is lost"),
        (fake_gpu(0, mig_instances=["MIG-1"], error="it is divided"), "warning", "divided"),
        (fake_gpu(0, unmeasured="its memory is not told"), "warning", "not told"),
        (fake_gpu(0, used_gib=20), "warning", "20.0 GiB are in use by no process"),
        (fake_gpu(0, used_gib=20, processes=[GpuProcess(7, 1)]), "warning", "by pid 7"),
        (dataclasses.replace(fake_gpu(0), temperature_celsius=95), "warning", "95 degrees"),
    ],
)
def test_each_gpu_is_looked_at(gpu: Gpu, level: str, said: str) -> None:
    first, found = look_at_gpus(seen(gpu))
    assert (first.level, found.level) == ("ok", level)
    assert said in found.found
    assert (found.do is None) == (level == "ok")


def test_what_our_own_jobs_hold_is_well() -> None:
    _, found = look_at_gpus(seen(fake_gpu(0, used_gib=20)), frozenset({"GPU-fake-0"}))
    assert found.level == "ok"


def test_a_gpu_that_stays_reserved_is_named_with_who_holds_it() -> None:
    held = {"gpu_uuid": "GPU-1", "job_id": 7, "held_by": "pid 812 (python), in state D (nfs_wait)"}
    [found] = look_at_fences([{"gpu_uuid": "GPU-0", "job_id": 8, "held_by": None}, held])
    assert (found.level, found.what) == ("warning", "GPU GPU-1")
    assert "pid 812 (python), in state D (nfs_wait), which outlived job 7" in found.found


def test_what_only_draws_is_well_and_advice_names_the_keys() -> None:
    screen = [GpuProcess(812, 2 << 30, graphics=True)]
    _, found = look_at_gpus(seen(fake_gpu(0, total_gib=8, used_gib=2.3, processes=screen)))
    assert found.level == "ok"
    busy = fake_gpu(0, total_gib=8, used_gib=4, processes=[*screen, GpuProcess(9, 1 << 30)])
    _, found = look_at_gpus(seen(busy))
    assert found.found == "2.0 GiB are in use by pid 9"
    assert "more than 0.5 GiB (5 % of the GPU's memory, at least 512 MiB)" in str(found.do)
    assert "limits.foreign_memory_bytes" in str(found.do)
    assert "gpus.exclude" in str(found.do)


def test_gpus_that_no_job_gets_are_said_and_entries_that_are_none() -> None:
    _, found = look_at_gpus(seen(fake_gpu(0, used_gib=20)), excluded=frozenset({"GPU-fake-0"}))
    assert (found.level, "gpus.exclude" in found.found) == ("ok", True)
    [warned] = look_at_gpu_choice({"unknown": ['gpus.prefer: "GPU-5"']})
    assert warned.found == 'gpus.prefer: "GPU-5" matches no GPU of this machine'
    assert not [*look_at_gpu_choice(None)]

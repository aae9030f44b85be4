from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.fake_gpu_probe import fake_gpu
from zerotools.sensors.foreign_gpu_memory import is_in_first_pid_namespace, unaccounted_bytes
from zerotools.sensors.snapshot import GpuProcess

GIB = 2**30


def test_it_is_what_no_process_is_told_to_hold() -> None:
    listed = [GpuProcess(1, 30 * GIB), GpuProcess(2, 10 * GIB)]
    assert unaccounted_bytes(fake_gpu(0, used_gib=60, processes=listed)) == 20 * GIB
    assert unaccounted_bytes(fake_gpu(0, used_gib=30, processes=listed)) == 0
    assert unaccounted_bytes(fake_gpu(0, used_gib=0.5)) == GIB // 2


def test_where_the_driver_does_not_say_it_all_it_is_not_known() -> None:
    half = [GpuProcess(1, 30 * GIB), GpuProcess(2, None)]
    assert unaccounted_bytes(fake_gpu(0, used_gib=60, processes=half)) is None
    assert unaccounted_bytes(replace(fake_gpu(0), memory_used_bytes=None)) is None


def test_a_process_in_a_container_has_pids_of_its_own(tmp_path: Path) -> None:
    inside = tmp_path / "pid"
    assert not is_in_first_pid_namespace(inside)
    inside.touch()
    assert not is_in_first_pid_namespace(inside)
    assert is_in_first_pid_namespace() == (Path("/proc/self/ns/pid").stat().st_ino == 4026531836)

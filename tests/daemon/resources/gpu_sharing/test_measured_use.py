"""What our own jobs use of a GPU, by who descends from their supervisors."""

from __future__ import annotations

import os
from pathlib import Path

from tests.daemon.made_attempts import TOKEN
from tests.daemon.users.other_users import AS_ROOT, UID
from zerotools.sensors.fake import fake_gpu
from zerotools.sensors.snapshot import GpuProcess
from zerotoolsd.queue.rows import RUNNING, AttemptRow
from zerotoolsd.resources.gpu_sharing.measured_use import MeasuredUse, measure
from zerotoolsd.supervisor.durable import write_json
from zerotoolsd.supervisor.procfs import Process, boot_id

PROCESSES = {
    pid: Process(pid=pid, parent=parent, state="S", start_ticks=10 * pid, rss_bytes=0)
    for pid, parent in ((20, 1), (21, 20), (22, 21), (30, 1), (40, 1), (41, 40))
}


def attempt(run_dir: Path, job_id: int, supervisor: int, keeper: int) -> AttemptRow:
    run_dir.mkdir()
    named = [{"pid": pid, "start_ticks": 10 * pid} for pid in (supervisor, keeper)]
    record = {**named[0], "keeper": named[1], "token": TOKEN, "boot_id": boot_id()}
    write_json(run_dir / "run.json", record)
    return AttemptRow(
        job_id=job_id,
        number=1,
        token=TOKEN,
        state=RUNNING,
        run_dir=str(run_dir),
        gpu_uuids=("GPU-fake-0",),
        resumed_from=None,
        started=1.0,
        ended=None,
        result=None,
    )


def look(tmp_path: Path, *processes: tuple[int, int | None]) -> MeasuredUse:
    ours = [attempt(tmp_path / "7", 7, 21, 20), attempt(tmp_path / "8", 8, 40, 39)]
    gpu = fake_gpu(0, processes=[GpuProcess(pid, used) for pid, used in processes])
    return measure([gpu], ours, PROCESSES.get)


def test_each_attempt_has_what_its_descendants_use_and_strangers_count_for_none(
    tmp_path: Path,
) -> None:
    found = look(tmp_path, (22, 5), (21, 1), (41, 2), (30, 100))
    assert found.of_attempts == {(7, 1): {"GPU-fake-0": 6}, (8, 1): {"GPU-fake-0": 2}}
    assert found.own == {"GPU-fake-0": 8}


def test_where_the_driver_does_not_say_all_nothing_is_known(tmp_path: Path) -> None:
    assert look(tmp_path, (22, 5), (30, None)) == MeasuredUse()
    for name in ("7", "8"):
        (tmp_path / name).rename(tmp_path / f"old-{name}")
    assert look(tmp_path, (22, 5), (999, 3)).own == {}  # pids of another namespace


def test_a_record_of_another_attempt_proves_nothing(tmp_path: Path) -> None:
    ours = attempt(tmp_path / "run", 7, 21, 20)
    write_json(tmp_path / "run" / "run.json", {"pid": 21, "start_ticks": 210, "token": "other"})
    gpu = fake_gpu(0, processes=[GpuProcess(22, 5)])
    assert measure([gpu], [ours], PROCESSES.get).own == {"GPU-fake-0": 0}


@AS_ROOT
def test_a_forged_record_claims_nothing_that_others_use(tmp_path: Path) -> None:
    ours = attempt(tmp_path / "7", 7, 21, 20)
    for path in (tmp_path / "7", tmp_path / "7" / "run.json"):
        os.chown(path, UID, UID)
    gpu = fake_gpu(0, processes=[GpuProcess(22, 5)])
    assert measure([gpu], [ours], PROCESSES.get).of_attempts == {}

"""Readings for the screen, made up: GPUs, jobs, and what is known of one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from harness.fake_gpu_probe import fake_gpu
from tests.daemon.http.api.made_views import STEP, a_job, a_view, an_attempt
from zerotools.cli.job_views.describe_job import Job
from zerotools.cli.top.drawing.styled_lines import Line
from zerotools.cli.top.reading.disk_reader import CheckpointDirectory, DiskSpace
from zerotools.cli.top.reading.gpu_holders import GpuHolder, memory_by_owner
from zerotools.cli.top.reading.job_details import JobDetails, KeptCheckpoint
from zerotools.cli.top.reading.job_list import completed
from zerotools.cli.top.reading.job_reports import JobReports, LongCurve, ReportedCheckpoint
from zerotools.cli.top.reading.read_screen_values import ScreenData
from zerotools.sensors.snapshot import Gpu, GpuProcess, Host, Pressure, Snapshot, Stall
from zerotools.sensors.xids import GpuXid

GIB = 1 << 30
NOW = 1_700_000_100.0
HOST = Host(
    memory_total_bytes=512 * GIB,
    memory_available_bytes=420 * GIB,
    memory_used_bytes=92 * GIB,
    swap_total_bytes=8 * GIB,
    swap_used_bytes=GIB,
    cpu_count=64,
    load_average=(12.1, 9.0, 8.0),
    cpu_percent=34.0,
    network_received_bytes_per_second=1.2e9,
    network_sent_bytes_per_second=3.4e6,
    pressure=Pressure(Stall(0.0, 0.0), Stall(1.2, 1.0), Stall(25.0, 9.0)),
)
PHASE: Mapping[str, Any] = {
    "doing": None,
    "since": None,
    "last_progress": NOW,
    "quiet": False,
    "last_line": None,
    "name": "step",
    "last_step": NOW - 2,
    "step_seconds": 0.5,
    "late": False,
    "waits_for": None,
    "stalled": False,
    "stall": None,
}


def job_of(number: int, state: str = "running", name: str = "tiny", **changes: Any) -> Job:
    """A job as the daemon tells it; one that runs has an attempt and takes steps."""
    runs = state == "running"
    usual: dict[str, Any] = {
        "state": state,
        "reason": None,
        "user": "ada",
        "attempts": (an_attempt(),) if runs else (),
        "progress": STEP if runs else None,
        "phase": PHASE if runs else None,
        "started": NOW - 3700 if runs else None,
    }
    return completed([a_view(number, a_job(), **{**usual, **changes, "name": name}).to_json()])[0]


def eight_gpus() -> tuple[Gpu, ...]:
    """Those of a machine on which not all is well."""
    busy = [fake_gpu(n, used_gib=71, processes=[GpuProcess(7, 70 * GIB)]) for n in range(4)]
    busy[2] = replace(busy[2], throttle_reasons=("power limit", "temperature"), sm_clock_mhz=1410)
    busy[3] = replace(busy[3], throttle_reasons=("power limit",), ecc_corrected_errors=12)
    stranger = fake_gpu(4, used_gib=24, processes=[GpuProcess(8, 23 * GIB)])
    left = fake_gpu(5, used_gib=9, ecc_uncorrected_errors=2)
    reported = fake_gpu(6, xids=[GpuXid(79, 1.0)])
    return (*busy, stranger, left, reported, Gpu(index=7, error="NVML: GPU is lost"))


def a_look(*jobs: Job, gpus: Sequence[Gpu] | None = None, **changes: Any) -> ScreenData:
    """The machine with these jobs; the first of them has the GPUs that are busy."""
    found = eight_gpus() if gpus is None else tuple(gpus)
    first = jobs[0] if jobs else None
    leases = {} if first is None else {f"GPU-fake-{n}": first for n in range(4)}
    holders = {
        gpu.index: tuple(
            GpuHolder(each.pid, "job 3 (tiny)", "job", each.memory_used_bytes)
            if each.pid == 7
            else GpuHolder(each.pid, "bob: python train.py", "stranger", each.memory_used_bytes)
            for each in gpu.processes
        )
        for gpu in found
    }
    usual: dict[str, Any] = {
        "snapshot": Snapshot(NOW, HOST, found, gpus_error=None if found else "no NVML: not here"),
        "machine": "gpu1",
        "jobs": tuple(jobs),
        "leases": leases,
        "holders": holders,
        "shares": {gpu.index: memory_by_owner(gpu, holders[gpu.index]) for gpu in found},
        "disks": (DiskSpace("/data", 3500 * GIB, 812 * GIB),),
    }
    return ScreenData(**{**usual, **changes})


@cache
def reported(steps: int = 1000) -> JobReports:
    """A loss that falls, with evaluations, and checkpoints."""
    loss, evals, speed = LongCurve(), LongCurve(), LongCurve()
    for step in range(1, steps + 1):
        loss.add(step, 5.0 / step**0.3)
        speed.add(step, 15300.0)
        if step % 250 == 0:
            evals.add(step, 5.2 / step**0.3)
    saved = tuple(
        ReportedCheckpoint(step, f"/out/{step}", NOW - 240, 13 * GIB, 3.2, "at_save")
        for step in (1000, 750, 500)
    )
    return JobReports(loss.seen(), evals.seen(), speed.seen(), saved)


def chosen(job: Job, log: Sequence[str] = ("a line", "the last line")) -> JobDetails:
    """What is known of a job that trains."""
    found = reported()
    seen = CheckpointDirectory(NOW - 240, is_thinned=False)
    kept = tuple(KeptCheckpoint(each, seen) for each in found.checkpoints)
    return JobDetails(job["id"], found, tuple(log), kept)


def text_of(line: Line) -> str:
    """A line as it is read."""
    return "".join(text for text, _ in line)


def meaning_in(line: Line, text: str) -> str:
    """The meaning of the piece that has this text."""
    return next(meaning for piece, meaning in line if text in piece)

import pytest

from tests.daemon.api.made_views import STEP, a_job, a_view, an_attempt
from zerotools.cli.job_views.describe import Job
from zerotools.cli.job_views.machine_screen import MonitorView
from zerotools.cli.output import render
from zerotools.cli.top.looking import Details, GpuShare, Look, shares_of
from zerotools.cli.top.screen_rows import (
    Line,
    detail_lines,
    eta,
    gpu_lines,
    host_line,
    job_cells,
    memory_bar,
)
from zerotools.jobs.step_curves import Curves
from zerotools.sensors.fake import FakeProbe, fake_gpu
from zerotools.sensors.snapshot import Gpu, GpuProcess
from zerotools.sensors.source import SnapshotSource

GIB = 1 << 30


def plain(line: Line) -> str:
    return "".join(text for text, _ in line)


def running(**changes: object) -> Job:
    progress = {**STEP, **changes}
    view = a_view(3, a_job(), state="running", attempts=(an_attempt(),), progress=progress)
    return view.to_json()


def a_look(*gpus: Gpu, leases: dict[str, str] | None = None) -> Look:
    snapshot = SnapshotSource(FakeProbe(list(gpus))).read()
    owners = {process.pid: f"job {process.pid}" for gpu in gpus for process in gpu.processes}
    shares = {gpu.index: shares_of(gpu, owners) for gpu in gpus}
    return Look(MonitorView(snapshot, daemon="none", leases=leases or {}), shares)


def test_the_memory_of_a_gpu_is_split_by_who_holds_it() -> None:
    gpu = fake_gpu(0, used_gib=60, processes=[GpuProcess(1, 30 * GIB), GpuProcess(2, 10 * GIB)])
    shares = shares_of(gpu, {1: "job 3 (tiny)", 2: "ada: python x.py"})
    assert [(share.kind, share.held_bytes // GIB) for share in shares] == [
        ("job", 30),
        ("residue", 20),
        ("stranger", 10),
    ]
    bar = memory_bar(gpu, shares, 16)
    assert [(len(text), kind) for text, kind in bar] == [
        (6, "job"),
        (2, "stranger"),
        (4, "residue"),
        (4, "free"),
    ]


def test_what_a_driver_keeps_is_no_residue() -> None:
    assert shares_of(fake_gpu(0, used_gib=0.6), {}) == ()


def test_memory_of_a_process_that_nvml_does_not_know_is_no_residue() -> None:
    gpu = fake_gpu(0, used_gib=60, processes=[GpuProcess(1, None)])
    assert [share.kind for share in shares_of(gpu, {1: "job 1"})] == ["job"]


@pytest.mark.parametrize("shares", [(), (GpuShare("job 1", "job", 200 * GIB),) * 3])
def test_a_bar_is_as_wide_as_it_is_asked(shares: tuple[GpuShare, ...]) -> None:
    for width in (8, 13, 40):
        assert len(plain(memory_bar(fake_gpu(0), shares, width))) == width


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_gpu_is_one_line_that_fits(columns: int) -> None:
    busy = fake_gpu(0, used_gib=61.2, processes=[GpuProcess(7, 60 * GIB)])
    look = a_look(
        busy,
        fake_gpu(1),
        Gpu(index=2, error="NVML: GPU is lost " * 9),
        leases={"GPU-fake-0": "job 3 (a name that is rather long, as some are)"},
    )
    lines = gpu_lines(look, columns)
    assert len(lines) == 3
    assert all(render.width(plain(line)) <= columns for line in lines)
    assert "job 3" in plain(lines[0])
    assert "free" in plain(lines[1])
    assert lines[2][-1][1] == "bad"


def test_without_nvml_it_is_said_why() -> None:
    look = a_look()
    assert plain(gpu_lines(look, 80)[0]).startswith("GPUs  ")


def test_the_host_fits_eighty_columns() -> None:
    line = plain(host_line(a_look().view.snapshot.host))
    assert line.startswith("RAM ")
    assert len(line) <= 80


def test_a_job_has_a_bar_and_the_time_that_is_left() -> None:
    cells = [text for text, _ in job_cells(running())]
    assert cells[:2] == ["3", "tiny"]
    assert cells[4:7] == ["12/40", "━━━╌╌╌╌╌╌╌", "14 s"]


@pytest.mark.parametrize("seconds", [None, "x", float("nan"), True, 1e300])
def test_what_a_job_reports_may_be_anything(seconds: object) -> None:
    assert eta(running(step_seconds=seconds)) == "-"


def test_a_failed_job_does_not_look_like_one_that_runs() -> None:
    styles = {
        job_cells({**running(), "state": state})[3][1]
        for state in ("failed", "running", "succeeded")
    }
    assert len(styles) == 3


def test_a_verified_checkpoint_is_told_from_one_that_is_not() -> None:
    saved = {"step": 40, "path": "/nowhere", "time": 1.0}
    job = {**running(), "latest_checkpoint": {**saved, "verified": {"how": "x", "time": 1.0}}}
    assert job_cells(job)[8] == ("40 ✓", "good")
    job["latest_checkpoint"] = {**saved, "verified": None, "not_verified": "off"}
    assert job_cells(job)[8] == ("40 ?", "")


def test_the_selected_job_has_its_curve_and_the_end_of_its_log() -> None:
    curves = Curves(loss={step: 3.0 - step / 100 for step in range(100)})
    details = Details(3, curves, tuple(f"line {n} \x1b[31mred" for n in range(20)))
    lines = [plain(line) for line in detail_lines(running(mfu=0.41), details, 80, 6)]
    assert len(lines) == 6
    assert "15300 tokens/s  MFU 41.0 %" in lines[1]
    assert lines[2].startswith("loss █")
    assert lines[2].endswith("3.0000 -> 2.0100")
    assert lines[-1].startswith("line 19 ")
    assert not any("\x1b" in line for line in lines)
    of_another = detail_lines(running(), Details(4, curves), 80, 6)
    assert len(of_another) == 2

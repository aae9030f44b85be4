from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from harness.started import Started
from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import STEP, a_job, a_view, an_attempt
from zerotools.cli.job_views.machine_screen import MonitorView, draw, filled_in, snapshot_of
from zerotools.cli.job_views.process_owners import (
    Owners,
    RankProcess,
    find_owners,
    find_ranks,
    find_watched,
)
from zerotools.cli.main import build, run
from zerotools.cli.output import render
from zerotools.core.errors import DaemonUnreachable
from zerotools.jobs.client import daemon_address
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile_tables.script import AdoptedProcess
from zerotools.sensors.snapshot import Gpu, GpuProcess, Snapshot
from zerotools.sensors.snapshot_source import SnapshotSource
from zerotools.sensors.xids import GpuXid
from zerotoolsd.supervisor.procfs import read_process


def test_the_screen() -> None:
    held = [GpuProcess(7, None), GpuProcess(812, 60 << 30)]
    busy = fake_gpu(0, used_gib=61.2, processes=held, throttle_reasons=["power limit"])
    lost = Gpu(index=2, error="NVML: GPU is lost")
    snapshot = SnapshotSource(FakeProbe([busy, fake_gpu(1), lost])).read()
    job = a_view(3, a_job(), state="running", attempts=(an_attempt(),), progress=STEP).to_json()
    view = MonitorView(snapshot, daemon="", jobs=[job], leases={"GPU-fake-0": "job 3 (tiny)"})
    run_dir = job["attempt"]["run_dir"]
    owners = Owners(
        {run_dir: "job 3 (tiny)"},
        {
            812: RankProcess(run_dir, 5 << 30),
            813: RankProcess(run_dir, 1 << 30),
            7: RankProcess("/x/\x1b[2J", 0),
        },
    )
    lines = draw(view, owners, 120)
    assert lines[:7] == [
        "GPU  name       used GiB  free GiB  of GiB  busy   temp  power     clock  slowed by  "
        "  leased to",
        "  0  Fake H100      61.2      18.8    80.0   0 %  40 °C   70 W  1755 MHz  power limit"
        "  job 3 (tiny)",
        "     pid 812  60.0 GiB  job 3 (tiny)",
        "     pid 7  -  a job of another daemon (/x/\\x1b[2J)",
        "  1  Fake H100       0.5      79.5    80.0   0 %  40 °C   70 W  1755 MHz  -            -",
        "  2  ?                 -         -       -     -      -      -         -  -            -",
        "     NVML: GPU is lost",
    ]
    assert lines[-2:] == [
        "job           state    ranks   step  host memory",
        "job 3 (tiny)  running  2 CPU  12/40      6.0 GiB",
    ]
    assert all(len(line) <= 40 for line in draw(view, owners, 40))
    narrow = draw(view, owners, 79)
    assert narrow[1] == (
        "  0  Fake H100      61.2      18.8    80.0   0 %  40 °C   70 W  job 3 (tiny)"
    )
    assert draw(view, owners, 66)[1] == (
        "  0      61.2      18.8    80.0   0 %  40 °C   70 W  job 3 (tiny)"
    )
    hot = replace(busy, throttle_reasons=("power limit", "temperature"))
    long = replace(view, snapshot=replace(snapshot, gpus=(hot,)))
    long.leases["GPU-fake-0"] = name = f"job 3 ({'x' * 60})"
    piped = draw(long, owners, None)
    assert piped[1] == f"  0      61.2   0 %  {name}", "a pipe has 80 columns, and nothing is cut"
    assert piped[2] == "     slowed by temperature"


def test_a_long_name_leaves_the_other_columns_on_a_terminal() -> None:
    name = "学习率扫描-" * 12
    job = a_view(3, a_job(), name=name, state="running", attempts=(an_attempt(),), progress=STEP)
    snapshot = SnapshotSource(FakeProbe([fake_gpu(0, used_gib=61.2)])).read()
    view = MonitorView(
        snapshot, daemon="", jobs=[job.to_json()], leases={"GPU-fake-0": f"job 3 ({name})"}
    )
    lines = draw(view, Owners({}, {}), 80)
    assert all(render.width(line) <= 80 for line in lines)
    assert lines[0].endswith("GiB  busy   temp  power  leased to")
    assert lines[1].startswith("  0      61.2    80.0   0 %  40 °C   70 W  job 3 (学习率扫描-")
    assert lines[1].endswith("…")
    assert lines[-1].startswith("job 3 (学习率扫描-学习率扫描-")
    assert lines[-1].endswith("…  running  2 CPU  12/40            -")


def test_old_gpus_are_shown_as_old() -> None:
    probe = FakeProbe([fake_gpu(0)], error="NVML did not answer within 2 s", age_seconds=75)
    view = MonitorView(SnapshotSource(probe).read(), daemon="no daemon answers")
    lines = draw(view, Owners({}, {}), None)
    assert lines[0] == "GPUs  as of 1 min 15 s ago: NVML did not answer within 2 s"
    assert lines[-1] == "jobs  no daemon answers"


def test_once_without_a_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "no.sock"
    assert run(build(), ["monitor", "--once", "--socket", str(path)]) == 0
    shown = capsys.readouterr()
    assert "host memory" in shown.out
    assert shown.out.endswith(f"jobs  no daemon answers at {path}\n")
    assert shown.err == ""


def test_json_has_the_machine_the_jobs_and_the_leases(
    zerotools: Command, service: FakeService
) -> None:
    service.add(state="running", attempts=(an_attempt(),))
    service.leases = [{"gpu_uuid": "GPU-fake-0", "job_id": 1, "attempt": 1}]
    tree = json.loads(zerotools("monitor", "--once", "--json").out)
    assert tree["snapshot"]["host"]["memory_total_bytes"] > 0
    assert [job["id"] for job in tree["jobs"]] == [1]
    assert tree["leases"] == service.leases
    assert tree["daemon_error"] is None


def test_an_interval_must_make_sense(zerotools: Command) -> None:
    done = zerotools("monitor", "--interval", "0")
    assert done.status == 2
    assert "'--interval'" in done.err


def test_owners() -> None:
    nobody = Owners({}, {})
    assert "python" in nobody.of(os.getpid())
    assert nobody.of(2**22 + 5) == "not visible from here (another container?)"
    assert nobody.host_bytes("/run") is None


def test_ranks_are_known_by_their_environment(tmp_path: Path) -> None:
    environment = os.environ | {"ZEROTOOLS_RUN_DIR": str(tmp_path)}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with Started(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ranks = find_ranks([psutil.Process(process.pid), psutil.Process()])
        assert list(ranks) == [process.pid]
        assert ranks[process.pid].run_dir == str(tmp_path)
        assert ranks[process.pid].rss_bytes > 1 << 20
        process.communicate(b"\n")
    assert find_ranks([psutil.Process()]) == {}


def test_what_the_driver_does_not_tell_is_said() -> None:
    gpu = fake_gpu(0, unmeasured="the driver does not report its memory (NVML: Not Supported)")
    snapshot = SnapshotSource(FakeProbe([gpu])).read()
    lines = draw(MonitorView(snapshot, daemon="none"), Owners({}, {}), None)
    assert lines[2] == "     the driver does not report its memory (NVML: Not Supported)"
    assert Snapshot.from_json(snapshot.to_json()).gpus == snapshot.gpus


def test_what_a_job_only_watches_is_its_own_with_all_below_it(tmp_path: Path) -> None:
    child = Started(["sh", "-c", "sleep 1000 & echo; wait"], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        root = psutil.Process(child.pid)
        (below,) = root.children()
        process = read_process(child.pid)
        assert process is not None
        watched = AdoptedProcess(child.pid, process.start_ticks, "0")
        found = find_watched("/run", watched)
        assert set(found) == {child.pid, below.pid}
        assert {each.run_dir for each in found.values()} == {"/run"}
        assert find_watched("/run", replace(watched, start_ticks=1)) == {}  # took over its pid
        owners = find_owners({"/run": "job 3 (tiny)"}, {"/run": watched})
        assert owners.of(below.pid) == "job 3 (tiny)"
    finally:
        child.end()
    assert find_watched("/run", watched) == {}


def test_the_past(zerotools: Command) -> None:
    shown = zerotools("monitor", "--history", "10m").out
    assert shown.startswith("the last 10 min 00 s, one point per 1 s\n")
    assert "host  CPU" in shown
    tree = json.loads(zerotools("monitor", "--history", "1h", "--json").out)
    assert tree["times"] == [3600, 3840]


def test_peaks(zerotools: Command) -> None:
    lines = zerotools("monitor", "--peaks").out.splitlines()
    assert lines[0].startswith("job ")
    assert "5 B" in lines[1]
    assert json.loads(zerotools("monitor", "--peaks", "--json").out)["peaks"][0]["host_bytes"] == 5


@pytest.mark.parametrize(
    "given",
    [
        ("--history", "0"),
        ("--history", "9000d"),
        ("--history", "1x"),
        ("--history", "1h", "--once"),
        ("--history", "1h", "--peaks"),
    ],
)
def test_a_past_that_there_is_not_is_refused(zerotools: Command, given: tuple[str, ...]) -> None:
    done = zerotools("monitor", *given)
    assert done.status == 2
    assert given[0] in done.err


def test_what_is_not_seen_from_here_is_taken_from_the_daemon() -> None:
    own = SnapshotSource(FakeProbe([fake_gpu(0), fake_gpu(1)])).read()
    busy = replace(
        own.host,
        cpu_percent=34.0,
        network_received_bytes_per_second=5.0,
        load_average=(9.0, 9.0, 9.0),
    )
    xids = (GpuXid(79, 1.0),)
    theirs = replace(own, host=busy, gpus=(fake_gpu(0, xids=xids), fake_gpu(7)))
    found = filled_in(own, theirs)
    assert (found.host.cpu_percent, found.host.network_received_bytes_per_second) == (34.0, 5.0)
    assert found.host.load_average == own.host.load_average
    assert "cpu_percent" not in found.host.missing
    assert "network_sent_bytes_per_second" in found.host.missing
    assert [gpu.xids for gpu in found.gpus] == [xids, ()]
    assert filled_in(own, replace(theirs, taken_at=own.taken_at - 31)) is own
    assert snapshot_of(own, {"snapshot": None}) is own
    blind = replace(own, gpus=(), gpus_error="NVML was not found")
    seen = filled_in(blind, theirs)
    assert (seen.gpus, seen.gpus_error) == (theirs.gpus, None), "the daemon has found it"
    assert filled_in(replace(blind, gpus_silent=True), theirs).gpus == ()


def test_of_another_machine_the_daemon_tells_what_it_sees(
    zerotools: Command, client: DaemonClient
) -> None:
    there = daemon_address.RemoteMachine("gpu1", "/run/api.sock", "/home/ada", 1000, {})
    daemon_address.record_forwarding(client.socket, there)
    try:
        tree = json.loads(zerotools("monitor", "--once", "--json").out)
    finally:
        daemon_address.forget_forwarding(client.socket)
    assert [gpu["uuid"] for gpu in tree["snapshot"]["gpus"]] == ["GPU-fake-0", "GPU-fake-1"]
    with pytest.raises(DaemonUnreachable, match="has not measured"):
        snapshot_of(None, {"snapshot": None})


def test_errors_of_gpus_and_the_network_are_told() -> None:
    gpu = fake_gpu(0, xids=[GpuXid(13, 1.0), GpuXid(79, 2.0)], ecc_uncorrected_errors=2)
    snapshot = SnapshotSource(FakeProbe([gpu])).read()
    host = replace(
        snapshot.host,
        network_received_bytes_per_second=1.5 * 2**30,
        network_sent_bytes_per_second=2048.0,
    )
    view = MonitorView(replace(snapshot, host=host), daemon="none")
    lines = draw(view, Owners({}, {}), None)
    assert lines[2:4] == [
        "     the driver reported XID 13, XID 79; the newest comes last",
        "     2 uncorrected errors of GPU memory (ECC) since the driver was loaded",
    ]
    assert "network      1.5 GiB/s received, 2.0 KiB/s sent" in lines

"""The metrics by name: what is documented, what another parser reads, what it costs."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import re
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import running
from tests.daemon.monitoring.reading import Sample, read_page
from zerotools.jobs.states import STATES
from zerotools.sensors.snapshot import Host, Snapshot
from zerotoolsd.attempts.metric_counters import MetricCounters
from zerotoolsd.interface.prometheus_text import render_metrics
from zerotoolsd.monitoring.prometheus_metrics import MOST_GPUS, MetricsMoment, metric_families
from zerotoolsd.queue.rows import Lease
from zerotoolsd.queue.store import Store

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/metrics.md"
HOST = Host(1, 1, 0, 0, 0, 1, (0.0, 0.0, 0.0))
GPUS = tuple(fake_gpu(index, used_gib=index) for index in range(3))
MOMENT = MetricsMoment(
    jobs={"queued": 3},
    leases=[
        Lease(gpu_uuid="GPU-fake-1", job_id=1, attempt=1),
        Lease(gpu_uuid="GPU-fake-2", job_id=2, attempt=1, held_by="pid 4"),
    ],
    fenced=["GPU-fake-2"],
    snapshot=Snapshot(0.0, HOST, GPUS, gpus_age_seconds=1.5),
    uptime_seconds=7.0,
    outbox={"waiting": 1, "dropped": 2},
)


def full_tally() -> MetricCounters:
    tally = MetricCounters()
    tally.queue_waits.observe(12.0)
    saved = {"step": 4, "seconds": 3.0, "bytes": 10, "time": 5.0, "verified": "at_save"}
    record = {"ran_seconds": 10.0, "checkpoint": saved, "progress": {"step_seconds": 1.0}}
    tally.attempt_ended("crashed", "hang", record, 0)
    return tally


def page(moment: MetricsMoment = MOMENT) -> dict[str, list[Sample]]:
    return read_page(
        render_metrics(metric_families(full_tally(), moment), openmetrics=False), openmetrics=False
    )


def test_every_metric_is_documented_with_its_type_and_labels() -> None:
    rows = re.findall(r"^\| `(zerotools_\w+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    documented = {name: set(re.findall(r"`(\w+)`", labels)) for name, _, labels in rows}
    found = {name: {key for each in rows for key in each[1]} for name, rows in page().items()}
    assert found == documented
    kinds = {
        f"{f.name}{'_total' * (f.kind == 'counter')}": f.kind
        for f in metric_families(full_tally(), MOMENT)
    }
    assert kinds == {name: kind for name, kind, _ in rows}


def test_a_gpu_on_which_a_job_is_and_something_outlived_another_is_of_the_job() -> None:
    both = [
        Lease(gpu_uuid="GPU-fake-2", job_id=3, attempt=1, bytes=7),
        Lease(gpu_uuid="GPU-fake-2", job_id=4, attempt=1, held_by="pid 4"),
    ]
    memory = page(replace(MOMENT, leases=both))["zerotools_gpu_memory_used_bytes"]
    owners = {each[1]["gpu_uuid"]: each[1]["owner"] for each in memory}
    assert owners == {"GPU-fake-0": "foreign", "GPU-fake-1": "foreign", "GPU-fake-2": "job"}


def test_jobs_and_gpus_by_owner() -> None:
    found = page()
    assert {each[1]["state"] for each in found["zerotools_jobs"]} == set(STATES)
    assert ("zerotools_jobs", {"state": "queued"}, 3.0) in found["zerotools_jobs"]
    hung = page(replace(MOMENT, stalled=2))["zerotools_jobs_stalled"]
    assert [each[2] for each in hung] == [2.0]
    memory = {
        each[1]["gpu_uuid"]: each[1]["owner"] for each in found["zerotools_gpu_memory_used_bytes"]
    }
    assert memory == {"GPU-fake-0": "foreign", "GPU-fake-1": "job", "GPU-fake-2": "residue"}
    fenced = {each[1]["gpu_uuid"]: each[2] for each in found["zerotools_gpu_fenced"]}
    assert fenced == {"GPU-fake-0": 0, "GPU-fake-1": 0, "GPU-fake-2": 1}
    assert found["zerotools_effective_training_ratio"][0][2] == pytest.approx(0.4)


def test_series_are_bounded() -> None:
    many = replace(MOMENT, snapshot=Snapshot(0.0, HOST, tuple(map(fake_gpu, range(500)))))
    assert len(page(many)["zerotools_gpu_fenced"]) == MOST_GPUS


@pytest.mark.skipif(
    importlib.util.find_spec("prometheus_client") is None,
    reason="prometheus_client is not installed: the strict reader above judges alone",
)
@pytest.mark.parametrize(
    ("parser", "openmetrics"),
    [("prometheus_client.parser", False), ("prometheus_client.openmetrics.parser", True)],
)
def test_the_official_parser_reads_the_same(parser: str, openmetrics: bool) -> None:
    text = render_metrics(metric_families(full_tally(), MOMENT), openmetrics=openmetrics)
    parsed = importlib.import_module(parser).text_string_to_metric_families(text)
    theirs = {(s.name, *sorted(s.labels.items())): s.value for f in parsed for s in f.samples}
    ours = read_page(text, openmetrics=openmetrics)
    assert theirs == {(n, *sorted(ls.items())): v for rows in ours.values() for n, ls, v in rows}


def test_ten_thousand_jobs_cost_little(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        store.submit(
            uid=0,
            name="x",
            spec=make_job("exit=0"),
            output_dir=None,
            default_output=tmp_path,
            idempotency_key=None,
            now=1.0,
        )
        more = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) "
        columns = (
            "uid, name, spec, spec_version, output_dir, state, restarts_used, best_step, created"
        )
        store._sql(f"INSERT INTO job ({columns}) {more} SELECT {columns} FROM job, n")
        times = []
        for _ in range(5):
            began = time.thread_time()
            moment = replace(MOMENT, jobs=store.state_counts())
            text = render_metrics(metric_families(full_tally(), moment), openmetrics=False)
            times.append(time.thread_time() - began)
        assert 'zerotools_jobs{state="queued"} 10000\n' in text
        assert min(times) < 0.005


def test_the_daemon_counts_what_its_jobs_did(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", FakeProbe([fake_gpu(0, used_gib=0)])) as it:
            job, _ = await it.service.submit(
                make_job("steps=2 exit=0"), uid=0, idempotency_key=None
            )
            await it.reach(job.id, "succeeded")
            found = read_page(await it.service.metrics(openmetrics=True), openmetrics=True)
            ended = ("zerotools_attempts_total", {"outcome": "finished", "cause": "none"}, 1.0)
            assert found["zerotools_attempts"] == [ended]
            assert ("zerotools_jobs", {"state": "succeeded"}, 1.0) in found["zerotools_jobs"]
            assert found["zerotools_queue_wait_seconds"][-1][2] == 1
            assert found["zerotools_db_commit_seconds"][-1][2] >= 3
            assert "tiny" not in str(found)

    asyncio.run(story())

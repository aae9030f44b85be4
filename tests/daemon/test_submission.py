"""Jobs that are queued together, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running
from tests.daemon.test_jobservice import ME, refusal, submit, tell
from tests.ops.estimate.tiny_configs import config
from zerotools.core.errors import BadRequest
from zerotools.jobs.tables.spec import JobSpec
from zerotools.sensors.fake import FakeProbe, fake_gpu
from zerotoolsd.queue_terms import QueueTerms
from zerotoolsd.service.refusals import Conflict


def members(place: Path, count: int = 3) -> list[tuple[JobSpec, str]]:
    spec = make_job("exit=0", ranks=1)
    return [
        (replace(spec, name=f"tiny-{n}", output_dir=str(place / str(n))), f"seed={n}")
        for n in range(count)
    ]


def test_all_of_an_array_are_queued_or_none(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        terms = QueueTerms(priority=2, hold=True)
        jobs = members(tmp_path / "runs")
        found = await it.service.submit_array(jobs, uid=ME, idempotency_key="k", terms=terms)
        assert [(job.id, job.priority, job.state) for job in found] == [
            (1, 2, "on_hold"),
            (2, 2, "on_hold"),
            (3, 2, "on_hold"),
        ]
        assert [job.array for job in found] == [
            {"id": 1, "index": n, "size": 3, "label": f"seed={n}"} for n in range(3)
        ]
        again = await it.service.submit_array(jobs, uid=ME, idempotency_key="k", terms=terms)
        assert [job.id for job in again] == [1, 2, 3]
        fewer = it.service.submit_array(jobs[:2], uid=ME, idempotency_key="k")
        assert "was used for 3 jobs, and these are 2" in await refusal(fewer, Conflict)
        taken = members(tmp_path / "other", 2)
        taken.append((replace(taken[0][0], output_dir=str(tmp_path / "runs" / "1")), "taken"))
        said = await refusal(it.service.submit_array(taken, uid=ME, idempotency_key=None), Conflict)
        assert "job 2, which is on_hold, writes there" in said
        twice = [*members(tmp_path / "twice", 1), *members(tmp_path / "twice", 1)]
        refused = it.service.submit_array(twice, uid=ME, idempotency_key=None)
        assert "writes there too" in await refusal(refused, BadRequest)
        assert len(await it.service.jobs()) == 3
        assert [job.id for job in await it.service.jobs(array=1)] == [3, 2, 1]
        for job in found:
            await it.service.release(job.id, uid=ME)
            await it.reach(job.id, "succeeded")

    tell(tmp_path / "state", story)


def test_a_model_that_no_gpu_here_can_hold_is_refused_with_what_would_fit(tmp_path: Path) -> None:
    model = {"config": config("llama", hidden_size=4096, num_hidden_layers=32)}

    async def story(it: Running) -> None:
        attempt = submit(it, ranks=None, device="cuda", gpus=1, model=model)
        said = await refusal(attempt, BadRequest)
        assert "it is estimated to need" in said
        assert "and the largest of this machine has 8.0 GiB" in said
        given = {"ranks": None, "device": "cuda", "gpus": 1, "model": model}
        assert (await submit(it, **given, memory={"per_gpu": "6GiB"})).state == "queued"

    tell(tmp_path / "state", story, FakeProbe([fake_gpu(0, total_gib=8)]))

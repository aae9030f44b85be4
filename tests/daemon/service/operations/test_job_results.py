"""What a job has produced, over the attempts and the jobs that it resumes."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.dispatchers import Running
from tests.daemon.service.test_job_requests import ME, refusal, submit, tell
from tests.runs.records import seal
from zerotoolsd.interface.api_errors import NotFound


def test_the_curves_of_a_job_that_another_goes_on_from(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        first = await submit(it, "steps=3 save=3 exit=0", output_dir=str(tmp_path / "out"))
        await it.reach(first.id, "succeeded")
        seal(tmp_path / "out" / "step-00000003")
        other = await submit(it, "steps=2 exit=0", output_dir=str(tmp_path / "other"))
        await it.reach(other.id, "succeeded")
        changes = {"output_dir": str(tmp_path / "then"), "resume_from": str(tmp_path / "out")}
        more = await submit(it, "from=4 steps=2 save=5 exit=0", **changes)
        await it.reach(more.id, "succeeded")
        seal(tmp_path / "then" / "step-00000005")
        last = await submit(it, "from=6 steps=1 exit=0", resume_from=changes["output_dir"])
        await it.reach(last.id, "succeeded")
        found = await it.service.curves(last.id, 1000)
        assert found["steps"]["step"] == [1, 2, 3, 4, 5, 6]
        told = [(each["job"], each["first_step"]) for each in found["parts"]]
        assert told == [(first.id, 1), (more.id, 4), (last.id, 6)]
        assert (found["job"], found["follow"]["attempt"]) == (last.id, 1)
        few = await it.service.curves(last.id, 3)
        assert len(few["steps"]["step"]) <= 3
        assert few["sampled"]

    tell(tmp_path / "state", story)


def test_nothing_is_there_before_the_first_attempt(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        await it.service.drain(None, uid=ME)
        job = await submit(it, "exit=0")
        found = await it.service.curves(job.id, 10)
        assert (found["steps"], found["follow"]) == ({"step": []}, None)
        assert (await it.service.checkpoints(job.id))["checkpoints"] == []
        assert (await it.service.predictions(job.id, None, 0, 5))["steps"] == []
        await refusal(it.service.curves(job.id + 1, 10), NotFound)
        await refusal(it.service.checkpoints(job.id + 1), NotFound)

    tell(tmp_path / "state", story)


def test_the_checkpoints_of_a_job(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = await submit(it, "steps=4 save=2 save=4 exit=0")
        await it.reach(job.id, "succeeded")
        found = await it.service.checkpoints(job.id)
        assert found["output_dir"] == job.output_dir
        assert [each["step"] for each in found["checkpoints"]] == [4, 2]
        assert [each["size_bytes"] for each in found["checkpoints"]] == [4, 2]

    tell(tmp_path / "state", story)

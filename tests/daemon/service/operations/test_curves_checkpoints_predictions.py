"""What a job has produced, over the attempts and the jobs that it resumes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running, running
from tests.daemon.service.test_answer_requests import ME, refusal, submit, tell
from tests.runs.records import seal
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict, job_to_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.file_checks.file_checker_pool import SlowCheck
from zerotoolsd.interface.api_types import CheckedJob, NotFound, Unavailable
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.answer_requests import JobRequests
from zerotoolsd.service.operations import curves_checkpoints_predictions
from zerotoolsd.service.operations.curves_checkpoints_predictions import JobExamples


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


def test_a_picture_that_takes_too_long_says_how_to_draw_it(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        async def slow(seconds: float, look: Any, *arguments: Any, user: Any) -> Any:
            assert seconds == curves_checkpoints_predictions.PICTURE_SECONDS
            assert arguments == (job.output_dir, 40)
            raise SlowCheck

        job = await submit(it, "exit=0", output_dir=str(tmp_path / "big run"))
        await it.reach(job.id, "succeeded")
        said = await refusal(JobRequests(it.engine, ask=slow).picture(job.id, 40), Unavailable)
        assert "their file systems respond" in said
        path = f"'{tmp_path}/big run/step-00000040'"
        assert f"zerotools inspect {path} --html checkpoint.html" in said

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


SAMPLE: dict[str, Any] = {"examples": []}
SCRIPT = {"device": "cpu", "engine": "script", "script": {"command": ["true"], "directory": "/"}}
Story = Callable[[Running, "Interpreter"], Awaitable[None]]


class Interpreter:
    """One that answers, or fails, once it may; it notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[JobSpec, int]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.was_asked = asyncio.Event()
        self.problem: BaseException | None = None

    async def look(self, spec: JobSpec, uid: int, show: int) -> CheckedJob:
        assert uid == ME
        self.asked.append((spec, show))
        self.was_asked.set()
        await self.may_answer.wait()
        if self.problem is not None:
            raise self.problem
        return CheckedJob(["a note"], SAMPLE)

    async def rehearse(
        self, spec: JobSpec, python: str, env: object, user: object, show: int
    ) -> CheckedJob:
        return await self.look(spec, ME, show)

    @property
    def shown(self) -> list[int]:
        return [show for _, show in self.asked]


def queue_with_examples(state: Path, story: Story) -> None:
    async def told() -> None:
        interpreter = Interpreter()
        async with running(state, rehearse=interpreter.rehearse) as it:
            await it.service.drain(None, uid=ME)
            await story(it, interpreter)

    asyncio.run(told())


async def row_of(it: Running, spec: JobSpec | None = None) -> JobRow:
    """The row of a job, as if it had been submitted with this job file."""
    row = it.engine.store.job((await submit(it)).id)
    text = row.spec_text if spec is None else json.dumps(job_to_dict(spec))
    return replace(row, spec_text=text, given_text=None)


def test_what_was_read_is_kept(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        job = await submit(it)
        found = await it.service.examples(job.id, 3, 60)
        assert found == {
            "job": job.id,
            "ready": True,
            "notes": ["a note"],
            "sample": SAMPLE,
            "problem": None,
        }
        assert await it.service.examples(job.id, 3, 0) == found
        assert interpreter.shown == [3]
        await it.service.examples(job.id, 2, 60)
        assert interpreter.shown == [3, 2]
        await refusal(it.service.examples(job.id + 1, 3, 60), NotFound)

    queue_with_examples(tmp_path / "state", story)


def test_who_does_not_wait_finds_the_answer_later(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        interpreter.may_answer.clear()
        first, second = await submit(it), await submit(it)
        for _ in range(3):
            for job in (first, second):
                found = await it.service.examples(job.id, 3, 0)
                assert (found["ready"], found["sample"]) == (False, None)
        await interpreter.was_asked.wait()
        assert len(interpreter.asked) == 1  # of one user, one at a time
        waiting = asyncio.create_task(it.service.examples(second.id, 3, 60))
        interpreter.may_answer.set()
        assert (await waiting)["ready"]
        assert (await it.service.examples(first.id, 3, 0))["ready"]
        assert len(interpreter.asked) == 2

    queue_with_examples(tmp_path / "state", story)


def test_an_edited_job_is_read_again(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        row, reader = await row_of(it), JobExamples(interpreter.look)
        for _ in range(2):
            await reader.read(row, 3, 60)
        other = await row_of(it, make_job("exit=0", seed=8))
        await reader.read(replace(other, id=row.id), 3, 60)
        assert [spec.seed for spec, _ in interpreter.asked] == [0, 8]

    queue_with_examples(tmp_path / "state", story)


def test_a_problem_is_told_and_soon_looked_for_again(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        row, soon = await row_of(it), JobExamples(interpreter.look, failure_seconds=0)
        interpreter.problem = BadRequest("a.jsonl has no examples")
        reader = JobExamples(interpreter.look)
        found = await reader.read(row, 3, 60)
        assert (found["problem"], found["sample"]) == ("a.jsonl has no examples", None)
        assert await reader.read(row, 3, 0) == found
        assert len(interpreter.asked) == 1
        assert not (await soon.read(row, 3, 0))["ready"]
        interpreter.problem = None
        assert (await soon.read(row, 3, 60))["problem"] is None

    queue_with_examples(tmp_path / "state", story)


def test_an_error_that_nobody_foresaw_reaches_who_asked(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        row, reader = await row_of(it), JobExamples(interpreter.look)
        interpreter.problem = RuntimeError("a fault")
        with pytest.raises(RuntimeError, match="a fault"):
            await reader.read(row, 3, 60)
        interpreter.problem = None
        assert (await reader.read(row, 3, 60))["ready"]

    queue_with_examples(tmp_path / "state", story)


def test_the_checkpoint_that_a_job_began_from_may_be_gone(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        row = await row_of(it, make_job("exit=0", resume_from="/gone"))
        await JobExamples(interpreter.look).read(row, 3, 60)
        ((spec, _),) = interpreter.asked
        assert spec.resume_from is None

    queue_with_examples(tmp_path / "state", story)


def test_few_answers_are_kept(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        row, reader = await row_of(it), JobExamples(interpreter.look, most_kept=2)
        for show in (1, 2, 3, 3, 2, 1):
            await reader.read(row, show, 60)
        assert interpreter.shown == [1, 2, 3, 1]

    queue_with_examples(tmp_path / "state", story)


def test_a_program_of_the_user_s_has_no_examples(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        row = await row_of(it, job_from_dict(SCRIPT, source="job"))
        found = await JobExamples(interpreter.look).read(row, 3, 60)
        assert (found["ready"], found["sample"], found["problem"]) == (True, None, None)
        assert interpreter.asked == []

    queue_with_examples(tmp_path / "state", story)


def test_a_record_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        row = replace(await row_of(it), spec_text='{"of_a_later_version": 1}')
        found = await JobExamples(interpreter.look).read(row, 3, 60)
        assert "of_a_later_version" in found["problem"]

    queue_with_examples(tmp_path / "state", story)

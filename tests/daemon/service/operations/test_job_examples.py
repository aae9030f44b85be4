"""Examples of jobs are read once, by one process at a time for each user."""

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
from tests.daemon.service.test_job_requests import ME, refusal, submit
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict, job_to_dict
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.interface.api_errors import NotFound
from zerotoolsd.interface.api_types import CheckedJob
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.operations.job_examples import JobExamples

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


def tell(state: Path, story: Story) -> None:
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

    tell(tmp_path / "state", story)


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

    tell(tmp_path / "state", story)


def test_an_edited_job_is_read_again(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        row, reader = await row_of(it), JobExamples(interpreter.look)
        for _ in range(2):
            await reader.read(row, 3, 60)
        other = await row_of(it, make_job("exit=0", seed=8))
        await reader.read(replace(other, id=row.id), 3, 60)
        assert [spec.seed for spec, _ in interpreter.asked] == [0, 8]

    tell(tmp_path / "state", story)


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

    tell(tmp_path / "state", story)


def test_an_error_that_nobody_foresaw_reaches_who_asked(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        row, reader = await row_of(it), JobExamples(interpreter.look)
        interpreter.problem = RuntimeError("a fault")
        with pytest.raises(RuntimeError, match="a fault"):
            await reader.read(row, 3, 60)
        interpreter.problem = None
        assert (await reader.read(row, 3, 60))["ready"]

    tell(tmp_path / "state", story)


def test_the_checkpoint_that_a_job_began_from_may_be_gone(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        row = await row_of(it, make_job("exit=0", resume_from="/gone"))
        await JobExamples(interpreter.look).read(row, 3, 60)
        ((spec, _),) = interpreter.asked
        assert spec.resume_from is None

    tell(tmp_path / "state", story)


def test_few_answers_are_kept(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        row, reader = await row_of(it), JobExamples(interpreter.look, most_kept=2)
        for show in (1, 2, 3, 3, 2, 1):
            await reader.read(row, show, 60)
        assert interpreter.shown == [1, 2, 3, 1]

    tell(tmp_path / "state", story)


def test_a_program_of_the_user_s_has_no_examples(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        row = await row_of(it, job_from_dict(SCRIPT, source="job"))
        found = await JobExamples(interpreter.look).read(row, 3, 60)
        assert (found["ready"], found["sample"], found["problem"]) == (True, None, None)
        assert interpreter.asked == []

    tell(tmp_path / "state", story)


def test_a_record_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    async def story(it: Running, interpreter: Interpreter) -> None:
        row = replace(await row_of(it), spec_text='{"of_a_later_version": 1}')
        found = await JobExamples(interpreter.look).read(row, 3, 60)
        assert "of_a_later_version" in found["problem"]

    tell(tmp_path / "state", story)

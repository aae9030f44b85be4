"""Jobs that are queued together, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.asking import ask_thread
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running, running
from tests.daemon.fake_daemon import rehearse
from tests.daemon.queue.test_schedule_queued_jobs import queue_one
from tests.daemon.service.test_answer_requests import ME, refusal, submit, tell
from tests.ops.estimate.tiny_configs import config
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.interface.api_types import Conflict, Unavailable
from zerotoolsd.interface.start_conditions import Dependency, QueueTerms
from zerotoolsd.queue.array_job_files import SLICE_CHARACTERS
from zerotoolsd.queue.store import Store
from zerotoolsd.service.admission.interpreter_check import Needs
from zerotoolsd.service.admission.memory_check import MachineMemory, estimate_job_memory
from zerotoolsd.service.admission.run_file_checks import Survey
from zerotoolsd.service.answer_requests import JobRequests
from zerotoolsd.users.served_users import OWN_ONLY
from zerotoolsd.users.user_limits import LimitsOfUsers


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
        assert "was used for 3 jobs, but this request has 2" in await refusal(fewer, Conflict)
        taken = members(tmp_path / "other", 2)
        taken.append((replace(taken[0][0], output_dir=str(tmp_path / "runs" / "1")), "taken"))
        said = await refusal(it.service.submit_array(taken, uid=ME, idempotency_key=None), Conflict)
        assert "job 2, which is held, writes there" in said
        twice = [*members(tmp_path / "twice", 1), *members(tmp_path / "twice", 1)]
        refused = it.service.submit_array(twice, uid=ME, idempotency_key=None)
        assert "writes there too" in await refusal(refused, BadRequest)
        assert len(await it.service.jobs()) == 3
        assert [job.id for job in await it.service.jobs(array=1)] == [3, 2, 1]
        for job in found:
            await it.service.release(job.id, uid=ME)
            await it.reach(job.id, "succeeded")

    tell(tmp_path / "state", story)


class Texts:
    """What each transaction has written of an array, as SQLite was asked to."""

    def __init__(self, store: Store) -> None:
        self.sizes = [0]
        store._connection.set_trace_callback(self._note)

    def _note(self, statement: str) -> None:
        if statement.startswith("COMMIT"):
            self.sizes.append(0)
        if not statement.startswith("SELECT"):  # of which a test asks many while it waits
            self.sizes[-1] += len(statement)


def long_members(place: Path, count: int) -> list[tuple[JobSpec, str]]:
    return [
        (replace(spec, env={"A": "x" * 20_000}), label) for spec, label in members(place, count)
    ]


def test_no_transaction_of_an_array_is_long_and_others_are_queued_meanwhile(
    tmp_path: Path,
) -> None:
    async def story(it: Running) -> None:
        texts, turns, done = Texts(it.engine.store), 0, asyncio.Event()

        async def others() -> None:
            nonlocal turns
            while not done.is_set():
                turns += 1
                await asyncio.sleep(0)

        async def one_more() -> str:
            while it.engine.store._sql("SELECT 1 FROM job_text").fetchone() is None:
                await asyncio.sleep(0)
            job = queue_one(it.engine.store)
            return f"{job.id}: {len(it.engine.store.jobs(name='tiny-0'))}"

        waiting, meanwhile = asyncio.create_task(others()), asyncio.create_task(one_more())
        jobs = long_members(tmp_path / "runs", 20)
        terms = QueueTerms(hold=True)
        found = await it.service.submit_array(jobs, uid=ME, idempotency_key=None, terms=terms)
        done.set()
        await waiting
        assert await meanwhile == "1: 0"  # while the texts were written, no member was there
        assert [job.id for job in found] == list(range(2, 22))
        assert sum(texts.sizes) > 20 * 2 * 20_000
        assert max(texts.sizes) < 2 * SLICE_CHARACTERS
        assert turns > 20

    tell(tmp_path / "state", story)


def texts_of(store: Store) -> int:
    return len(store._sql("SELECT number FROM job_text").fetchall())


def test_an_array_of_which_the_request_is_cancelled_leaves_no_texts(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        store = it.engine.store
        jobs = long_members(tmp_path / "runs", 20)
        task = asyncio.create_task(it.service.submit_array(jobs, uid=ME, idempotency_key="k"))
        while not texts_of(store):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (store.jobs(), texts_of(store)) == ([], 0)
        terms = QueueTerms(hold=True)
        again = await it.service.submit_array(jobs, uid=ME, idempotency_key="k", terms=terms)
        assert [job.id for job in again] == list(range(1, 21))

    tell(tmp_path / "state", story)


def test_an_array_for_which_the_disk_is_too_small_leaves_no_texts(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        store, written = it.engine.store, list[str]()
        pages = store._sql("PRAGMA page_count").fetchone()["page_count"]
        store._sql(f"PRAGMA max_page_count = {pages + 150}")
        store._connection.set_trace_callback(written.append)
        jobs = long_members(tmp_path / "runs", 20)
        attempt = it.service.submit_array(jobs, uid=ME, idempotency_key=None)
        said = await refusal(attempt, Unavailable)
        assert said == (
            "the jobs cannot be queued: writing the queue failed: database or disk is full"
        )
        texts = {each for each in written if each.startswith("INSERT INTO job_text")}
        assert 1 < len(texts) < 20, "it was full after some were written"
        assert (store.jobs(), texts_of(store)) == ([], 0)
        store._sql("PRAGMA max_page_count = 1000000")
        terms = QueueTerms(hold=True)
        assert len(await it.service.submit_array(jobs, uid=ME, idempotency_key=None, terms=terms))

    tell(tmp_path / "state", story)


def test_an_array_has_few_evaluations(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        many = [
            (replace(spec, eval=replace(spec.eval, tasks=("arc_easy",))), label)
            for spec, label in members(tmp_path / "runs", 101)
        ]
        attempt = it.service.submit_array(many, uid=ME, idempotency_key=None, terms=QueueTerms())
        said = await refusal(attempt, BadRequest)
        assert said.startswith("eval.tasks: 101 jobs of an array would each be evaluated")
        assert it.engine.store.highest_id == 0

    tell(tmp_path / "state", story)


def test_an_array_has_few_dependencies_in_all(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        first = await submit(it, fake="exit=0")
        after = tuple(Dependency(job_id=number) for number in range(1, 257))
        many = members(tmp_path / "runs", 17)
        attempt = it.service.submit_array(
            many, uid=ME, idempotency_key=None, terms=QueueTerms(after=after)
        )
        said = await refusal(attempt, BadRequest)
        assert "17 jobs with up to 256 dependencies each have 4,352 dependencies" in said
        found = await it.service.submit_array(
            members(tmp_path / "runs", 2),
            uid=ME,
            idempotency_key=None,
            terms=QueueTerms(after=(Dependency(job_id=first.id),)),
        )
        assert [row.on_id for row in it.engine.store.dependencies.of(found[1].id)] == [first.id]

    tell(tmp_path / "state", story)


def test_an_array_that_is_over_a_limit_at_last_leaves_no_texts(
    tmp_path: Path,
) -> None:
    async def story(it: Running) -> None:
        terms = QueueTerms(hold=True)
        attempt = it.service.submit_array(
            members(tmp_path / "a", 3), uid=ME, idempotency_key=None, terms=terms
        )
        said = await refusal(attempt, Conflict)
        assert "you have 0 queued jobs and submit 3 more" in said
        assert "allows 2" in said
        both = [
            it.service.submit_array(
                members(tmp_path / name, 2), uid=ME, idempotency_key=None, terms=terms
            )
            for name in ("b", "c")
        ]
        ends = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) == ["Conflict", "list"]
        store = it.engine.store
        assert len(store.jobs()) == 2
        assert texts_of(store) == 2

    async def told() -> None:
        users = replace(OWN_ONLY, quotas=LimitsOfUsers({"max_queued": 2}))
        async with running(tmp_path / "state", users=users) as it:
            await story(it)

    asyncio.run(told())


def test_a_model_that_no_gpu_here_can_hold_is_refused_with_what_would_fit(tmp_path: Path) -> None:
    model = {"config": config("llama", hidden_size=4096, num_hidden_layers=32)}

    async def story(it: Running) -> None:
        attempt = submit(it, ranks=None, device="cuda", gpus=1, model=model)
        said = await refusal(attempt, BadRequest)
        assert "it is estimated to need" in said
        assert "but the GPUs for it have 8.0 GiB" in said
        given: dict[str, Any] = {"ranks": None, "device": "cuda", "gpus": 1, "model": model}
        assert (await submit(it, **given, memory={"per_gpu": "6GiB"})).state == "queued"
        tree: dict[str, Any] = {
            "gpus": 1,
            "model": {"config": config("llama")},
            "train": {"steps": 1},
        }
        tree["train"] |= {"batch_size": 1, "precision": "fp32"}
        tree["data"] = {"text": ["/text"], "sequence_length": 64}
        for device, kinds in (("cuda", ["memory", "attention"]), ("cpu", ["memory"])):
            spec = replace(job_from_dict(tree, source="job"), device=device)
            memory = estimate_job_memory(spec, MachineMemory(8 << 30, 8 << 30))
            seen = Survey(place=None, named=(), needs=None, asked=False, memory=memory)
            notes = await it.service._submission._memory_notes(spec, seen)
            assert [note.partition(":")[0] for note in notes] == kinds

    tell(tmp_path / "state", story, FakeProbe([fake_gpu(0, total_gib=8)]))


def test_an_interpreter_is_checked_once_for_an_array(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        asked = list[str]()

        async def check(python: str, env: Mapping[str, str], needs: Needs, user: object) -> None:
            asked.append(python)

        service = JobRequests(it.engine, check_python=check, rehearse=rehearse, ask=ask_thread)
        jobs = [
            (replace(spec, captured_env={"ZEROTOOLS_ARRAY_INDEX": str(index), **more}), label)
            for index, (spec, label) in enumerate(members(tmp_path / "runs", 4))
            for more in [{"A": "b"} if index == 3 else {}]
        ]
        terms = QueueTerms(hold=True)
        await service.submit_array(jobs, uid=ME, idempotency_key=None, terms=terms)
        assert len(asked) == 2

    tell(tmp_path / "state", story)

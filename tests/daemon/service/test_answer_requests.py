"""What the service takes, refuses and shows."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running, running
from tests.daemon.waiting import wait_async
from tests.golden_files import FOREIGN
from tests.runs.test_find_job_checkpoints import make
from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.interface.api_types import (
    CheckedJob,
    CleanRequest,
    Conflict,
    Forbidden,
    JobView,
    NotFound,
)
from zerotoolsd.queue.schema import DATABASE
from zerotoolsd.users.account import user_name
from zerotoolsd.users.served_users import OWN_ONLY
from zerotoolsd.users.user_limits import LimitsOfUsers

ME = os.geteuid()
Story = Callable[[Running], Awaitable[None]]


def tell(state: Path, story: Story, probe: FakeProbe | None = None) -> None:
    async def told() -> None:
        async with running(state, probe) as it:
            await story(it)

    asyncio.run(told())


async def submit(it: Running, fake: str = "exit=0", **changes: Any) -> JobView:
    job, _ = await it.service.submit(make_job(fake, **changes), uid=ME, idempotency_key=None)
    return job


async def refusal(attempt: Awaitable[Any], kind: type[ZerotoolsError]) -> str:
    with pytest.raises(kind) as info:
        await attempt
    return str(info.value)


def test_another_process_that_locks_the_queue_does_not_stop_the_daemon(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = await submit(it, "hang")
        await it.reach(job.id, "running")
        with closing(sqlite3.connect(tmp_path / "state" / DATABASE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            cancel = asyncio.create_task(it.service.cancel(job.id, uid=ME))
            again = asyncio.create_task(submit(it))
            assert (await it.service.job(job.id)).state == "running"  # it goes on answering
            for _ in range(20):
                await asyncio.sleep(0)
            assert not cancel.done()
            assert not again.done()
        assert (await cancel).state == "stopping"
        assert (await again).id == job.id + 1

    tell(tmp_path / "state", story)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ranks": 9, "train": {"steps": 1, "batch_size": 9}}, "limits.cpu_ranks of this daemon"),
        ({"ranks": None, "device": "cuda"}, "this machine shows none: no NVML"),
        ({"data": {"text": ["/no/*.txt"]}}, "data.text = /no/*.txt: no file matches"),
        ({"model": {"config": "/no/config.json"}}, "model.config = /no/config.json: no such file"),
        ({"model": {"path": "/no/model"}}, "model.path = /no/model: no such directory"),
        ({"resume_from": "/no/step"}, "resume_from = /no/step: no such directory"),
        ({"output_dir": "/dev/null"}, "output_dir = /dev/null: is not a directory"),
        ({"env": {f"A{n}": "x" * 100_000 for n in range(70)}}, "at the start of a process, but"),
    ],
)
def test_a_job_that_cannot_run_here_is_refused(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    async def story(it: Running) -> None:
        assert sentence in await refusal(submit(it, **changes), BadRequest)
        job = make_job("exit=0", **changes)
        assert sentence in await refusal(it.service.check(job, uid=ME), BadRequest)
        await it.service.check(make_job("exit=0"), uid=ME)
        assert await it.service.jobs() == []

    tell(tmp_path / "state", story)


def test_bf16_on_gpus_without_it_is_refused_with_the_setting_that_works(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        train = {"steps": 1, "batch_size": 1, "precision": "bf16"}
        attempt = submit(it, ranks=None, device="cuda", gpus=1, train=train)
        message = await refusal(attempt, BadRequest)
        assert 'but train.precision = "bf16" needs 8.0; set train.precision = "fp16"' in message

    tell(tmp_path / "state", story, FakeProbe([fake_gpu(0, compute_capability=(7, 0))]))


def test_an_attention_that_the_gpus_do_not_have_is_refused(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        train = {"steps": 1, "batch_size": 1, "precision": "bf16"}
        model = {"config": {"model_type": "llama"}, "attention": "flash_attention_3"}
        attempt = submit(it, ranks=None, device="cuda", gpus=1, train=train, model=model)
        message = await refusal(attempt, BadRequest)
        assert 'but model.attention = "flash_attention_3" needs 9.0; set model.attention' in message

    tell(tmp_path / "state", story, FakeProbe([fake_gpu(0, compute_capability=(8, 0))]))


def test_more_gpus_than_there_are_is_refused(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        message = await refusal(submit(it, ranks=None, device="cuda", gpus=2), BadRequest)
        assert message == "gpus = 2: this machine has only GPU 0; set gpus to at most 1"

    tell(tmp_path / "state", story, FakeProbe([fake_gpu(0)]))


def test_an_output_directory_with_checkpoints_is_not_mixed_up(tmp_path: Path) -> None:
    output = tmp_path / "out"
    make(output, 40)

    async def story(it: Running) -> None:
        message = await refusal(submit(it, output_dir=str(output)), BadRequest)
        assert "already holds checkpoints, the newest of step 40" in message
        await submit(it, output_dir=str(output), resume_from=str(output))

    tell(tmp_path / "state", story)


def test_an_export_that_no_run_of_this_directory_made_is_not_replaced(tmp_path: Path) -> None:
    output = tmp_path / "out"
    (output / "export").mkdir(parents=True)
    (output / "export" / "model.safetensors").write_bytes(b"somebody's")
    wanted = {"output_dir": str(output), "checkpoint": {"export_on_finish": "bf16"}}

    async def story(it: Running) -> None:
        message = await refusal(submit(it, **wanted), BadRequest)
        assert f"{output}/export already exists and would be replaced" in message
        make(output, 40)
        await submit(it, **wanted, resume_from=str(output))

    tell(tmp_path / "state", story)


def test_an_older_checkpoint_of_the_jobs_own_directory_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "out"
    older = make(output, 20)
    newest = make(output, 40)

    async def story(it: Running) -> None:
        message = await refusal(
            submit(it, output_dir=str(output), resume_from=str(older)), BadRequest
        )
        assert message == (
            f"resume_from = {older}: is at step 20, but output_dir = {output} holds step 40, "
            "and the job would resume there; name another output_dir to resume at step 20, or "
            f'set resume_from = "{output}" to resume at step 40'
        )
        short = {"train": {"steps": 20, "batch_size": 4}, "resume_from": str(older)}
        message = await refusal(submit(it, **short), BadRequest)
        assert message == (
            "train.steps = 20: counts from the beginning of the run, but resume_from = "
            f"{older} is already at step 20; set a number above 20"
        )
        await submit(it, output_dir=str(tmp_path / "other"), resume_from=str(older))
        await submit(it, output_dir=str(output), resume_from=str(newest))

    tell(tmp_path / "state", story)


def test_a_damaged_checkpoint_to_resume_from_is_refused(tmp_path: Path) -> None:
    damaged = make(tmp_path / "out", 20)
    (damaged / "dcp" / "__0_0.distcp").write_bytes(b"short")

    async def story(it: Running) -> None:
        message = await refusal(submit(it, resume_from=str(damaged)), BadRequest)
        assert message == (
            f"resume_from = {damaged}: {damaged}/dcp/__0_0.distcp has 5 bytes, but MANIFEST.json "
            "has 7; name another checkpoint"
        )
        message = await refusal(submit(it, resume_from=str(tmp_path)), BadRequest)
        assert "is not a checkpoint: it has no" in message

    tell(tmp_path / "state", story)


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    adamw = make(tmp_path / "out", 20)
    train = {"steps": 100, "batch_size": 4, "optimizer": "sgd"}

    async def story(it: Running) -> None:
        message = await refusal(submit(it, resume_from=str(adamw), train=train), BadRequest)
        assert message == (
            f'train.optimizer = "sgd": resume_from = {adamw} was trained with "adamw"; use '
            '"adamw" for this job'
        )

    tell(tmp_path / "state", story)


def test_a_checkpoint_of_another_program_is_compared_with_the_model_before_the_job_is_queued(
    tmp_path: Path,
) -> None:
    path = str(FOREIGN / "deepspeed-z2" / "checkpoint")
    asked: list[str] = []

    async def rehearse(
        spec: JobSpec, python: str, env: Mapping[str, str], user: object, show: int
    ) -> CheckedJob:
        asked.append(str(spec.resume_from))
        if spec.seed:
            raise BadRequest("it is of another model")
        return CheckedJob(["a note"])

    async def told() -> None:
        async with running(tmp_path / "state", rehearse=rehearse) as it:
            message = await refusal(submit(it, resume_from=path, seed=1), BadRequest)
            assert message == "it is of another model"
            assert await it.service.jobs() == []
            spec = make_job("exit=0", resume_from=path)
            assert await it.service.check(spec, uid=ME) == CheckedJob(["a note"])
            assert len(asked) == 2
            await it.service.submit(spec, uid=ME, idempotency_key=None)
            assert asked == [path, path]  # what was checked is not built again
            await submit(it)
            assert len(asked) == 2
            failed = await it.service.submit(
                make_job("exit=64", resume_from=path), uid=ME, idempotency_key=None
            )
            await it.reach(failed[0].id, "failed")
            await it.service.resume(failed[0].id, uid=ME)
            assert len(asked) == 4  # it has saved nothing, and begins anew

    asyncio.run(told())


def test_two_jobs_do_not_share_an_output_directory(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        first = await submit(it, "release", output_dir=str(tmp_path / "out"))
        await it.reach(first.id, "running")  # as both messages say
        message = await refusal(submit(it, output_dir=str(tmp_path / "out")), Conflict)
        assert f"job {first.id}, which is " in message
        again = make_job("exit=0", output_dir=str(tmp_path / "out"))
        assert await refusal(it.service.check(again, uid=ME), Conflict) == message

    tell(tmp_path / "state", story)


def test_jobs_of_other_users_are_refused(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = make_job("exit=0")
        attempt = it.service.submit(job, uid=ME + 1, idempotency_key=None)
        assert f"you are uid {ME + 1}" in await refusal(attempt, Forbidden)

    tell(tmp_path / "state", story)


def test_a_user_has_as_much_of_the_queue_as_the_administrator_lets_them_have(
    tmp_path: Path,
) -> None:
    all_ranks: dict[str, Any] = {"ranks": 8, "train": {"steps": 1, "batch_size": 8}}
    text = len(json.dumps(job_to_dict(make_job("exit=0", **all_ranks))))
    users = replace(OWN_ONLY, quotas=LimitsOfUsers({"max_queued": 2, "queue_bytes": 5 * text}))

    async def told() -> None:
        async with running(tmp_path / "state", users=users) as it:
            first = await submit(it, "release", **all_ranks)
            await it.reach(first.id, "running")
            waiting = [(await submit(it, **all_ranks)).id for _ in range(2)]
            said = await refusal(submit(it, **all_ranks), Conflict)
            assert said.startswith("the job is not queued: you have 2 queued jobs, but users.")
            await it.service.cancel(waiting[0], uid=ME)
            over = await submit(it, **all_ranks)  # one that is over waits no more
            await it.service.cancel(over.id, uid=ME)
            said = await refusal(submit(it, **all_ranks), Conflict)
            assert said.startswith("the job is not queued: your jobs take ")
            wanted = CleanRequest(jobs=(over.id, waiting[0]))
            await it.service.clean(wanted, uid=ME, of=None)
            await submit(it, **all_ranks)  # and what is removed takes nothing

    asyncio.run(told())


def test_cancelling_a_queued_job_ends_it_at_once(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        first = await submit(it, "release", ranks=8, train={"steps": 1, "batch_size": 8})
        second = await submit(it)
        await it.waits(second.id)
        after = await it.service.cancel(second.id, uid=ME)
        assert (after.state, after.reason) == ("cancelled", f"cancelled by {user_name(ME)}")
        assert f"job {second.id} was cancelled already" == await refusal(
            it.service.cancel(second.id, uid=ME), Conflict
        )
        assert after.attempts == ()
        await it.service.cancel(first.id, uid=ME)
        await it.service.cancel(first.id, uid=ME)
        await it.reach(first.id, "cancelled")

    tell(tmp_path / "state", story)


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        for number in (0, 1, -1, 10**30):
            assert await refusal(it.service.job(number), NotFound) == f"job {number} does not exist"
        await submit(it)
        with pytest.raises(NotFound, match="job 1 has no attempt 7"):
            it.service.run_dir(1, 7)

    tell(tmp_path / "state", story)


def test_a_view_is_made_without_the_users_directory(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        output = tmp_path / "out"
        job = await submit(it, "train save=5 release", output_dir=str(output))
        await it.reach(job.id, "running")

        async def saved() -> JobView | None:
            view = await it.service.job(job.id)
            measured = (view.attempts[0].peak_host_bytes or 0) > 2**20
            return view if view.latest_checkpoint and measured else None

        view = await wait_async(saved, "a checkpoint, and what memory the ranks take")
        assert view is not None
        assert view.latest_checkpoint == {
            "step": 5,
            "path": f"{output}/step-00000005",
            "verified": None,
            "not_verified": None,
            "thinned": None,
        }
        output.rename(tmp_path / "away")
        assert (await it.service.job(job.id)).latest_checkpoint == view.latest_checkpoint
        it.release(job.id)
        assert (await it.reach(job.id, "succeeded")).latest_checkpoint == view.latest_checkpoint

    tell(tmp_path / "state", story)


def test_jobs_are_listed_by_state(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        await it.reach((await submit(it)).id, "succeeded")
        other = await submit(it, "release")
        assert [job.id for job in await it.service.jobs(states=["succeeded"])] == [1]
        assert [job.id for job in await it.service.jobs(limit=1)] == [other.id]
        await refusal(it.service.jobs(states=["asleep"]), BadRequest)

    tell(tmp_path / "state", story)


def test_p10_no_value_of_the_environment_is_shown_or_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    secret = "hunter2-very-secret"

    async def story(it: Running) -> None:
        job = await submit(it, env={"FAKE": "exit=1", "TOKEN": secret}, max_restarts=0)
        job = await it.reach(job.id, "failed")
        assert job.spec["env"] == {"FAKE": "***", "TOKEN": "***"}
        shown = json.dumps([job.to_json(), await it.service.machine(), it.service.health()])
        assert secret not in shown
        events = [event.to_json() for event in await it.service.events(0, 0)]
        assert secret not in json.dumps(events)

    tell(tmp_path / "state", story)
    assert secret not in caplog.text
    run = tmp_path / "state" / "jobs" / "1" / "attempt-1"
    assert secret in (run / "attempt.json").read_text()
    assert all(path.stat().st_mode & 0o077 == 0 for path in (run, *run.iterdir()))


def test_a_submit_that_is_repeated_while_it_is_checked_is_the_same_job(tmp_path: Path) -> None:
    job = make_job("exit=0", output_dir=str(tmp_path / "out"))

    async def story(it: Running) -> None:
        submits = (it.service.submit(job, uid=ME, idempotency_key="k") for _ in range(2))
        (one, first), (two, second) = await asyncio.gather(*submits)
        # Either may come first: both are checked at once.
        assert (one.id, two.id) == (1, 1)
        assert {first, second} == {True, False}

    tell(tmp_path / "state", story)

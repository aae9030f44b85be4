"""Trouble of the machine is a wait with a reason, and costs a job nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon import fake_daemon
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.small_disks import SmallDisk
from tests.daemon.users.other_users import AS_ROOT
from tests.daemon.waiting import wait_async
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.attempts import attempt_watcher, start_attempt
from zerotoolsd.attempts.delay_starts import RestartThrottle, StartBackoff
from zerotoolsd.config.config_tables import RetryConfig
from zerotoolsd.interface.api_types import Unavailable
from zerotoolsd.queue import fault_isolation
from zerotoolsd.queue.rows import LAUNCHING, AttemptRow
from zerotoolsd.queue.store import Store
from zerotoolsd.supervisor.durable_files import placeholder_of
from zerotoolsd.users.account import Account, NameLookupTimeout, UnknownAccount
from zerotoolsd.users.served_users import ServedUsers

UID = os.geteuid()
OTHER = 65534
"""Nobody's."""
SOON = replace(CONFIG, retry=RetryConfig(first_seconds=0.01))


async def submit(it: Running, fake: str = "exit=0") -> int:
    job = make_job(fake, max_restarts=0)
    return (await it.service.submit(job, uid=UID, idempotency_key=None))[0].id


async def why(it: Running, job_id: int, words: str) -> str:
    async def said() -> str | None:
        reason = (await it.service.job(job_id)).reason
        return reason if words in str(reason) else None

    found = await wait_async(said, f"job {job_id} to wait for {words}")
    assert found is not None
    return found


async def ran_once(it: Running, job_id: int) -> None:
    job = await it.reach(job_id, "succeeded", "failed")
    assert (job.state, job.reason, len(job.attempts)) == ("succeeded", None, 1)


def test_each_wait_is_longer_up_to_a_limit_and_the_reason_stays_while_it_is_tried() -> None:
    now, woken = [0.0], []
    pending = StartBackoff(lambda: woken.append(1), lambda: now[0])
    waits = []
    for _ in range(8):
        pending.put_off(7, "no room")
        waits.append(pending.pauses[0])
        assert pending.pop_due() == []
        now[0] += waits[-1]
        assert pending.pop_due() == [7]
        assert (pending.pop_due(), pending.pauses) == ([], [])
        assert pending.why(7) == "the machine is not ready: no room; the start will be tried again"
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert len(woken) == 8
    pending.forget(7)
    assert (7 in pending, pending.why(7)) == (False, None)


def test_a_disk_without_inodes_is_waited_for_and_jobs_can_be_cancelled_meanwhile(
    small_disk: SmallDisk,
) -> None:
    async def story() -> None:
        async with running(small_disk.path / "state") as it:
            await ran_once(it, await submit(it))
            small_disk.take_inodes()
            first, second = await submit(it), await submit(it)
            said = await why(it, first, "No space left on device")
            assert said.startswith("the machine is not ready: /")
            assert f"/jobs/{first}: No space left on device" in said
            assert (await it.service.job(first)).state == "launching"
            await why(it, second, "No space left")
            await it.service.cancel(second, uid=UID)
            cancelled = await it.reach(second, "cancelled")
            assert len(cancelled.attempts) == 1
            small_disk.free()
            await ran_once(it, first)

    asyncio.run(story())


def test_a_daemon_that_starts_on_a_full_disk_waits_too(small_disk: SmallDisk) -> None:
    async def story() -> None:
        async with running(small_disk.path / "state", leave=True) as it:
            small_disk.take_inodes()
            await why(it, await submit(it), "No space left")
        async with running(small_disk.path / "state") as it:
            await why(it, 1, "No space left")
            small_disk.free()
            await ran_once(it, 1)

    asyncio.run(story())


def test_no_descriptors_for_a_supervisor(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def command(spec: JobSpec, run_dir: Path) -> tuple[str, ...]:
        if not done:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        return fake_daemon.command(spec, run_dir)

    done: list[bool] = []

    async def story() -> None:
        async with running(tmp_path / "state", command=command) as it:
            job_id = await submit(it)

            async def said() -> bool:
                return job_id in it.engine._pending  # a view needs descriptors

            try:
                await wait_async(said, "the job to wait")
            finally:
                done.append(True)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await why(it, job_id, "Too many open files")
            await ran_once(it, job_id)

    asyncio.run(story())


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM, errno.EAGAIN])
def test_an_error_while_a_job_is_started_burns_no_attempt(tmp_path: Path, code: int) -> None:
    left = [2]

    def command(spec: JobSpec, run_dir: Path) -> tuple[str, ...]:
        if left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        return fake_daemon.command(spec, run_dir)

    async def story() -> None:
        async with running(tmp_path / "state", command=command) as it:
            job_id = await submit(it)
            await why(it, job_id, os.strerror(code))
            await ran_once(it, job_id)
            kinds = [event.kind for event in await it.service.events(0, 0)]
            assert kinds == ["submit", "admit", "started", "finished"]

    asyncio.run(story())


@pytest.mark.parametrize(
    "place",
    [
        fault_isolation.NEEDING,
        fault_isolation.PLACING,
        fault_isolation.STARTING,
        fault_isolation.ENDING,
        attempt_watcher.SETTLING,
    ],
)
def test_trouble_at_any_place_neither_holds_nor_fails_the_job(tmp_path: Path, place: str) -> None:
    left = [2]

    def touch(job_id: int, doing: str) -> None:
        if doing == place and left[0]:
            left[0] -= 1
            raise OSError(errno.ENFILE, "Too many open files in system")

    async def story() -> None:
        async with running(tmp_path / "state", touch=touch) as it:
            await ran_once(it, await submit(it))
            assert left[0] < 2

    asyncio.run(story())


def test_a_supervisor_that_cannot_begin_is_started_again(tmp_path: Path) -> None:
    """Something else has the name of its socket at first."""

    def command(spec: JobSpec, run_dir: Path) -> tuple[str, ...]:
        if not done:
            socket.mkdir(exist_ok=True)
        return fake_daemon.command(spec, run_dir)

    done: list[bool] = []
    socket = tmp_path / "state/jobs/1/attempt-1/notify.sock"

    async def story() -> None:
        async with running(tmp_path / "state", command=command) as it:
            job_id = await submit(it)
            said = await why(it, job_id, "its supervisor ended before it started anything")
            assert "IsADirectoryError" in said
            done.append(True)
            socket.rmdir()
            await ran_once(it, job_id)

    asyncio.run(story())


def test_ranks_that_the_machine_does_not_start_are_started_again_without_a_restart(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=SOON) as it:
            job_id = await submit(it, "attempt=1:release exit=0")
            job = await it.reach(job_id, "running")
            run = Path(job.attempts[0].run_dir)
            assert placeholder_of(run / "exit.json").exists()
            record = {"outcome": "not_ready", "cause": "python cannot be started: no room"}
            attempt = it.engine.store.attempts(job_id)[0]
            it.engine._ends.record_end(attempt, {**record, "token": attempt.token})
            after = await it.reach(job_id, "succeeded")
            assert after.attempts[0].cause == record["cause"]
            (run / "release").touch()

    asyncio.run(story())


def waiting_job_of_other(state: Path) -> int:
    """The number of a job of another user, in a queue without a daemon."""
    state.mkdir()
    store, spec = Store(state), make_job("exit=0")
    job, _ = store.submit(
        uid=OTHER,
        name=spec.name,
        spec=spec,
        output_dir=None,
        default_output=state / "jobs",
        idempotency_key=None,
        now=1.0,
    )
    store.close()
    return job.id


@AS_ROOT
def test_a_job_of_a_user_whom_nobody_knows_now_waits_and_is_not_failed(tmp_path: Path) -> None:
    def find(uid: int) -> Account:
        raise NameLookupTimeout("the machine's user database does not answer")

    state, users = tmp_path / "state", ServedUsers(own=0, alone=None, find=find)
    job_id, spec = waiting_job_of_other(state), make_job("exit=0")

    async def story() -> None:
        async with running(state, users=users) as it:
            await why(it, job_id, "not ready: the machine's user database does not answer")
            found = await it.service.job(job_id)
            assert (found.state, len(found.attempts)) == ("launching", 1)
            with pytest.raises(Unavailable, match="does not answer; ask again"):
                await it.service.submit(spec, uid=OTHER, idempotency_key=None)
            await it.service.cancel(job_id, uid=OTHER)
            assert (await it.reach(job_id, "cancelled")).attempts[0].steps_done == 0

    asyncio.run(story())


@AS_ROOT
def test_a_job_of_a_removed_user_fails_only_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An sssd that restarts gives the same answer as for a user who was removed."""

    def find(uid: int) -> Account:
        raise UnknownAccount(f"uid {uid} is not a user of this machine")

    state, users = tmp_path / "state", ServedUsers(own=0, alone=None, find=find)
    job_id = waiting_job_of_other(state)

    async def story() -> None:
        async with running(state, users=users) as it:
            await why(it, job_id, f"not ready: uid {OTHER} is not a user of this machine")
            assert (await it.service.job(job_id)).state == "launching"
            monkeypatch.setattr(start_attempt, "NO_USER_SECONDS", 0.0)
            job = await it.reach(job_id, "failed")
            assert job.reason == f"uid {OTHER} is not a user of this machine"

    asyncio.run(story())


def attempt(job_id: int, number: int = 2) -> AttemptRow:
    return AttemptRow(
        job_id=job_id,
        number=number,
        token=f"{job_id}-{number}",
        state=LAUNCHING,
        run_dir=f"/jobs/{job_id}/attempt-{number}",
        gpu_uuids=(),
        resumed_from=None,
        started=None,
        ended=None,
        result=None,
    )


def test_eight_jobs_after_a_reboot_load_two_at_a_time() -> None:
    now, stepped = [0.0], set[int]()
    config = RetryConfig(at_once=2)
    loading = RestartThrottle(config, lambda each: each.job_id not in stepped, lambda: now[0])

    def begin(*job_ids: int) -> list[int]:
        begun = [job for job in job_ids if loading.why_not_now(attempt(job)) is None]
        for job in begun:
            loading.began(attempt(job))
        return begun

    assert [begin(job) for job in (1, 2, 3)] == [[1], [2], []]
    said = (
        "waits: jobs 1, 2 load now, and at most 2 restarted jobs may load at the same time "
        "(retry.at_once)"
    )
    assert loading.why_not_now(attempt(3)) == said
    assert loading.why_not_now(attempt(9, number=1)) is None  # it comes as it was submitted
    assert loading.why_not_now(attempt(2)) is None  # it began, and is begun once more
    stepped.add(1)
    assert [begin(job) for job in (3, 4)] == [[3], []]
    now[0] = 61.0  # those that report nothing
    assert [begin(job) for job in (4, 5, 6, 7, 8)] == [[4], [5], [], [], []]


def test_jobs_that_are_started_again_wait_for_their_turn_with_the_reason(tmp_path: Path) -> None:
    config = replace(CONFIG, retry=RetryConfig(first_seconds=0.01, at_once=1))

    async def story() -> None:
        async with running(tmp_path / "state", config=config) as it:
            ids = []
            for number in (1, 2):
                job = make_job("release exit=1", max_restarts=1, name=f"n{number}")
                made = await it.service.submit(job, uid=os.geteuid(), idempotency_key=None)
                ids.append(made[0].id)
                await it.reach(ids[-1], "running")
            for job_id in ids:
                it.release(job_id)

            async def waits() -> int | None:
                for job_id in ids:
                    job = await it.service.job(job_id)
                    if "restarted jobs may load at the same time" in str(job.reason):
                        assert job.state == "launching"
                        return job_id
                return None

            last = await wait_async(waits, "one of the two to wait for its turn")
            (first,) = set(ids) - {last}
            await it.reach(first, "running")
            it.release(first, 2)
            await it.reach(last, "running")
            it.release(last, 2)
            await it.reach(last, "failed")

    asyncio.run(story())

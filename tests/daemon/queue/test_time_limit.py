"""A job's time limit: what is left of it, and how the daemon ends the job at it."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.patience import patient
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import leave_attempt, running
from tests.daemon.made_attempts import own_token
from tests.runs.test_find_job_checkpoints import make
from zerotools.jobs.binding.durations import duration_text, seconds_of
from zerotoolsd.interface.api_types import Conflict
from zerotoolsd.queue import time_limit
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.durable_files import write_json

ATTEMPT = AttemptRow(
    job_id=1,
    number=1,
    token="t",
    state="ended",
    run_dir="/r",
    gpu_uuids=(),
    resumed_from=None,
    started=None,
    ended=None,
    result=None,
)


@pytest.mark.parametrize(
    ("span", "seconds", "words"),
    [
        (90, 90, "1 min 30 s"),
        ("90m", 5400, "1 h 30 min"),
        ("2h", 7200, "2 h"),
        ("1d12h", 129600, "1 d 12 h"),
        ("1h 5s", 3605, "1 h 5 s"),
    ],
)
def test_spans_of_time(span: int | str, seconds: int, words: str) -> None:
    assert seconds_of(span) == seconds
    assert duration_text(seconds) == words


@pytest.mark.parametrize("span", ["3651d", "9" * 400 + "d", 2**62, "999999999d999999999d"])
def test_no_job_runs_for_ten_years(span: int | str) -> None:
    """The daemon reckons with it in floating point."""
    with pytest.raises(ValueError, match=r"at most 3650 days|must be a number of seconds"):
        seconds_of(span)


@pytest.mark.parametrize("span", [0, -5, "", "0h", "two hours", "5m2h", "1.5h", "2"])
def test_what_is_no_span_of_time(span: int | str) -> None:
    with pytest.raises(ValueError, match="must be a number of seconds, or a time"):
        seconds_of(span)


def test_attempts_are_added_up_and_waiting_is_not_counted() -> None:
    first = replace(ATTEMPT, started=1000.0, ended=1030.0)
    second = replace(ATTEMPT, state="running", started=2000.0)
    never = ATTEMPT
    job = make_job("", time_limit="1m")
    assert time_limit.seconds_left(job, [first, never, second], Moment(2010.0)) == 20
    assert time_limit.seconds_left(make_job(""), [first], Moment(2010.0)) is None
    assert time_limit.seconds_left(None, [first], Moment(2010.0)) is None
    asked = {"stop_reason": time_limit.REASON}
    assert time_limit.that_ended(job, asked) == "1 min"
    assert time_limit.that_ended(job, {"stop_reason": "cancel"}) is None
    unwritten = {"stop_reason": "SIGTERM"}
    assert time_limit.that_ended(job, unwritten) is None
    assert time_limit.that_ended(job, unwritten, asked=True) == "1 min"
    assert time_limit.that_ended(job, {"stop_reason": None}, asked=True) is None


def test_hours_in_which_nothing_ran_are_not_counted() -> None:
    """The daemon was away, or the machine slept, or its clock was set."""
    noticed_late = {"ran_seconds": 25.0, "started": 1000.0, "ended": 1025.0}
    first = replace(ATTEMPT, started=1000.0, ended=9999.0, result=noticed_late)
    runs = replace(ATTEMPT, state="running", started=50.0, started_clock=300.0, boot_id="b")
    job = make_job("", time_limit="1m")
    assert time_limit.seconds_left(job, [first], Moment(99999.0)) == 35
    assert time_limit.seconds_left(job, [first, runs], Moment(1e9, 310.0, "b")) == 25
    assert time_limit.seconds_left(job, [runs], Moment(70.0, 5.0, "other")) == 40
    assert time_limit.seconds_left(job, [runs], Moment(0.0, 300.0, "other")) == 60


@pytest.mark.parametrize("odd", [True, "7", -1, float("nan"), 10**400, None, [], 1e999])
def test_a_record_that_says_nonsense_is_not_believed(odd: object) -> None:
    record = {"ran_seconds": odd, "ended": odd, "started": odd}
    assert time_limit.end_of(record, Moment(5.0), 9.0) == 9.0
    job = make_job("", time_limit="1m")
    ended = replace(ATTEMPT, started=1000.0, ended=1020.0, result=record)
    assert time_limit.seconds_left(job, [ended], Moment(2000.0)) == 40


def test_an_end_is_when_it_was_and_not_when_it_was_noticed() -> None:
    assert time_limit.end_of({"ended": 1030.0}, Moment(1000.0), 5000.0) == 1030.0
    assert time_limit.end_of({"ended": 10.0}, Moment(1000.0), 5000.0) == 1000.0
    assert time_limit.end_of({"ended": 1e9}, Moment(1000.0), 5000.0) == 5000.0


def test_an_end_is_not_before_the_start_where_the_clock_was_set_back() -> None:
    record = {"ended": 30.0, "ran_seconds": 40.0}
    assert time_limit.end_of(record, Moment(3600.0), 35.0) == 3640.0
    assert time_limit.end_of({"ended": 30.0}, Moment(3600.0), 35.0) == 3600.0
    assert time_limit.end_of({"ran_seconds": 1e300}, Moment(3600.0), 35.0) < 2e9


def test_an_attempt_that_ended_while_no_daemon_ran_is_timed_by_its_supervisor(
    tmp_path: Path,
) -> None:
    """Its limit is over by the calendar, and far from it by what it ran."""
    job = make_job("exit=0", time_limit="1h")
    run = leave_attempt(tmp_path / "state", job)
    record = {"outcome": "crashed", "cause": "it broke", "ran_seconds": 4.0, "ended": 5.0}
    write_json(run / "exit.json", {"token": own_token(), **record})

    async def story() -> None:
        async with running(tmp_path / "state") as it:
            ended = await it.reach(1, "succeeded")
            assert (ended.attempts[0].ended, len(ended.attempts)) == (5.0, 2)

    asyncio.run(story())


def test_an_attempt_that_was_lost_ran_until_its_last_sign_of_life(tmp_path: Path) -> None:
    job = make_job("release", max_restarts=0, time_limit="1h")
    run = leave_attempt(tmp_path / "state", job)
    write_json(run / "attempt.json", {})
    identity = {"token": own_token(), "boot_id": "of an earlier boot", "pid": 1, "started": 1.0}
    write_json(run / "run.json", identity)
    os.utime(run / "run.json", (61.0, 61.0))

    async def story() -> None:
        async with running(tmp_path / "state", leave=True) as it:
            assert (await it.reach(1, "failed")).ended == 61.0
            (attempt,) = it.engine.store.attempts(1)
            assert attempt.result is not None
            assert attempt.result["ran_seconds"] == 60.0

    asyncio.run(story())


def test_a_job_at_its_limit_saves_and_is_stopped_and_goes_on_by_one_request(
    tmp_path: Path,
) -> None:
    limit = math.ceil(patient(1.0))  # so that the rank has begun to train by then

    async def story() -> None:
        async with running(tmp_path / "state") as it:
            job = make_job("stop", time_limit=limit, output_dir=str(tmp_path / "out"))
            one, _ = await it.service.submit(job, uid=os.geteuid(), idempotency_key=None)
            ended = await it.reach(one.id, "stopped")
            over = f"its time limit of {duration_text(limit)} is over"
            assert ended.reason == f"{over}; saved at step 7 and stopped"
            shutil.rmtree(tmp_path / "out")
            make(tmp_path / "out", 7)
            two = await it.service.resume(one.id, uid=os.geteuid())
            assert two.spec["resume_from"] == two.output_dir == str(tmp_path / "out")
            with pytest.raises(Conflict, match="is not over"):
                await it.service.resume(two.id, uid=os.geteuid())
            await it.reach(two.id, "stopped", "failed")

    asyncio.run(story())

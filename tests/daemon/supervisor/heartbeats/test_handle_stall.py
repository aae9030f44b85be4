"""What a supervisor does about ranks that do not get on: real processes that train nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from harness.started import Started
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, running
from tests.daemon.made_attempts import finish, make_attempt, progress_of, supervise
from tests.daemon.waiting import wait_async, wait_for
from zerotoolsd.config.config_tables import StopConfig
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.supervisor import procfs
from zerotoolsd.supervisor.heartbeats.handle_stall import (
    ANSWER_SECONDS,
    DUMP_SECONDS,
    StackDump,
    find_spy,
)

SOON = {"action": "end", "factor": 1, "start": 100, "step": 3}


def stall_of(run: Path) -> dict[str, Any] | None:
    return next((m for m in progress_of(run) if m["event"] == "stall"), None)


def test_the_rank_that_is_stopped_is_named_and_the_stacks_of_all_are_in_the_log(
    tmp_path: Path,
) -> None:
    fake = "train beat=step rank=1:freeze hang"
    run = make_attempt(tmp_path / "run", fake, stall=SOON, grace_seconds=0.2)
    record = finish(run, supervise(run))
    assert (record["outcome"], record["rank"], record["stop_reason"]) == ("crashed", 1, None)
    assert record["cause"].startswith("ended, because rank 1 has been in step 812 for ")
    assert record["cause"].endswith(
        "s: it is stopped by a signal (state T); the others wait for it"
    )
    assert [rank["killed"] for rank in record["ranks"]] == [True, True]
    stall = stall_of(run)
    assert stall is not None
    assert (stall["stalled_rank"], stall["deadline_seconds"], stall["ends"]) == (1, 3.0, True)
    assert stall["at"] == {"0": "step 812", "1": "step 812"}
    for rank in (0, 1):
        log = (run / f"rank-{rank}.log").read_text()
        assert "the job is ended; the stacks follow" in log
        assert 'fake_rank.py", line ' in log, f"rank {rank}: the stopped one when it is continued"
    assert "is stopped by a signal (state T)" in (run / "rank-1.log").read_text()
    assert not (run / "heartbeats.json").exists(), "no rank lives any more"


def test_a_stall_that_is_only_reported_ends_nothing(tmp_path: Path) -> None:
    stall = {**SOON, "action": "report"}
    run = make_attempt(tmp_path / "run", "beat=step release beat=finishing exit=0", stall=stall)
    process = supervise(run)
    found = wait_for(lambda: stall_of(run), "the stall to be told")
    assert found is not None
    assert found["ends"] is False
    shown = json.loads((run / "heartbeats.json").read_text())
    assert shown["stalled"].startswith("all 2 ranks have been in step 812 for ")
    (run / "release").touch()
    assert finish(run, process)["outcome"] == "finished"


def test_a_program_that_says_nothing_ends_where_its_job_says_how_long(tmp_path: Path) -> None:
    stall = {"action": "end", "silence": 1, "factor": 1}
    run = make_attempt(
        tmp_path / "run", "flood=0 hang", stall=stall, own_program=True, world_size=1
    )
    record = finish(run, supervise(run))
    assert record["outcome"] == "crashed"
    assert record["cause"].startswith("ended, because neither output nor a report for ")
    assert record["signal"] == 15 or record["rank"] is None
    assert "state in the kernel" in (run / "rank-0.log").read_text()


@pytest.mark.parametrize("does", ["hang", "deaf hang"])
def test_a_complete_program_that_does_not_end_is_ended_as_succeeded(
    tmp_path: Path, does: str
) -> None:
    stall = {"action": "end", "complete": 1, "factor": 1}
    fake = f"steps=2 finished {does}"
    plan = {"stall": stall, "own_program": True, "grace_seconds": 0.2, "world_size": 1}
    run = make_attempt(tmp_path / "run", fake, **plan)
    record = finish(run, supervise(run))
    assert record["outcome"] == "finished"
    assert record["cause"].startswith(
        "finished after step 7; ended, because it reported that it is complete, and has not "
        "ended for "
    )


def test_without_deadlines_nothing_stalls_and_the_views_have_the_heartbeats(
    tmp_path: Path,
) -> None:
    run = make_attempt(tmp_path / "run", "beat=saving release exit=0")
    process = supervise(run)

    def shown() -> list[str]:
        try:
            tree = json.loads((run / "heartbeats.json").read_text())
        except (OSError, ValueError):
            return []
        return [rank["at"] for rank in tree["ranks"] if rank["phase"] == "saving"]

    assert (
        wait_for(lambda: len(shown()) == 2 and shown(), "the heartbeats")
        == ["the save of step 811"] * 2
    )
    (run / "release").touch()
    finish(run, process)
    assert stall_of(run) is None


def test_a_job_whose_ranks_stall_is_started_again(tmp_path: Path) -> None:
    async def told() -> JobView:
        config = replace(CONFIG, stop=StopConfig(grace_seconds=0.2))
        async with running(tmp_path / "state", config=config) as it:
            spec = make_job("beat=step attempt=1:hang exit=0", stall={"step_limit": 3})
            job, _ = await it.service.submit(spec, uid=os.geteuid(), idempotency_key=None)

            async def late() -> JobView | None:
                view = await it.service.job(job.id)
                return view if (view.phase or {}).get("stalled") else None

            view = await wait_async(late, "the stall to be shown")
            assert view is not None
            phase = view.phase or {}
            assert (phase["name"], phase["deadline_seconds"]) == ("step", 3.0)
            return await it.reach(job.id, "succeeded")

    first, second = asyncio.run(told()).attempts
    assert str(first.cause).startswith("ended, because all 2 ranks have been in step 812 for ")
    assert second.exit_code == 0


class Log:
    def __init__(self) -> None:
        self.seen, self.text = 0, ""

    def add(self, text: str) -> None:
        self.text += text


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    monkeypatch.chdir(tmp_path)
    found = Started(["/bin/sh", "-c", "trap '' QUIT; echo; exec sleep 1000"], stdout=PIPE)
    assert found.stdout is not None
    found.stdout.readline()  # the signal is ignored now
    yield found
    found.kill()
    found.wait(timeout=10)
    found.stdout.close()


def spy(tmp_path: Path, body: str) -> str:
    path = tmp_path / "py-spy"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_one_that_does_not_answer_is_read_from_outside(sleeper: Started, tmp_path: Path) -> None:
    clock, log = Clock(), Log()
    dump = StackDump(spy(tmp_path, 'echo "read $4"'), clock)
    dump.request(sleeper.pid, log, answers=True)
    assert f"pid {sleeper.pid} " in log.text
    clock.now = ANSWER_SECONDS
    assert not dump.is_over()
    assert "does not answer the signal" in log.text
    (pid,) = dump.pids
    os.waitpid(pid, 0)
    dump.ended([pid])
    assert f"its stacks, by py-spy]\nread {sleeper.pid}" in log.text
    assert dump.is_over()
    assert list(tmp_path.glob("stacks-*")) == []


def test_one_that_answers_is_not_disturbed_further(sleeper: Started, tmp_path: Path) -> None:
    clock, log = Clock(), Log()
    dump = StackDump(spy(tmp_path, "exit 1"), clock)
    dump.request(sleeper.pid, log, answers=True)
    log.seen += 100
    clock.now = ANSWER_SECONDS
    assert dump.is_over()
    assert dump.pids == []


def test_a_dump_that_hangs_is_given_up(sleeper: Started, tmp_path: Path) -> None:
    clock, log = Clock(), Log()
    dump = StackDump(spy(tmp_path, "exec sleep 1000"), clock)
    dump.request(sleeper.pid, log, answers=False)
    (pid,) = dump.pids
    assert not dump.is_over()
    clock.now = DUMP_SECONDS
    assert dump.is_over()
    assert "py-spy took more than 10 s" in log.text
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def test_without_py_spy_the_log_says_so(sleeper: Started) -> None:
    log = Log()
    StackDump(None).request(sleeper.pid, log, answers=False)
    assert "py-spy is not installed" in log.text
    assert find_spy("/no/such/python", "/no/such/directory") is None


def test_the_kernel_s_words_on_a_stopped_process(sleeper: Started) -> None:
    os.kill(sleeper.pid, signal.SIGSTOP)

    def state() -> str:
        found = procfs.process_state(sleeper.pid)
        return "" if found is None else found.state

    wait_for(lambda: state() == "T", "the process to stop")
    assert procfs.process_report(sleeper.pid).startswith(
        f"pid {sleeper.pid} is stopped by a signal (state T)"
    )
    assert procfs.process_state(2**22 + 1) is None
    assert procfs.process_report(2**22 + 1).endswith("is gone")

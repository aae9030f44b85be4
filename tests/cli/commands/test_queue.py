from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from tests.cli.conftest import Command
from tests.daemon.api.fakes import STEP, FakeService, a_job, a_view, an_attempt
from zerotools.cli.commands.queue import table
from zerotools.jobs.client.daemon_client import DaemonClient


def test_the_queue_shows_what_is_not_over(zerotools: Command, service: FakeService) -> None:
    now = time.time()
    service.add(state="succeeded", ended=now)
    service.add(state="running", reason=None, created=now, progress=STEP)
    known = {"verified": {"how": "digests", "time": now}, "not_verified": None}
    service.change(2, latest_checkpoint={"step": 10, "path": "/o/step-10", **known})
    service.add(created=now)
    done = zerotools("queue")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "id  name  state    stage  ranks   step    loss        saved  age  why",
        " 2  tiny  running      3  2 CPU  12/40  2.5000  10 verified  0 s",
        " 3  tiny  queued       3  2 CPU      -       -            -  0 s  "
        "needs 1 GPU, and GPU 0 is leased to job 1",
    ]
    assert [job["id"] for job in json.loads(zerotools("queue", "--json").out)] == [2, 3]
    assert [job["id"] for job in json.loads(zerotools("queue", "--all", "--json").out)] == [1, 2, 3]


def test_an_empty_queue_says_what_next(zerotools: Command) -> None:
    assert zerotools("queue").out == (
        "no job waits or runs; list those that have ended: zerotools queue --all\n"
    )
    assert zerotools("queue", "--all").out == (
        "there are no jobs; queue one with: zerotools submit JOBFILE\n"
    )
    assert json.loads(zerotools("queue", "--json").out) == []


def test_a_narrow_terminal_gets_the_reasons_whole_below() -> None:
    job = a_view(1, a_job(), created=time.time(), reason="needs 2 GPUs: " + "and more " * 9)
    header, row, *reason = table([job.to_json()], 60)
    assert header.endswith("age")
    assert row.endswith("0 s")
    assert [line[:4] for line in reason] == ["    "] * 2
    assert all(len(line) < 60 for line in reason)


def test_a_name_cannot_move_the_cursor(zerotools: Command, service: FakeService) -> None:
    service.add(name="\x1b[2J", attempts=(an_attempt(),), state="running")
    for command in (("queue",), ("show", "1"), ("cancel", "1")):
        shown = zerotools(*command).out
        assert "\x1b" not in shown
        assert "\\x1b[2J" in shown


def test_a_terminal_that_is_not_utf8_gets_escapes(
    service: FakeService, client: DaemonClient
) -> None:
    service.add(name="naïve")
    done = subprocess.run(
        [sys.executable, "-m", "zerotools", "queue", "--socket", str(client.socket)],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert b" na\\xefve " in done.stdout


def test_the_newest_alone(zerotools: Command, service: FakeService) -> None:
    for _ in range(4):
        service.add(state="succeeded")
    lines = zerotools("queue", "--all", "--limit", "2").out.splitlines()
    assert [line.split()[0] for line in lines] == ["id", "3", "4", "..."]
    assert len(zerotools("queue", "--all", "-n", "4").out.splitlines()) == 5

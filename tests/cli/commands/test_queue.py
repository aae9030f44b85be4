from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.commands.test_submit import JOB
from tests.cli.conftest import Command
from tests.cli.top.real_terminal import RealTerminal
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import STEP, a_job, a_view, an_attempt
from zerotools.cli.commands.show import page
from zerotools.cli.job_views.queue_table import queue_lines
from zerotools.jobs.client import daemon_client
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotoolsd.http.api.authorize import AuthorizedRequest
from zerotoolsd.http.api.visible_fields import view_for
from zerotoolsd.users.rights import Access, Caller, Rights


def test_the_queue_shows_what_is_not_over(zerotools: Command, service: FakeService) -> None:
    now = time.time() - 2.5 * 86400  # an age that the seconds of this test do not change
    service.add(state="succeeded", ended=now)
    service.add(state="running", reason=None, created=now, progress=STEP)
    known = {"verified": {"how": "digests", "time": now}, "not_verified": None}
    service.change(2, latest_checkpoint={"step": 10, "path": "/o/step-10", **known})
    service.add(created=now)
    done = zerotools("queue")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "id  name  state    age  ranks  stage   step    loss        saved  why",
        " 2  tiny  running   2d  2 CPU      3  12/40  2.5000  10 verified",
        " 3  tiny  queued    2d  2 CPU      3      -       -            -  "
        "needs 1 GPU, and GPU 0 is leased to job 1",
    ]
    assert [job["id"] for job in json.loads(zerotools("queue", "--json").out)["jobs"]] == [2, 3]
    everything = json.loads(zerotools("queue", "--all", "--json").out)["jobs"]
    assert [job["id"] for job in everything] == [1, 2, 3]


def test_an_empty_queue_says_what_next(zerotools: Command) -> None:
    assert zerotools("queue").out == (
        "no job waits or runs; list finished jobs with: zerotools queue --all\n"
    )
    assert zerotools("queue", "--all").out == (
        "the queue has no jobs; add one with: zerotools submit JOBFILE\n"
    )
    assert json.loads(zerotools("queue", "--json").out)["jobs"] == []


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
    for created in range(4):
        service.add(state="succeeded", created=float(created))
    lines = zerotools("queue", "--all", "--limit", "2").out.splitlines()
    assert [line.split()[0] for line in lines] == ["id", "4", "3", "..."]
    assert len(zerotools("queue", "--all", "--limit", "4").out.splitlines()) == 5


def test_running_jobs_are_first_and_waiting_jobs_in_the_order_of_their_start(
    zerotools: Command, service: FakeService
) -> None:
    now = time.time() - 60
    for at, state in enumerate(("failed", "queued", "queued", "succeeded", "running", "queued")):
        service.add(state=state, created=now + at)
    service.change(3, priority=5)
    lines = zerotools("queue", "--all").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["5", "3", "2", "6", "4", "1"]
    listed = json.loads(zerotools("queue", "--all", "--json").out)["jobs"]
    assert [job["id"] for job in listed] == [1, 2, 3, 4, 5, 6], "programs get them by age"


def test_a_queue_longer_than_the_terminal_is_shown_in_the_pager(
    service: FakeService, client: DaemonClient, tmp_path: Path
) -> None:
    for _ in range(30):
        service.add(created=time.time(), reason=None)
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho paged; cat\n")
    pager.chmod(0o755)
    for option, rows, is_paged in (("auto", 24, True), ("auto", 60, False), ("never", 24, False)):
        words = ["-m", "zerotools", "queue", "--pager", option]
        environment = {"PAGER": str(pager), "ZEROTOOLS_SOCKET": str(client.socket)}
        terminal = RealTerminal(words, environment, (80, rows))
        assert terminal.end() == 0
        assert (b"paged" in terminal.written) == is_paged


def test_whose_jobs_they_are_is_shown_where_there_are_several_users(
    zerotools: Command, service: FakeService
) -> None:
    service.add(uid=os.geteuid(), created=time.time(), reason=None)
    assert zerotools("queue").out.splitlines()[0].split()[:2] == ["id", "name"]
    alone = zerotools("queue", "--mine").out.splitlines()
    assert alone[0].split()[:3] == ["id", "user", "name"]
    service.add(uid=os.geteuid() + 7, created=time.time(), reason=None)
    lines = zerotools("queue").out.splitlines()
    assert [line[4:11].strip() for line in lines] == [
        "user",
        f"uid {os.geteuid()}",
        *[f"uid {os.geteuid() + 7}"],
    ]
    for options, ids in (
        (("--mine",), [1]),
        (("--user", "me"), [1]),
        (("--user", str(os.geteuid() + 7)), [2]),
        (("--user", "all"), [1, 2]),
    ):
        found = json.loads(zerotools("queue", "--all", "--json", *options).out)["jobs"]
        assert [job["id"] for job in found] == ids
    assert [job["uid"] for job in found] == [os.geteuid(), os.geteuid() + 7]
    assert (
        zerotools("queue", "--user", "4711").out == "no waiting or running job is owned by 4711\n"
    )
    refused = zerotools("queue", "--user", "no-such-user")
    assert (refused.status, "no such user" in refused.err) == (2, True)
    assert zerotools("queue", "--mine", "--user", "4711").status == 2


def test_a_job_of_somebody_else_is_one_line(service: FakeService) -> None:
    attempt = an_attempt(gpu_uuids=("GPU-1",))
    view = a_view(7, a_job(), uid=4711, state="running", attempts=(attempt,))
    asked = AuthorizedRequest(Caller(uid=4712), Access.MASKED, Rights(own=4713))
    seen = view_for(replace(view, user="anna"), asked).to_json()
    assert queue_lines([seen], 100, shows_user=True)[1].split()[:4] == [
        "7",
        "anna",
        "job-7",
        "running",
    ]
    shown = "\n".join(page(seen, 100))
    assert shown.startswith("job 7: running\n  user      anna (uid 4711)\n")
    assert "GPU-1" in shown
    assert "only the job's owner and administrators see the rest" in shown
    assert "log" not in shown


def test_jobs_above_a_page_of_a_state_are_listed_too(
    zerotools: Command, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_client, "PAGE", 3)
    for _ in range(8):
        service.add()
    service.add(state="running")
    assert [job["id"] for job in json.loads(zerotools("queue", "--json").out)["jobs"]] == list(
        range(1, 10)
    )
    newest = json.loads(zerotools("queue", "--all", "--json", "--limit", "4").out)
    assert [job["id"] for job in newest["jobs"]] == [6, 7, 8, 9]


@pytest.mark.parametrize(
    "words",
    [
        ("queue", "--named", "\udcff"),
        ("queue", "--user", "\udcff"),
        *(
            (name, "\udcff")
            for name in ("show", "explain", "logs", "cancel", "edit", "wait", "retry")
        ),
        *((name, "@\udcff") for name in ("cancel", "retry", "wait")),
    ],
)
def test_a_name_that_is_not_utf_8_is_looked_for(
    zerotools: Command, service: FakeService, words: tuple[str, ...]
) -> None:
    service.add(state="failed", name="tiny")
    done = zerotools(*words)
    assert done.status == (0 if "--named" in words else 2), done.err
    assert "defect" not in done.err


def test_an_array_is_submitted_shown_and_changed_as_one(
    zerotools: Command, service: FakeService, tmp_path: Path
) -> None:
    job_file = tmp_path / "tiny.toml"
    job_file.write_text(JOB, encoding="utf-8")
    service.add(state="queued", name="other", reason=None)
    sweeps = ("--sweep", "train.learning_rate=1e-4,3e-4", "--sweep", "seed=1,2")
    done = zerotools("submit", str(job_file), *sweeps, "--priority", "2")
    assert done.out.splitlines()[:3] == [
        "4 jobs are queued, the first is job 2 (tiny-0): 2 ranks on CPU, ZeRO stage 3, 40 steps",
        "  see them        zerotools queue --all",
        "  stop them all   zerotools cancel @2",
    ]
    assert [view.spec["seed"] for view in list(service.views.values())[1:]] == [1, 2, 1, 2]
    service.change(3, state="running", reason=None, attempts=(an_attempt(),))
    rows = zerotools("queue").out.splitlines()
    assert [row.split()[:7] for row in rows[1:]] == [
        ["@2", "2", "tiny", "1", "running,", "3", "queued"],
        ["1", "0", "other", "queued", *rows[2].split()[4:7]],
    ]
    assert len(zerotools("queue", "--all").out.splitlines()) == 6
    assert "@2, 2 of 4: train.learning_rate=0.0001, seed=2" in zerotools("show", "3").out
    said = zerotools("priority", "@tiny", "5").out.splitlines()
    assert said[0] == "job 2 (tiny-0) has priority 5"
    assert [service.views[n].priority for n in (1, 2, 3, 4, 5)] == [0, 5, 5, 5, 5]
    assert len(json.loads(zerotools("cancel", "@2", "--json").out)["jobs"]) == 4
    assert service.views[1].state == "queued"
    service.change(3, state="cancelled")
    done = zerotools("hold", "@2")
    assert (done.status, "all 4 jobs of the array are over" in done.err) == (5, True)
    assert zerotools("wait", "@2").status == 6
    assert "job 1 is not part of an array" in zerotools("hold", "@1").err
    again = zerotools("retry", "@2", "--output-dir", str(tmp_path)).out.splitlines()
    assert len(again) == 5
    assert again[0] == f"job 6 (tiny-0) is queued; it starts from step 1 in {tmp_path}"


def test_what_is_refused_of_one_job_of_an_array_does_not_keep_the_others_from_it(
    zerotools: Command, service: FakeService, tmp_path: Path
) -> None:
    job_file = tmp_path / "tiny.toml"
    job_file.write_text(JOB, encoding="utf-8")
    zerotools("submit", str(job_file), "--array", "3")
    service.change(2, state="running", reason=None, attempts=(an_attempt(),))
    done = zerotools("hold", "@1")
    assert done.out.splitlines() == [
        f"job {n} (tiny-{n - 1}) is held; let it start: zerotools release {n}" for n in (1, 3)
    ]
    assert (done.status, done.err) == (5, "error: job 2 is running\n")
    assert [service.views[n].state for n in (1, 2, 3)] == ["on_hold", "running", "on_hold"]
    for words, state in (
        (("release", "@1"), "queued"),
        (("pause", "@1"), "on_hold"),
        (("unpause", "@1"), "queued"),
        (("cancel", "@1"), "cancelled"),
    ):
        assert zerotools(*words).status == 0, words
        assert {service.views[n].state for n in (1, 3)} == {state}


def test_a_job_waits_for_a_whole_array(
    zerotools: Command, service: FakeService, tmp_path: Path
) -> None:
    job_file = tmp_path / "tiny.toml"
    job_file.write_text(JOB, encoding="utf-8")
    zerotools("submit", str(job_file), "--array", "3")
    zerotools("submit", str(job_file), "--after", "@1:any")
    after = service.views[4].after
    assert [(each["job"], each["condition"]) for each in after] == [
        *((1, "any"), (2, "any"), (3, "any")),
    ]


def test_what_no_array_can_be_is_refused_before_anything_is_queued(
    zerotools: Command, service: FakeService, tmp_path: Path
) -> None:
    job_file = tmp_path / "tiny.toml"
    job_file.write_text(JOB, encoding="utf-8")
    for options, said in (
        (("--sweep", "seed=1,2", "--array", "1000"), "these are 2000 jobs"),
        (("--array", "1000000000"), "1000000000 is not in the range"),
        (("--sweep", "sede=1"), "sweep: sede: unknown key"),
        (("--sweep", "seed=1", "--sweep", "seed=2"), "seed is swept twice"),
        (("--sweep", "seed=x"), 'seed = "x": must be a whole number'),
        (("--array", "2", "--follow"), "--follow follows one job"),
        (("--array", "2", str(job_file)), "--sweep or --array is for one job file"),
    ):
        done = zerotools("submit", str(job_file), *options)
        assert (done.status, said in done.err) == (2, True), done.err
    assert service.views == {}
    done = zerotools("submit", str(job_file), "--sweep", "seed=1,2", "--dry-run")
    assert done.out == "2 jobs would be queued:\n  seed=1\n  seed=2\n"

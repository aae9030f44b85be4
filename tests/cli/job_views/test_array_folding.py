"""The jobs of an array, submitted and shown as one."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.commands.test_submit import JOB
from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import an_attempt


def test_an_array_is_submitted_shown_and_changed_as_one(
    zerotools: Command, service: FakeService, tmp_path: Path
) -> None:
    job_file = tmp_path / "tiny.toml"
    job_file.write_text(JOB, encoding="utf-8")
    service.add(state="queued", name="other", reason=None)
    sweeps = ("--sweep", "train.learning_rate=1e-4,3e-4", "--sweep", "seed=1,2")
    done = zerotools("submit", str(job_file), *sweeps, "--priority", "2")
    assert done.out.splitlines()[:3] == [
        "4 jobs are queued, from job 2 (tiny-0) on: 2 ranks on CPU, ZeRO stage 3, 40 steps",
        "  see them        zerotools queue --all",
        "  stop them all   zerotools cancel @2",
    ]
    assert [view.spec["seed"] for view in list(service.views.values())[1:]] == [1, 2, 1, 2]
    service.change(3, state="running", reason=None, attempts=(an_attempt(),))
    rows = zerotools("queue").out.splitlines()
    assert [row.split()[:7] for row in rows[1:]] == [
        ["1", "0", "other", "queued", "3", "2", "CPU"],
        ["@2", "2", "tiny", "3", "queued,", "1", "running"],
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

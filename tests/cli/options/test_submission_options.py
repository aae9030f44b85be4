from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from tests.cli.commands.test_submit import JOB
from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from zerotools.cli.options.submission_options import NO_SLURM, SlurmOptions, dependencies, time_of
from zerotools.core.errors import BadRequest


def test_options_change_the_job_file_of_a_job_for_slurm() -> None:
    given = SlurmOptions(table={"partition": "h100"}, gpus_per_node=4)
    tree = {"backend": "slurm", "gpus": 2, "slurm": {"partition": "a100", "time": "8h"}}
    changed = {"gpus": 4, "slurm": {"partition": "h100", "time": "8h"}}
    assert given.applied(tree) == {**tree, **changed}
    assert NO_SLURM.applied({"gpus": 2}) == {"gpus": 2}
    assert SlurmOptions(asked=True).applied({"gpus": 2}) == {"gpus": 2, "backend": "slurm"}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (SlurmOptions(table={"options": ["--exclude=n7"]}), "--sbatch"),
        (SlurmOptions(gpus_per_node=2), "--gpus-per-node"),
        (SlurmOptions(table={"time": "8h"}), "--time"),
    ],
)
def test_they_are_refused_of_a_job_that_is_not_for_slurm(given: SlurmOptions, name: str) -> None:
    with pytest.raises(BadRequest, match=f"{name} needs --slurm"):
        given.applied({"backend": "local", "gpus": 2})


NOON = datetime(2027, 1, 30, 12, 0, 0).timestamp()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("+2h", datetime(2027, 1, 30, 14, 0, 0)),
        ("+90", datetime(2027, 1, 30, 12, 1, 30)),
        ("22:30", datetime(2027, 1, 30, 22, 30)),
        ("9:05", datetime(2027, 1, 31, 9, 5)),
        ("12:00:00", datetime(2027, 1, 31, 12, 0)),
        ("2027-01-31", datetime(2027, 1, 31)),
        ("2027-01-31T22:30", datetime(2027, 1, 31, 22, 30)),
        ("2027-01-31 22:30:01", datetime(2027, 1, 31, 22, 30, 1)),
    ],
)
def test_a_time_is_the_next_one_here(text: str, found: datetime) -> None:
    assert time_of(text, NOON) == found.timestamp()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("+", "--begin +: must be a number of seconds"),
        ("+0", "--begin +0: must be a number of seconds"),
        ("+9999d", "must be at most 3650 days"),
        ("tomorrow", "--begin tomorrow: is not a time; write +2h, 22:30"),
        ("24:00", "is not a time"),
        ("2027-02-30", "is not a time"),
        (
            "2027-01-30T11:59",
            "--begin 2027-01-30T11:59: is in the past (it is now 2027-01-30 12:00:00",
        ),
        ("99999-01-01", "is not a time"),
    ],
)
def test_what_is_no_time_to_come(text: str, sentence: str) -> None:
    with pytest.raises(BadRequest) as info:
        time_of(text, NOON)
    assert sentence in str(info.value)


NUMBERS = {"3": [3], "tiny": [7], "a:b": [8], "@4": [4, 5]}
jobs_of = NUMBERS.__getitem__


def test_jobs_are_named_with_what_they_have_to_do() -> None:
    assert dependencies(jobs_of, ["3", "tiny:any", "a:b", "3:ok"]) == [
        {"job": 3, "condition": "ok"},
        {"job": 7, "condition": "any"},
        {"job": 8, "condition": "ok"},
    ]
    assert dependencies(jobs_of, ["@4:any"]) == [
        {"job": 4, "condition": "any"},
        {"job": 5, "condition": "any"},
    ]
    with pytest.raises(BadRequest, match="job 5 is named twice"):
        dependencies(lambda word: [5] if word == "5" else jobs_of(word), ["@4", "5:any"])
    with pytest.raises(BadRequest, match="--after 3:done: 'done' is neither ok nor any"):
        dependencies(jobs_of, ["3:done"])
    with pytest.raises(BadRequest, match="job 3 is named twice, as ok and as any"):
        dependencies(jobs_of, ["3", "3:any"])


def test_a_job_is_submitted_after_another_and_on_hold(
    zerotools: Command, service: FakeService, tmp_path: Path
) -> None:
    (tmp_path / "next.toml").write_text(JOB, encoding="utf-8")
    job_file = str(tmp_path / "next.toml")
    service.add(state="running", name="tiny")
    done = zerotools("submit", job_file, "--after", "tiny:any")
    assert done.out.startswith("job 2 (next) is queued")
    assert service.views[2].after == ({"job": 1, "condition": "any"},)
    done = zerotools("submit", job_file, "--after", "next2")
    assert (done.status, "no job has the name 'next2'" in done.err) == (2, True)
    assert zerotools("submit", job_file, "--hold").out.startswith("job 3 (next) is held")
    assert zerotools("submit", job_file, "--hold", "--follow").status == 2
    assert zerotools("release", "3").out == "job 3 (next) is not held any more: it is queued\n"
    service.change(1, state="queued")
    assert zerotools("hold", "3", "tiny").out == (
        "job 3 (next) is held; let it start: zerotools release 3\n"
        "job 1 (tiny) is held; let it start: zerotools release 1\n"
    )
    done = zerotools("release", "2", "1")
    assert (done.status, done.out) == (5, "job 1 (tiny) is not held any more: it is queued\n")
    assert "held" in zerotools("queue").out


@pytest.mark.parametrize(
    ("old", "now", "state"), [("pause", "hold", "on_hold"), ("unpause", "release", "queued")]
)
def test_an_older_name_works_says_the_newer_one_and_is_in_no_list(
    zerotools: Command, service: FakeService, old: str, now: str, state: str
) -> None:
    service.add(state="paused" if old == "unpause" else "queued")
    done = zerotools(old, "1", "--json")
    answer = json.loads(done.out)
    assert (done.status, answer["schema"]) == (0, f"zerotools.{old}/1")
    assert answer["jobs"][0]["state"] == state
    note = f"note: zerotools {old} is now zerotools {now}; the old name {old} works until 0.5\n"
    assert done.err == note
    assert f"  {old} " not in zerotools("--help").out

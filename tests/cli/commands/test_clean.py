"""`zerotools clean` shows, asks, and removes just what was shown."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from tests.jobs.jobfile_tables.test_slurm import job
from tests.jobs.slurm.fake_programs import programs
from zerotools.jobs.slurm.job_directory import END, write_record
from zerotools.jobs.slurm.submit_to_slurm import submit_job
from zerotoolsd.interface.api_types import Cleaned, CleanRequest, Unavailable


@pytest.fixture
def jobs(service: FakeService) -> FakeService:
    """Two jobs that are over, and one that is not."""
    service.add(state="succeeded", ended=1_700_000_000.0)
    service.add(state="running")
    service.add(state="failed", ended=1_700_000_100.0)
    return service


class Keyboard(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def test_it_shows_asks_and_removes_what_was_shown(
    zerotools: Command, jobs: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Keyboard("y\n"))
    done = zerotools("clean")
    assert (done.status, done.err) == (0, "")
    assert "3.0 MiB  record, logs, events" in done.out
    assert "remove these 2 jobs, 6.0 MiB? [y/N]: " in done.out
    assert done.out.endswith("removed: 2 jobs, 6.0 MiB\n")
    assert list(jobs.views) == [2]
    assert [(each.jobs, each.dry_run) for each in jobs.cleans] == [
        (None, True),
        ((1,), False),
        ((3,), False),
    ]


@pytest.mark.parametrize("typed", ["n\n", "\n"])
def test_anything_but_yes_removes_nothing(
    zerotools: Command, jobs: FakeService, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.setattr("sys.stdin", Keyboard(typed))
    assert zerotools("clean").status == 0
    assert len(jobs.views) == 3


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_without_a_terminal_it_refuses_to_guess(
    zerotools: Command, jobs: FakeService, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    done = zerotools("clean", *options)
    assert done.status == 2
    assert "cannot ask with --json or without a terminal" in done.err
    assert len(jobs.views) == 3


def test_a_dry_run_and_json(zerotools: Command, jobs: FakeService) -> None:
    done = zerotools("clean", "--dry-run", "--json")
    told = json.loads(done.out)
    assert [job["id"] for job in told["jobs"]] == [1, 3]
    assert told["dry_run"] is True
    assert len(jobs.views) == 3
    told = json.loads(zerotools("clean", "--yes", "--json", "--state", "failed").out)
    assert told["dry_run"] is False
    assert jobs.cleans[1].states == {"failed"}


def test_wishes_go_to_the_daemon(zerotools: Command, jobs: FakeService) -> None:
    zerotools("clean", "--dry-run", "--older-than", "30d", "--keep-last", "5", "--logs-only")
    wanted = CleanRequest(older_than_seconds=30 * 86400, keep=5, logs_only=True, dry_run=True)
    assert jobs.cleans == [wanted]


def test_a_named_job_that_stays_is_a_refusal(zerotools: Command, jobs: FakeService) -> None:
    done = zerotools("clean", "--yes", "1", "2", "9")
    assert done.status == 5
    assert "job 2 (tiny) was kept: it is running" in done.err
    assert "; job 9 does not exist" in done.err
    assert "job 9" not in done.out
    assert "removed: 1 job, 3.0 MiB" in done.out


def test_jobs_are_named_too(zerotools: Command, jobs: FakeService) -> None:
    jobs.add(state="failed", name="other")
    assert zerotools("clean", "--dry-run", "other", "1", "1").status == 0
    assert jobs.cleans[-1].jobs == (4, 1)
    several = zerotools("clean", "--yes", "tiny")
    assert several.status == 2
    assert several.err == "error: jobs 1 2 3 have the name 'tiny'\nhint: give their numbers\n"


def test_what_was_agreed_to_and_stays_is_a_refusal(
    zerotools: Command, jobs: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Between(Keyboard):
        """Somebody else goes on with a job while the question is open."""

        def readline(self, *_: object) -> str:
            jobs.change(3, state="queued")
            return "y\n"

    monkeypatch.setattr("sys.stdin", Between())
    done = zerotools("clean")
    assert done.status == 5
    assert "job 3 (tiny) was kept: it is queued" in done.err


def test_what_somebody_else_removes_meanwhile_is_done(
    zerotools: Command, jobs: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Between(Keyboard):
        """Another clean, while the question is open."""

        def readline(self, *_: object) -> str:
            del jobs.views[3]
            return "y\n"

    monkeypatch.setattr("sys.stdin", Between())
    done = zerotools("clean")
    assert (done.status, done.err) == (0, "")
    assert done.out.endswith("removed: 1 job, 3.0 MiB\n")


def test_a_daemon_that_goes_away_leaves_word_of_what_is_gone(
    zerotools: Command, jobs: FakeService
) -> None:
    async def fail_at_the_second(request: CleanRequest, *, uid: int, of: int | None) -> Cleaned:
        if request.jobs == (3,):
            raise Unavailable("the queue's disk says: full")
        return await FakeService.clean(jobs, request, uid=uid, of=of)

    jobs.clean = fail_at_the_second  # type: ignore[method-assign]  # for this test
    done = zerotools("clean", "--yes")
    assert done.status == 5
    assert "the queue's disk says: full" in done.err
    assert done.out.endswith("removed: 1 job, 3.0 MiB\n")


def test_outputs_are_named_one_by_one(zerotools: Command, jobs: FakeService) -> None:
    assert "name the jobs that wrote them" in zerotools("clean", "--outputs", "--yes").err
    done = zerotools("clean", "--outputs", "--yes", "1")
    assert "record, logs, events, and ALL OF /state/jobs/1/output" in done.out
    assert zerotools("clean", "--outputs", "--logs-only", "1", "--yes").status == 2


def test_a_span_that_is_none(zerotools: Command, jobs: FakeService) -> None:
    done = zerotools("clean", "--dry-run", "--older-than", "soon")
    assert done.status == 2
    assert "--older-than soon: must be a number of seconds, or a time" in done.err


def test_many_that_stay_are_counted(
    zerotools: Command, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(13):
        service.add(state="running", name="tiny")
    done = zerotools("clean", "--dry-run", *map(str, range(1, 14)), "99")
    assert done.out.startswith("there is nothing to remove\nkept: job 1 (tiny): it is running;")
    assert "kept: 3 more jobs; --json lists them all" in done.out
    assert Cleaned(jobs=(), kept=()).to_json() == {"jobs": [], "kept": []}


def test_it_removes_jobs_of_slurm(
    zerotools: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("ZEROTOOLS_SLURM_DIR", str(home))
    found, _ = submit_job(programs(tmp_path), home, job({}))
    end = {"state": "succeeded", "reason": None, "time": 1.0}
    write_record(found.submission_path(1) / END, end)
    assert "slurm:4711  job   succeeded" in zerotools("clean", "--dry-run", "slurm:4711").out
    done = zerotools("clean", "--yes", "slurm:4711")
    assert (done.status, done.err) == (0, "")
    assert "removed: 1 job, " in done.out
    assert not list(home.iterdir())

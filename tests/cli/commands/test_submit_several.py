"""Several jobs in one command: all are checked, also against one another, before one is queued."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.cli.commands.test_submit import JOB
from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import a_job
from zerotools.cli.job_actions.daemon_submission import queue_all
from zerotools.cli.main import build, run
from zerotools.core.errors import (
    AnswerLost,
    BadRequest,
    DaemonRefused,
    DaemonUnreachable,
)
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.client.submission_conflicts import Submission, submission_conflicts
from zerotools.jobs.jobfile_tables.spec import JobSpec


class Picky(FakeService):
    """A daemon that refuses the jobs of some names, at once or only when they are submitted."""

    refused: Sequence[str] = ()
    late: Sequence[str] = ()

    async def submit(self, spec: JobSpec, **keywords: Any):  # type: ignore[no-untyped-def]
        if spec.name in (*self.refused, *self.late):
            raise BadRequest("data.text = a.txt: no file matches")
        return await super().submit(spec, **keywords)

    async def check(self, spec: JobSpec, **keywords: Any):  # type: ignore[no-untyped-def]
        if spec.name in self.refused:
            raise BadRequest("data.text = a.txt: no file matches")
        return await super().check(spec, **keywords)


@pytest.fixture
def service(tmp_path: Path) -> Picky:
    return Picky(tmp_path / "state")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """a.toml, b.toml and c.toml, of jobs a, b and c."""
    paths = [tmp_path / f"{name}.toml" for name in "abc"]
    for path in paths:
        path.write_text(f'name = "{path.stem}"\n{JOB}')
    return [str(path) for path in paths]


def test_nothing_is_queued_if_the_daemon_refuses_one(
    zerotools: Command, service: Picky, files: list[str]
) -> None:
    service.refused = "bc"
    done = zerotools("submit", *files)
    assert done == (
        2,
        "",
        f"error: {files[1]}: data.text = a.txt: no file matches\n"
        f"error: {files[2]}: data.text = a.txt: no file matches\n",
    )
    assert service.views == {}


def test_each_queued_job_is_announced(zerotools: Command, files: list[str]) -> None:
    done = zerotools("submit", *files)
    assert [line.split(":")[0] for line in done.out.splitlines()[:3]] == [
        f"job {number} ({name}) is queued" for number, name in enumerate("abc", start=1)
    ]


def test_what_is_refused_late_leaves_word_of_the_others(
    zerotools: Command, service: Picky, files: list[str]
) -> None:
    service.late = "b"
    done = zerotools("submit", *files)
    assert done.status == 2
    assert done.out == "job 1 (a) is queued: 2 ranks on CPU, ZeRO stage 3, 40 steps\n"
    assert done.err == (
        f"queued: {files[0]} (job 1); not queued: {files[1]}, {files[2]}\n"
        f"error: {files[1]}: data.text = a.txt: no file matches\n"
    )
    as_json = zerotools("submit", "--json", *files)
    assert [job["name"] for job in json.loads(as_json.out)["jobs"]] == ["a"]


def test_the_file_of_a_single_refused_job_is_named(
    zerotools: Command, service: Picky, files: list[str]
) -> None:
    service.late = "b"
    done = zerotools("submit", files[1])
    assert done.err == f"error: {files[1]}: data.text = a.txt: no file matches\n"


class Breaking(DaemonClient):
    """A daemon that goes away, or refuses, at the second job."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.keys: list[str | None] = []

    def submit(
        self,
        spec: JobSpec,
        *,
        idempotency_key: str | None = None,
        terms: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        self.keys.append(idempotency_key)
        if len(self.keys) > 1:
            raise self.error
        return {"id": 7}


def three() -> list[Submission]:
    return [Submission(f"{name}.toml", a_job(name=name)) for name in "abc"]


def test_a_connection_that_drops_between_two_says_which_were_queued(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = Breaking(AnswerLost("the daemon broke off the connection"))
    told: list[dict[str, Any]] = []
    with pytest.raises(DaemonUnreachable, match=r"^the daemon broke off"):
        queue_all(client, three(), told.append)
    assert told == [{"id": 7}]
    assert client.keys[1] == client.keys[2], "asked again, under the same key"
    assert capsys.readouterr().err == (
        "queued: a.toml (job 7); may be queued (see zerotools queue): b.toml; not queued: c.toml\n"
    )


def test_a_job_whose_answer_is_lost_may_be_queued(capsys: pytest.CaptureFixture[str]) -> None:
    class Going(Breaking):
        """A daemon that takes the first request and is gone at the second."""

        def submit(
            self,
            spec: JobSpec,
            *,
            idempotency_key: str | None = None,
            terms: Mapping[str, Any] = MappingProxyType({}),
        ) -> dict[str, Any]:
            self.keys.append(idempotency_key)
            raise DaemonUnreachable("nothing answers") if len(self.keys) > 1 else self.error

    client = Going(AnswerLost("the daemon broke off the connection"))
    with pytest.raises(AnswerLost, match="the daemon broke off"):
        queue_all(client, three()[:1], lambda _: None)
    warned = "warning: a.toml may be queued; see zerotools queue --all\n"
    assert capsys.readouterr().err == warned
    with pytest.raises(DaemonUnreachable, match="nothing answers"):
        queue_all(client, three()[:1], lambda _: None)
    assert capsys.readouterr().err == ""
    with pytest.raises(KeyboardInterrupt):
        queue_all(Going(KeyboardInterrupt()), three()[:1], lambda _: None)
    assert capsys.readouterr().err == warned


def test_a_refusal_keeps_its_kind(capsys: pytest.CaptureFixture[str]) -> None:
    client = Breaking(DaemonRefused("job 7 writes there", status=409, code="conflict"))
    with pytest.raises(DaemonRefused, match=r"^b\.toml: job 7 writes there$") as info:
        queue_all(client, three(), lambda _: None)
    assert (info.value.status, info.value.code) == (409, "conflict")


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"output_dir": "out"}, {"output_dir": "out"}, "a writes there too; name another"),
        ({"output_dir": "out"}, {"output_dir": "link"}, "a writes there too; name another"),
        ({"output_dir": "out"}, {"resume_from": "out"}, "a writes checkpoints there, so this path"),
        (
            {"output_dir": "out"},
            {"resume_from": "link/latest"},
            "a writes checkpoints there, so this path",
        ),
        (
            {"output_dir": "out"},
            {"resume_from": "out/step-00000099"},
            "a writes checkpoints there, so this path",
        ),
        ({"output_dir": "out"}, {"resume_from": "out/step-00000040"}, None),
        ({"output_dir": "out", "resume_from": "out"}, {"output_dir": "b"}, None),
        ({"output_dir": "out"}, {"output_dir": "out2", "resume_from": "out2"}, None),
        ({}, {}, None),
    ],
)
def test_jobs_of_one_command_do_not_disturb_one_another(
    tmp_path: Path, first: dict[str, str], second: dict[str, str], said: str | None
) -> None:
    (tmp_path / "out" / "step-00000040").mkdir(parents=True)
    (tmp_path / "link").symlink_to("out")
    jobs = [
        Submission(name, a_job(**{key: str(tmp_path / value) for key, value in changes.items()}))
        for name, changes in (("a", first), ("b", second))
    ]
    found = [str(clash) for clash in submission_conflicts(jobs)]
    if said is None:
        assert found == []
    else:
        (only,) = found
        assert only.startswith("b: ")
        assert said in only


def test_a_clash_is_said_without_a_daemon_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / f"{name}.toml" for name in "ab"]
    for path in paths:
        path.write_text('output_dir = "out"\n' + JOB)
    nobody = str(tmp_path / "none.sock")
    assert run(build(), ["submit", "--dry-run", "--socket", nobody, *map(str, paths)]) == 2
    assert f"{paths[1]}: output_dir = {tmp_path}/out: {paths[0]} writes there too" in (
        capsys.readouterr().err
    )

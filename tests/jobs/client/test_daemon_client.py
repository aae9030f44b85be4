"""The client against nobody, against strangers, and against a daemon that breaks off."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import zerotools
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import JOB, a_job, a_view
from tests.daemon.http.api.serving import serving
from zerotools.core.errors import BadRequest, DaemonRefused, DaemonUnreachable
from zerotools.jobs.client import daemon_compatibility
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.interface.api_types import JobView


@contextmanager
def answering(path: Path, *answers: bytes) -> Iterator[DaemonClient]:
    """Something that gives these bytes to those who connect, one after the other."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        for answer in answers:
            link, _ = server.accept()
            with link:
                _read_request(link)
                link.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield DaemonClient(path, timeout_seconds=10)
    finally:
        thread.join(10)
        server.close()


def _read_request(link: socket.socket) -> None:
    """All of it: who is answered too early cannot send the rest."""
    with link.makefile("rb") as request:
        headers = list(iter(request.readline, b"\r\n"))
        lengths = [line.split(b":")[1] for line in headers if line.startswith(b"Content-Length")]
        request.read(int(lengths[0]) if lengths else 0)


def http_answer(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


def test_nobody_there(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with pytest.raises(DaemonUnreachable, match="is zerotoolsd running") as error:
        DaemonClient(path).health()
    assert str(path) in str(error.value)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.close()
    with pytest.raises(DaemonUnreachable, match="is zerotoolsd running"):
        DaemonClient(path).health()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n", "closed the connection"),
        (http_answer("200 OK", b"<html>"), "is not zerotoolsd"),
        (http_answer("200 OK", b"[1]"), "is not zerotoolsd"),
        (http_answer("500 Oops", b"<html>"), "is not zerotoolsd"),
    ],
)
def test_strangers(tmp_path: Path, answer: bytes, said: str) -> None:
    with (
        answering(tmp_path / "s", answer) as client,
        pytest.raises(DaemonUnreachable, match=said),
    ):
        client.health()


def test_a_refusal_keeps_its_status_and_code(tmp_path: Path) -> None:
    body = b'{"status": 409, "code": "conflict", "detail": "job 3 is over"}'
    with (
        answering(tmp_path / "s", http_answer("409 Conflict", body)) as client,
        pytest.raises(DaemonRefused, match="job 3 is over") as refusal,
    ):
        client.cancel(3)
    assert (refusal.value.status, refusal.value.code) == (409, "conflict")


def test_silence_is_given_up(tmp_path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "s"))
    server.listen()
    with pytest.raises(DaemonUnreachable, match="did not answer within"):
        DaemonClient(tmp_path / "s", timeout_seconds=0.05).health()
    server.close()


def test_which_of_the_two_is_to_be_upgraded_is_said_where_one_cannot_read_the_other(
    tmp_path: Path,
) -> None:
    service = FakeService(tmp_path)
    mine = zerotools.__version__
    client = DaemonClient(tmp_path / "api.sock")
    health: dict[str, Any] = {"version": "0.0.9", "pid": 1, "schema": 1, "uptime_seconds": 1.0}
    service.health = lambda: health  # type: ignore[method-assign]
    with serving(service, tmp_path / "api.sock"):
        service.error = BadRequest("job: train.later: unknown key")
        older = r"unknown key; the daemon is an older zerotoolsd \(0\.0\.9\): upgrade it and"
        with pytest.raises(BadRequest, match=older):
            client.submit(a_job())
        health = {**health, "version": "99.1", "api_versions": [1]}
        with pytest.raises(BadRequest, match=r"unknown key; .*: upgrade this zerotools to 99\.1"):
            client.check(a_job())
        health = {**health, "version": "0.0.9"}
        older = f"zerotoolsd 0.0.9 and this is zerotools {mine}: upgrade the daemon and restart it"
        with pytest.raises(BadRequest, match=re.escape(older)):
            client.check(a_job())
        health = {**health, "version": mine}
        with pytest.raises(BadRequest, match=r"unknown key$"):
            client.submit(a_job())
        service.error = BadRequest("data.text: there is no file /x")
        health = {**health, "version": "99.1"}
        with pytest.raises(BadRequest, match=r"no file /x$"):
            client.submit(a_job())
        with pytest.raises(DaemonRefused, match=r"v1/later.*; the daemon is zerotools"):
            client._object("GET", "/v1/later")


def test_a_daemon_that_says_no_api_version_speaks_the_first_one() -> None:
    assert daemon_compatibility.api_versions({"version": "0.1.0"}) == (1,)
    later = {"version": "0.1.0", "api_versions": [2, 3]}
    assert str(daemon_compatibility.which_to_upgrade(later, "0.9")).endswith(
        "upgrade this zerotools to 0.1.0"
    )
    older = str(daemon_compatibility.which_to_upgrade({"version": "0.1.0"}, "0.1.0"))
    assert older.startswith("the daemon is an older zerotoolsd (0.1.0): upgrade it")
    same = {"version": "0.1.0", "api_versions": [1]}
    assert daemon_compatibility.which_to_upgrade(same, "0.1.0") is None


def test_what_an_older_daemon_has_not_is_said_to_need_an_upgrade(tmp_path: Path) -> None:
    refusal = b'{"status": 404, "code": "no_such_path", "detail": "there is nothing at /v1/clean"}'
    old = http_answer("200 OK", b'{"version": "0.1.0"}')
    with (
        answering(tmp_path / "s", http_answer("404 Not Found", refusal), old) as client,
        pytest.raises(DaemonRefused, match="nothing at /v1/clean; the daemon is an older zerot"),
    ):
        client.clean({})


def test_an_older_daemon_checks_all_but_the_model(tmp_path: Path) -> None:
    refusal = b'{"status": 400, "code": "bad_request", "detail": "unknown key \'model\'"}'
    old = http_answer("200 OK", b'{"version": "0.1.0"}')
    answers = (http_answer("400 Bad Request", refusal), old, old, old, http_answer("200 OK", b"{}"))
    with answering(tmp_path / "s", *answers) as client:
        (note,) = client.check(a_job(), model=True)
    assert note.startswith("the model was not built, because the daemon is an older zerotoolsd")


def test_an_older_daemon_has_no_jobs_in_a_state_that_it_does_not_know(tmp_path: Path) -> None:
    refusal = b'{"status": 400, "code": "bad_request", "detail": "state=held: must be one of"}'
    old = b'{"version": "0.1.0", "pid": 1, "schema": 1, "uptime_seconds": 1.0}'
    answers = [http_answer("400 Bad Request", refusal), http_answer("200 OK", old)]
    with answering(tmp_path / "s", *answers) as client:
        assert client.jobs(state="held") == []


def test_only_what_was_set_is_sent(tmp_path: Path) -> None:
    service = FakeService(tmp_path)
    seen: list[JobSpec] = []

    async def submit(spec: JobSpec, **_: object) -> tuple[JobView, bool]:
        seen.append(spec)
        return a_view(1, spec), True

    service.submit = submit  # type: ignore[method-assign]
    job = {**JOB, "max_restarts": 3, "train": {**JOB["train"], "momentum": 0.9}}
    spec = replace(job_from_dict(job, source="job"), name="renamed")
    with serving(service, tmp_path / "api.sock"):
        DaemonClient(tmp_path / "api.sock").submit(spec)
    assert seen == [spec]
    assert seen[0].given == {**job, "name": "renamed"}


def test_states_of_one_release_have_no_order() -> None:
    health = {"version": "0.3.0.dev0+gfffffffff", "api_versions": [1]}
    other = str(daemon_compatibility.which_to_upgrade(health, "0.3.0.dev0+g111111111"))
    assert "built from another commit: restart the daemon from this installation" in other
    assert daemon_compatibility.which_to_upgrade(health, "0.3.0.dev0+gfffffffff") is None
    later = str(daemon_compatibility.which_to_upgrade(health, "0.3.0"))
    assert later.endswith("upgrade the daemon and restart it (running jobs continue)")
    earlier = str(daemon_compatibility.which_to_upgrade(health, "0.2.0"))
    assert earlier.endswith("upgrade this zerotools to 0.3.0.dev0+gfffffffff")

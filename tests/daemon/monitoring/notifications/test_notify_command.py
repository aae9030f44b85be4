"""Programs that are told: what they get, and that they end."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.daemon.queue.tables.test_notice_outbox import a_notice
from zerotools.core.errors import BadRequest
from zerotoolsd.monitoring.notifications.message_formats import NotDelivered
from zerotoolsd.monitoring.notifications.notify_command import CommandRunner
from zerotoolsd.users.served_users import ServedUsers

BODY = json.dumps({"text": "job 7 has failed"})


def run(*argv: str, seconds: float = 20.0) -> None:
    notice = a_notice(target=json.dumps(argv), body=BODY, job_id=7, uid=os.geteuid())
    asyncio.run(CommandRunner(seconds).send(notice))


def test_a_program_gets_the_notice_and_nothing_of_the_daemons_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAEMONS_SECRET", "hunter2")
    out = tmp_path / "out"
    script = f"cat > {out}.json; env > {out}.env; pwd > {out}.pwd; cat /proc/self/status > {out}.st"
    run("sh", "-c", script)
    assert Path(f"{out}.json").read_text() == BODY
    environment = dict(line.split("=", 1) for line in Path(f"{out}.env").read_text().splitlines())
    assert environment["ZEROTOOLS_TEXT"] == "job 7 has failed"
    assert (environment["ZEROTOOLS_JOB"], environment["ZEROTOOLS_NOTICE"]) == ("7", "failed")
    assert environment["ZEROTOOLS_NOTICE_ID"] == "k"
    assert "hunter2" not in str(environment)
    assert Path(f"{out}.pwd").read_text() == "/\n"
    assert "NoNewPrivs:\t1" in Path(f"{out}.st").read_text()


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("sh", "-c", "exit 3"), "sh ended with status 3"),
        (("/no/such/program",), "/no/such/program ended with status 127"),
    ],
)
def test_a_program_that_fails(argv: tuple[str, ...], why: str) -> None:
    with pytest.raises(NotDelivered, match=why):
        run(*argv)


def test_a_text_that_is_not_unicode_is_told_all_the_same(tmp_path: Path) -> None:
    body = json.dumps({"text": "rank 0: \ud800"})
    target = json.dumps(("sh", "-c", f'echo "$ZEROTOOLS_TEXT" > {tmp_path}/out'))
    notice = a_notice(target=target, body=body, uid=os.geteuid())
    asyncio.run(CommandRunner(20.0).send(notice))
    assert (tmp_path / "out").read_text() == "rank 0: ?\n"


def test_a_program_that_does_not_end_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(NotDelivered, match="did not end within"):
        run("sh", "-c", f"echo $$ > {pid}; exec sleep 1000", seconds=0.5)
    if pid.exists():  # else it was too slow to begin
        assert not Path(f"/proc/{pid.read_text().strip()}").exists()


@pytest.mark.parametrize("end", ["exit 0", "sleep 1000"])
def test_nothing_that_it_has_started_outlives_it(tmp_path: Path, end: str) -> None:
    script = f"setsid sh -c 'echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 99'"
    script = f"({script} &) ; while [ ! -e {tmp_path}/pid ]; do :; done; {end}"
    with suppress(NotDelivered):
        run("sh", "-c", script, seconds=20.0 if end == "exit 0" else 2.0)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_user_that_there_is_not_is_told_nothing() -> None:
    users = ServedUsers(own=0, alone=None)
    notice = a_notice(target=json.dumps(["true"]), body=BODY, uid=2**31 - 5)
    with pytest.raises(BadRequest, match="is not a user of this machine"):
        asyncio.run(CommandRunner(20.0, users).send(notice))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_runs_it_as_the_jobs_user() -> None:
    users = CommandRunner(20.0, ServedUsers(own=0, alone=None))
    with TemporaryDirectory() as place:  # pytest's own are closed to others
        Path(place).chmod(0o777)
        argv = ["sh", "-c", f"id > {place}/id; grep NoNewPrivs /proc/self/status >> {place}/id"]
        asyncio.run(users.send(a_notice(target=json.dumps(argv), body=BODY, uid=65534)))
        said = (Path(place) / "id").read_text()
    assert said.startswith("uid=65534(")
    assert "0(root)" not in said
    assert "NoNewPrivs:\t1" in said

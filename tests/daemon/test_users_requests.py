"""What one user asks of a daemon of root about the jobs of others, by the real socket: one daemon
for all rows. Bert asks; anna and root have the jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.daemon.daemons import CONFIG, daemon_in, make_job
from tests.daemon.test_users import Machine
from tests.daemon.users.other_users import AS_ROOT, made_users, open_directory, open_interpreter
from zerotools.jobs.jobfile.parse import given_of
from zerotoolsd.users.account import Account

pytestmark = AS_ROOT
ASK = """
import http.client, json, socket, sys
answers = []
for method, path, body, headers in json.load(sys.stdin):
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(30)
    link.connect(sys.argv[1])
    if method == "RAW":
        link.sendall(path.encode())
        data = b""
        while b"data: " not in data and b"}" not in data:
            data += link.recv(1 << 16)
        answers.append([int(data.split()[1]), data.decode(), {}])
        continue
    asked = http.client.HTTPConnection("localhost")
    asked.sock = link
    asked.request(method, path, None if body is None else json.dumps(body), headers)
    got = asked.getresponse()
    answers.append([got.status, got.read().decode(), dict(got.headers)])
    asked.close()
print(json.dumps(answers))
"""
OF_THREE = "{state}/jobs/3/output"
SECRETS = ("thesis", "annas-out", "hang save", "private words", "release")
"""A name, a path, a value of the environment and output of anna's and root's jobs."""
ROOTS, RUNNING, OVER, OWN = 1, 2, 3, 4
"""The jobs: root's, anna's two, and bert's own."""


@dataclass(frozen=True)
class Row:
    """A request of bert's, the statuses that are right, and words that the answer has. `{...}` in
    paths and bodies are names of users and directories."""

    name: str
    method: str
    path: str
    statuses: tuple[int, ...]
    body: Any = None
    said: str = ""
    headers: tuple[tuple[str, str], ...] = ()


def job(**keys: Any) -> dict[str, Any]:
    return {"job": {**given_of(make_job("exit=0")), **keys}}


FORBIDDEN, MISSING = (403,), (404,)
ROWS = (
    Row("list", "GET", "/v1/jobs", (200,), said='"masked": true'),
    Row("list-of-anna", "GET", "/v1/jobs?user={anna}", (200,), said='"masked": true'),
    Row("list-of-uid", "GET", "/v1/jobs?user={anna_uid}", (200,), said='"masked": true'),
    Row("name", "GET", "/v1/jobs?name=thes%69s", (200,), said='{"jobs": [], "next": null}'),
    Row("name-page", "GET", "/v1/jobs?name=thes%69s&limit=1", (200,), said='"next": null'),
    Row("name-of", "GET", "/v1/jobs?name=thes%69s&user={anna}", (200,), said='"jobs": []'),
    Row("show-anna", "GET", "/v1/jobs/2", (200,), said='"masked": true'),
    Row("show-root", "GET", "/v1/jobs/1", (200,), said='"masked": true'),
    Row("show-own", "GET", "/v1/jobs/4", (200,), said='"masked": false'),
    Row("logs", "GET", "/v1/jobs/2/logs", FORBIDDEN, said="job 2 belongs to {anna}"),
    Row("logs-from-end", "GET", "/v1/jobs/2/logs?offset=-99", FORBIDDEN),
    Row("logs-of-zeros", "GET", "/v1/jobs/002/logs", FORBIDDEN),
    Row("logs-attempt", "GET", "/v1/jobs/3/logs?attempt=1&rank=1", FORBIDDEN),
    Row("logs-slash", "GET", "/v1/jobs/2%2Flogs", MISSING),
    Row("logs-dots", "GET", "/v1/jobs/4/../2/logs", MISSING),
    Row("logs-double", "GET", "//v1/jobs/2/logs", MISSING),
    Row("logs-head", "HEAD", "/v1/jobs/2/logs", FORBIDDEN),
    Row("progress", "GET", "/v1/jobs/3/progress", FORBIDDEN),
    Row("explain", "GET", "/v1/jobs/2/explain", FORBIDDEN),
    Row("cancel", "POST", "/v1/jobs/2/cancel", FORBIDDEN),
    Row("cancel-root", "POST", "/v1/jobs/1/cancel", FORBIDDEN, said="belongs to root (uid 0)"),
    Row("cancel-by-get", "GET", "/v1/jobs/2/cancel", (405,)),
    Row(
        *("cancel-override", "GET", "/v1/jobs/2/cancel", (405,)),
        headers=(("X-HTTP-Method-Override", "POST"),),
    ),
    Row(
        *("cancel-token", "POST", "/v1/jobs/2/cancel", FORBIDDEN),
        headers=(("Authorization", "Bearer " + "0" * 32), ("X-Remote-User", "root")),
    ),
    Row("cancel-uid", "POST", "/v1/jobs/2/cancel?uid=0", (400,)),
    Row("cancel-negative", "POST", "/v1/jobs/-2/cancel", MISSING),
    Row("resume", "POST", "/v1/jobs/3/resume", FORBIDDEN),
    Row("priority", "POST", "/v1/jobs/2/priority", FORBIDDEN, {"priority": 5}),
    Row("hold", "POST", "/v1/jobs/2/hold", FORBIDDEN, said="belongs to {anna}"),
    Row("release", "POST", "/v1/jobs/2/release", FORBIDDEN),
    Row("pause", "POST", "/v1/jobs/2/pause", FORBIDDEN, {"lose_steps": True}),
    Row("pause-body", "POST", "/v1/jobs/2/pause", FORBIDDEN, {"lose_steps": 3}),
    Row("unpause", "POST", "/v1/jobs/2/unpause", FORBIDDEN),
    Row("edit", "POST", "/v1/jobs/2/edit", FORBIDDEN, {"set": {"name": "x"}}),
    Row("edit-unset", "POST", "/v1/jobs/2/edit", FORBIDDEN, {"unset": ["output_dir"]}),
    Row("retry", "POST", "/v1/jobs/3/retry", FORBIDDEN, {"output_dir": "/tmp/x"}),
    Row("drain", "POST", "/v1/drain", FORBIDDEN, {"why": "x"}, "only administrators may drain"),
    Row("undrain", "POST", "/v1/undrain", FORBIDDEN),
    Row("none-there", "POST", "/v1/jobs/99/pause", MISSING, {}, "job 99 does not exist"),
    Row(
        "after",
        "POST",
        "/v1/jobs",
        (400,),
        {**job(), "after": [{"job": RUNNING}]},
        "job 2 does not exist,",
    ),
    Row(
        "after-none",
        "POST",
        "/v1/jobs",
        (400,),
        {**job(), "after": [{"job": 99}]},
        "job 99 does not exist,",
    ),
    Row("shares", "GET", "/v1/shares", (200,), said='"users"'),
    Row("health", "GET", "/v1/health", (200,)),
    Row("list-array", "GET", "/v1/jobs?array=2", (200,), said='"jobs": []'),
    Row("list-all", "GET", "/v1/jobs?limit=1000", (200,), said='"masked": true'),
    Row("clean", "POST", "/v1/clean", (200,), {"jobs": [OVER]}, "it belongs to {anna}"),
    Row("clean-all", "POST", "/v1/clean", (200,), {}, '{"jobs": [{"id": 4'),
    Row("clean-outputs", "POST", "/v1/clean", (200,), {"jobs": [3], "outputs": True}, '"jobs": []'),
    Row("clean-logs", "POST", "/v1/clean", (200,), {"logs_only": True}, '"jobs": []'),
    Row("clean-forged", "POST", "/v1/clean", (400,), {"of": None}),
    Row("events", "GET", "/v1/events", (200,), said='"why": null'),
    Row("stream", "RAW", "GET /v1/events/stream HTTP/1.1\r\nHost: x\r\n\r\n", (200,)),
    Row(
        *("stream-last", "RAW"),
        "GET /v1/events/stream HTTP/1.1\r\nHost: x\r\nLast-Event-ID: 1\r\n\r\n",
        (200,),
    ),
    Row("machine", "GET", "/v1/machine", (200,), said='"leases"'),
    Row("metrics", "GET", "/metrics", (200,)),
    Row("submit-uid", "POST", "/v1/jobs", (400,), {**job(), "uid": 0}),
    Row("submit-user", "POST", "/v1/jobs", (400,), job(user="root")),
    Row("submit-priority", "POST", "/v1/jobs", (403, 400), {**job(), "priority": 10**9}),
    Row("submit-over", "POST", "/v1/jobs", (400, 403, 409, 422), job(output_dir="{out}")),
    Row("submit-below", "POST", "/v1/jobs", (400, 403, 422), job(output_dir=OF_THREE)),
    Row("resume-from", "POST", "/v1/jobs", (400, 403, 422), job(resume_from="{out}")),
    Row("resume-own", "POST", "/v1/jobs", (400, 403, 422), job(resume_from=OF_THREE)),
    Row(
        *("read-log", "POST", "/v1/check", (400, 403, 422)),
        job(data={"text": ["{state}/jobs/3/attempt-1/rank-0.log"]}),
    ),
    Row(
        *("read-queue", "POST", "/v1/check", (400, 403, 422)),
        job(data={"text": ["{state}/zerotools.db"]}),
    ),
)


@dataclass(frozen=True)
class Asked:
    """What bert was answered, by row, and the machine."""

    answers: dict[str, tuple[int, str]]
    names: dict[str, str]
    before: list[Any]
    after: list[Any]
    key_twice: tuple[dict[str, Any], dict[str, Any]]


def ask(machine: Machine, user: Account, rows: list[list[Any]]) -> list[Any]:
    socket = machine.daemon.state / "api.sock"
    said = machine.as_user(user, machine.daemon.python, "-c", ASK, socket, said=json.dumps(rows))
    return list(json.loads(said))


def state_of(machine: Machine) -> list[Any]:
    jobs = [machine.daemon.client.job(number) for number in (ROOTS, RUNNING, OVER)]
    kept = ("id", "state", "uid", "name", "reason", "priority", "output_dir", "set_keys")
    # What a running job's supervisor writes meanwhile is its own: only files of one that is over
    # stand still.
    over = machine.daemon.state / "jobs" / str(OVER)
    return [
        *({key: each[key] for key in kept} for each in jobs),
        sorted(path.name for path in over.rglob("*.json")),
        *(_is_written(machine, number) for number in (ROOTS, RUNNING)),
    ]


def _is_written(machine: Machine, job: int) -> list[bool]:
    attempt = machine.daemon.state / "jobs" / str(job) / "attempt-1"
    return [(attempt / name).exists() for name in ("spec.json", "rank-0.log", "exit.json", "stop")]


def filled(value: Any, names: dict[str, str]) -> Any:
    """With names in their places."""
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(f"{{{name}}}", text)
        return value
    if isinstance(value, dict):
        return {key: filled(each, names) for key, each in value.items()}
    return [filled(each, names) for each in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    with open_directory() as place, made_users(2) as users:
        python = open_interpreter(place)
        with daemon_in(place / "state", CONFIG) as daemon:
            daemon.python = python
            daemon.start()
            (daemon.state / "api.sock").chmod(0o666)
            machine = Machine(daemon, users)
            yield story(machine)


def story(machine: Machine) -> Asked:
    daemon, anna, bert = machine.daemon, machine.anna, machine.bert
    out = machine.home(anna) / "annas-out"
    assert daemon.client.submit(make_job("hang", name="thesis-of-root"))["id"] == ROOTS
    hers = given_of(make_job("hang save=1", name="thesis", output_dir=str(out)))
    body = {"job": hers, "idempotency_key": "one"}
    over = {"job": given_of(make_job("exit=64", name="thesis"))}
    posts = [["POST", "/v1/jobs", each, {}] for each in (body, over)]
    assert [answer[0] for answer in ask(machine, anna, posts)] == [201, 201]
    daemon.wait_for_state(ROOTS, "running")
    daemon.wait_for_state(RUNNING, "running")
    daemon.wait_for_end(OVER)
    own = {"job": given_of(make_job("exit=0")), "idempotency_key": "one"}
    (mine,) = ask(machine, bert, [["POST", "/v1/jobs", own, {}]])
    daemon.wait_for_end(OWN)
    names = {
        "anna": anna.name,
        "anna_uid": str(anna.uid),
        "out": str(out),
        "state": str(daemon.state),
    }
    before = state_of(machine)
    rows = [[row.method, *filled([row.path, row.body], names), dict(row.headers)] for row in ROWS]
    got = ask(machine, bert, rows)
    answers = {row.name: (status, data) for row, (status, data, _) in zip(ROWS, got, strict=True)}
    (again,) = ask(machine, anna, [["POST", "/v1/jobs", body, {}]])
    key_twice = (json.loads(mine[1]), json.loads(again[1]))
    return Asked(answers, names, before, state_of(machine), key_twice)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_bert_is_answered(row: Row, asked: Asked) -> None:
    status, data = asked.answers[row.name]
    assert status in row.statuses, data
    assert filled(row.said, asked.names) in data
    own = [filled(each, asked.names) for each in json.dumps(row.body).split('"')] + [row.path]
    hidden = [word for word in SECRETS if word in data and not any(word in each for each in own)]
    assert hidden == [], data


def test_nothing_of_the_others_was_changed(asked: Asked) -> None:
    assert asked.before == asked.after


def test_a_key_of_another_user_is_another_key(asked: Asked) -> None:
    mine, hers = asked.key_twice
    assert (mine["id"], hers["id"]) == (OWN, RUNNING)
    assert hers["name"] == "thesis"

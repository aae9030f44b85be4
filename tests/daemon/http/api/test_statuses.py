"""Each operation of the document answers the statuses that it lists, and no others.

A real service with a real server behind a Unix socket and a TCP port is asked for all of them.
"""

from __future__ import annotations

import asyncio
import copy
import io
import json
import os
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest

from harness.started import Started
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.http.api.answer_log import AnswerLog, documented_statuses
from tests.daemon.http.api.fake_page import FakePage
from tests.daemon.http.api.test_bearer_tokens import ANNA, written
from tests.daemon.waiting import wait_for
from zerotools.jobs.jobfile.parse import given_of
from zerotoolsd.config.config_tables import ApiConfig
from zerotoolsd.config.notify_config import NoticeDestination, NotifyConfig
from zerotoolsd.http.api.aiohttp_app_keys import JobPage, NoPage
from zerotoolsd.http.api.listening_sockets import open_socket, open_tcp
from zerotoolsd.http.api.openapi.openapi_document import document
from zerotoolsd.http.api.routes import make_app
from zerotoolsd.http.api.server import ApiServer
from zerotoolsd.queue import fault_isolation
from zerotoolsd.queue.schema import DATABASE
from zerotoolsd.service.user_lookup import UserDirectory
from zerotoolsd.users.rights import Caller, Rights

ME, OTHER = os.geteuid(), 4711
LAST = 1
"""A job that is there to the end."""
TOO_LARGE = b" " * (1 << 20) + b"{}"
WRONG_TOKENS = 100
"""Requests without a token; the server looks at one in a second."""


@dataclass(frozen=True)
class Operation:
    """One request of the document."""

    name: str
    method: str
    path: str
    has_body: bool

    def target(self, job_id: int) -> str:
        """Return the path, of this job."""
        return self.path.replace("{id}", str(job_id))


OPERATIONS = {
    tree["operationId"]: Operation(tree["operationId"], method, path, "requestBody" in tree)
    for path, operations in document()["paths"].items()
    for method, tree in operations.items()
}


class FailingPeople(UserDirectory):
    """Users that nobody can look up, because of `error`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    async def find(self, uid: int) -> Caller:
        raise self._error


class Fault:
    """A fault that holds job 1 before it starts, until it is mended."""

    mended = False

    def __call__(self, job_id: int, doing: str) -> None:
        if (job_id, doing) == (1, fault_isolation.NEEDING) and not self.mended:
            raise RuntimeError("a fault")


class Asker:
    """A server over the service, and requests to it. What it answers is noted, and its bodies are
    compared with their schemas."""

    def __init__(self, it: Running, directory: Path, answers: AnswerLog) -> None:
        directory.mkdir(exist_ok=True)
        self._service, self._directory, self._answers = it.service, directory, answers
        self._count = 0

    @asynccontextmanager
    async def serving(
        self,
        rights: Rights | None = None,
        people: UserDirectory | None = None,
        page: JobPage | None = None,
    ) -> AsyncIterator[Asker]:
        """Start a server for the time of the block."""
        self._count += 1
        self._path = self._directory / f"{self._count}.sock"
        tokens = written(self._directory / "tokens", f"{OTHER} {ANNA}")
        door = open_tcp(ApiConfig(listen="127.0.0.1:0", tokens=str(tokens)))
        assert door is not None
        self._port = door.listening.getsockname()[1]
        server = ApiServer(
            make_app(self._service, door.tokens, rights, people, page or FakePage()),
            open_socket(self._path),
            self._path,
            tcp=door,
            close_seconds=0.1,
        )
        self._answers.watch(server._runner.app)
        await server.start()
        try:
            async with (
                aiohttp.ClientSession(
                    "http://localhost", connector=aiohttp.UnixConnector(str(self._path))
                ) as self._own,
                aiohttp.ClientSession(f"http://127.0.0.1:{self._port}") as self._tcp,
            ):
                yield self
        finally:
            await server.close()

    async def ask(
        self,
        name: str,
        status: int | None,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        job: int = 1,
        query: str = "",
        token: str | None = None,
        by_tcp: bool = False,
        **headers: str,
    ) -> Any:
        """Send a request, which must be answered so (None: in any way); return its body."""
        operation = OPERATIONS[name]
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        session = self._tcp if by_tcp or token is not None else self._own
        if body is None:
            data = b"{}" if operation.has_body else b""
        else:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
        target = operation.target(job) + query
        async with session.request(
            operation.method, target, data=io.BytesIO(data) if data else None, headers=headers
        ) as response:
            if name == "streamEvents" and response.status == 200:
                return await response.content.readline()
            found = await response.read()
            assert status in (None, response.status), (name, response.status, found)
            if not response.content_type.endswith("json"):
                return found
        tree = json.loads(found)
        check_body(operation, response.status, tree)
        return tree

    async def send_half(self, name: str, job: int) -> None:
        """Send a request without the body that its head announces, and wait for the answer."""
        reader, writer = await asyncio.open_unix_connection(str(self._path))
        target = OPERATIONS[name].target(job)
        head = f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        writer.write(head.encode())
        assert (await reader.readline()).split()[1] == b"408"
        writer.close()
        await writer.wait_closed()


def check_body(operation: Operation, status: int, tree: Any) -> None:
    """Raise where the body is not as the document says."""
    response = document()["paths"][operation.path][operation.method]["responses"][str(status)]
    if "$ref" in response:
        name = response["$ref"].removeprefix("#/components/responses/")
        response = document()["components"]["responses"][name]
    (content,) = response["content"].values()
    schema = {**content["schema"], "components": document()["components"]}
    jsonschema.validate(tree, schema, jsonschema.Draft202012Validator)


JOB = given_of(make_job("exit=0"))
UNSUPPORTED = copy.deepcopy(JOB) | {"train": {**JOB["train"], "precision": "fp16"}}
FUTURE = {**JOB, "of_a_later_version": 1}
MAIL = NoticeDestination(name="mail", to=("me@example.org",), on=("failed",))
WITH_PLACE = replace(CONFIG, notify=NotifyConfig(places=(MAIL,), sendmail="/bin/true"))


async def hold_new(api: Asker, **more: Any) -> int:
    """Queue a job that is on hold; return its number."""
    return int((await api.ask("submitJob", 201, {"job": JOB, "hold": True, **more}))["id"])


async def over(api: Asker) -> int:
    """Return a job that was cancelled before it started."""
    number = await hold_new(api)
    await api.ask("cancelJob", 202, job=number)
    return number


async def array_of(api: Asker) -> int:
    """Return the first of two jobs on hold that are an array."""
    body = {"job": JOB, "count": 2, "hold": True}
    return int((await api.ask("submitArray", 201, body))["jobs"][0]["id"])


async def do_everything(api: Asker, directory: Path) -> None:
    """Do each thing once that works, and be refused where a job's state forbids it."""
    health = await api.ask("getHealth", 200)
    assert health["drain"] is not None
    for name in ("getMachine", "getShares", "getMetrics", "getOpenApi", "listPeaks", "getHistory"):
        await api.ask(name, 200)
    await api.ask("testNotices", 200)
    await api.ask("createPageLink", 201)
    await api.ask("endPageSessions", 200)
    key = {"job": JOB, "hold": True, "idempotency_key": "once"}
    held = int((await api.ask("submitJob", 201, key))["id"])
    await api.ask("submitJob", 200, key)
    other = {**JOB, "name": "other"}
    await api.ask("submitJob", 409, {"job": other, "idempotency_key": "once"})
    for name in ("submitJob", "submitArray", "checkJob"):
        await api.ask(name, 422, {"job": UNSUPPORTED})
    ended = await over(api)
    after = [{"job": ended}]
    for name in ("submitArray", "checkJob"):
        await api.ask(name, 409, {"job": JOB, "after": after})
    await api.ask("checkJob", 200, {"job": JOB})
    for status, job in ((200, JOB), (422, UNSUPPORTED)):
        await api.ask("importJob", status, {"text": json.dumps(job)})
    await read_all(api, held)
    await api.ask("setJobPriority", 200, {"priority": 3}, job=held)
    await api.ask("editJob", 200, {"set": {"name": "edited"}}, job=held)
    await api.ask("editJob", 422, {"set": {"train.precision": "fp16"}}, job=held)
    await api.ask("releaseJob", 200, job=held)
    await api.ask("holdJob", 200, job=held)
    await api.ask("releaseJob", 200, job=held)
    await api.ask("pauseJob", 202, job=held)
    await api.ask("unpauseJob", 200, job=held)
    await api.ask("resumeJob", 201, job=ended)
    again = {"output_dir": str(directory / "again")}
    await api.ask("retryJob", 201, again, job=ended)
    await be_refused_by_state(api, held, ended)
    await change_arrays(api, directory)
    await api.ask("cleanJobs", 200, {"jobs": [ended]})
    await adopt(api)


async def read_all(api: Asker, job: int) -> None:
    for name in ("listJobs", "getJob"):
        await api.ask(name, 200, job=job)
        async with api._own.get(OPERATIONS[name].target(job)) as answer:
            tag = answer.headers["ETag"]
        await api.ask(name, 304, job=job, **{"If-None-Match": tag})
    for name in (
        *("explainJob", "readLog", "readProgress", "listEvents", "streamEvents"),
        *("getCurves", "listCheckpoints", "listPredictions", "listExamples"),
    ):
        await api.ask(name, 200, job=job)


async def be_refused_by_state(api: Asker, waits: int, ended: int) -> None:
    await api.ask("setJobPriority", 409, {"priority": 3}, job=ended)
    for name in ("cancelJob", "holdJob", "releaseJob", "pauseJob", "unpauseJob", "editJob"):
        body = {"set": {"name": "x"}} if name == "editJob" else None
        await api.ask(name, 409, body, job=ended)
    for name in ("resumeJob", "retryJob", "changeArray", "retryArray"):
        body = {"do": "hold"} if name == "changeArray" else None
        await api.ask(name, 409, body, job=waits)


async def change_arrays(api: Asker, directory: Path) -> None:
    first = await array_of(api)
    await api.ask("changeArray", 200, {"do": "cancel"}, job=first)
    again = {"output_dir": str(directory / "array")}
    await api.ask("retryArray", 201, again, job=first)


async def adopt(api: Asker) -> None:
    child = Started(["sh", "-c", "read line"], stdin=subprocess.PIPE)
    try:
        wait_for(lambda: b"sh" in Path(f"/proc/{child.pid}/cmdline").read_bytes(), "the program")
        await api.ask("adoptProcess", 201, {"pid": child.pid})
        await api.ask("adoptProcess", 409, {"pid": child.pid})
    finally:
        child.end()


async def meet_jobs_of_a_later_version(api: Asker, state: Path) -> None:
    """Ask for all that can be asked of jobs whose files this version cannot read."""
    ended, first, waits = await over(api), await array_of(api), await hold_new(api)
    await api.ask("changeArray", 200, {"do": "cancel"}, job=first)
    with closing(sqlite3.connect(state / DATABASE)) as other, other:
        other.execute(
            "UPDATE job SET spec = ?, spec_given = NULL, text_number = NULL", (json.dumps(FUTURE),)
        )
    for name in ("resumeJob", "retryJob"):
        await api.ask(name, 422, job=ended)
    await api.ask("retryArray", 422, job=first)
    bodies = {"setJobPriority": {"priority": 1}, "editJob": {"set": {"name": "x"}}}
    for name, operation in OPERATIONS.items():
        for job in (waits, ended) if "{id}" in operation.path else (waits,):
            if name != "streamEvents":  # it has no end
                await api.ask(name, None, bodies.get(name), job=job)


async def be_refused_as_anybody(api: Asker, waits: int) -> None:
    """Send to each operation what none takes."""
    bodies: dict[str, Any] = {"changeArray": {"do": "hold"}}
    for name, operation in OPERATIONS.items():
        await api.ask(name, 400, query="?of_no_request=1", job=waits)
        await api.ask(name, 415, job=waits, **{"Content-Encoding": "gzip"})
        if "{id}" in operation.path:
            await api.ask(name, 404, bodies.get(name), job=10**9)
        if operation.method == "post":
            await api.ask(name, 413, TOO_LARGE, job=waits)


async def be_refused_as_another_user(api: Asker, waits: int) -> None:
    for name, statuses in documented_statuses().items():
        if 403 in statuses:
            await api.ask(name, 403, job=waits, token=ANNA)


async def come_without_a_token(api: Asker, name: str, waits: int) -> None:
    await api.ask(name, 401, job=waits, by_tcp=True)
    for _ in range(WRONG_TOKENS):
        async with api._tcp.request(
            OPERATIONS[name].method, OPERATIONS[name].target(waits)
        ) as answer:
            if answer.status == 429:
                assert int(answer.headers["Retry-After"]) >= 1
                return
    raise AssertionError(f"{name}: {WRONG_TOKENS} requests were looked at")


async def sweep(it: Running, fault: Fault, directory: Path, answers: AnswerLog) -> None:
    """Ask for each status of each operation."""
    api, mine = Asker(it, directory, answers), Rights(allow=(ME,))
    async with api.serving(mine) as api:
        await api.ask("submitJob", 201, {"job": JOB})
        await it.reach(1, "held")
        for name in ("undrainQueue", "drainQueue"):
            await api.ask(name, 200)
        fault.mended = True
        await api.ask("resumeJob", 200)
        await do_everything(api, directory)
        waits = await hold_new(api)
        await be_refused_as_anybody(api, waits)
        await be_refused_as_another_user(api, waits)
    for name in OPERATIONS:
        async with api.serving(mine) as api:
            await come_without_a_token(api, name, waits)
    by_name = Rights(administrators=("nobody-has-this-name",))
    errors: Mapping[int, BaseException] = {500: RuntimeError("a defect"), 503: MemoryError()}
    for status, error in errors.items():
        async with api.serving(by_name, FailingPeople(error)) as api:
            for name in OPERATIONS:
                await api.ask(name, status, job=waits)
    async with api.serving(mine, page=NoPage()) as api:
        await api.ask("createPageLink", 409)
        await meet_jobs_of_a_later_version(api, directory / "state")


def test_each_operation_answers_what_the_document_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerotoolsd.http.api.routes.WRONG_TOKENS", 1.0)
    answers, fault = AnswerLog(), Fault()

    async def told() -> None:
        async with running(tmp_path / "state", touch=fault, config=WITH_PLACE) as it:
            await sweep(it, fault, tmp_path, answers)
            monkeypatch.setattr("zerotoolsd.http.api.request_validation.BODY_SECONDS", 0.02)
            async with Asker(it, tmp_path / "late", answers).serving() as api:
                for name, operation in OPERATIONS.items():
                    if operation.method == "post":
                        await api.send_half(name, LAST)

    asyncio.run(told())
    assert answers.seen == documented_statuses()

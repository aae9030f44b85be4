"""The daemon's client: HTTP/1.1 and JSON over the daemon's Unix socket, with only the standard
library.

Responses are plain JSON values, as in docs/reference/http-api.md. Methods raise BadRequest or
Unsupported for a wrong request, DaemonRefused for other refusals, DaemonUnreachable if nothing
answers, and AnswerLost if the connection broke after the request was sent.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import zerotools
from zerotools.core.errors import (
    AnswerLost,
    BadRequest,
    DaemonRefused,
    DaemonUnreachable,
    Unsupported,
)
from zerotools.io.files.optional_packages import REQUIREMENTS, install_command
from zerotools.jobs.client import daemon_address, daemon_compatibility
from zerotools.jobs.client.daemon_address import machine_behind, shown_socket
from zerotools.jobs.client.daemon_compatibility import NEEDED, why_no_daemon
from zerotools.jobs.submit_timeout import (
    INTERPRETER_SECONDS,
    MANY_JOBS_SECONDS,
    WHOLE_LOOK_SECONDS,
    answer_seconds,
)

if TYPE_CHECKING:
    from zerotools.jobs.jobfile_tables.spec import JobSpec

TIMEOUT_SECONDS = 30.0
_BLAME: Mapping[str, type[BadRequest | Unsupported]] = {
    "bad_request": BadRequest,
    "not_found": BadRequest,
    "unsupported": Unsupported,
}
_STRANGE = ("no_such_path", "method_not_allowed")
_STRANGE_JOB = ("job: ", "unknown key ")
"""The beginnings of the messages with which a daemon refuses a key that it does not know.

The client has already checked the job, so the daemon must be an older version.
"""


PAGE = 1000
"""The largest number of jobs in one response."""
CLEAN_SECONDS = 3600.0
"""The additional time in seconds to wait for the removal of jobs: their files may have many
gigabytes.
"""


NOTICE_TEST_SECONDS = 60.0
"""The additional time in seconds to wait for the answers of services."""


class DaemonRequests:
    """Sends requests to the daemon at `socket` (default: the usual path), with a new connection for
    each request."""

    def __init__(
        self, socket: Path | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self.socket = socket or daemon_address.default_socket()
        self._timeout = timeout_seconds
        self.deadline: float | None = None
        """The time (CLOCK_MONOTONIC) at which every request stops waiting for its response."""

    @property
    def shown(self) -> str:
        """The daemon's address as text for messages."""
        return shown_socket(self.socket)

    def _object(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        body: Any = None,
        patience: float = 0,
    ) -> dict[str, Any]:
        _, data = self._request(method, path, query, body=body, patience=patience)
        return self._parse(data)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        body: Any = None,
        patience: float = 0,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        words = urlencode(given, errors="surrogateescape")
        target = f"{path}?{words}" if given else path
        payload = None if body is None else json.dumps(body).encode()
        seconds = self._until_deadline(self._timeout + patience)
        connection = SocketConnection(self.socket, seconds)
        try:
            connection.request(method, target, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error, seconds) from error
        finally:
            connection.close()
        if response.status >= 400:
            raise self._refusal(response.status, data)
        return response, data

    def _until_deadline(self, seconds: float) -> float:
        if self.deadline is None:
            return seconds
        return min(seconds, max(0.1, self.deadline - time.monotonic()))

    def _parse(self, data: bytes) -> dict[str, Any]:
        try:
            tree = json.loads(data)
        except ValueError:
            tree = None
        if not isinstance(tree, dict):
            raise DaemonUnreachable(f"the server at {self.shown} is not zerotoolsd")
        return tree

    def _refusal(self, status: int, data: bytes) -> Exception:
        problem = self._parse(data)
        code = str(problem.get("code", ""))
        detail = str(problem.get("detail") or problem.get("title") or f"HTTP status {status}")
        if code in _STRANGE or detail.startswith(_STRANGE_JOB):
            detail = "; ".join(filter(None, (detail, self._which_to_upgrade())))
        if kind := _BLAME.get(code):
            return kind(detail, status=status, code=code)
        return DaemonRefused(detail, status=status, code=code)

    def _which_to_upgrade(self) -> str | None:
        connection = SocketConnection(self.socket, self._timeout)
        try:
            connection.request("GET", "/v1/health")
            response = connection.getresponse()
            health = self._parse(response.read()) if response.status == 200 else {}
        except (OSError, http.client.HTTPException, DaemonUnreachable):
            return None
        finally:
            connection.close()
        return (
            daemon_compatibility.which_to_upgrade(health, zerotools.__version__) if health else None
        )

    def _unreachable(
        self, error: OSError | http.client.HTTPException, waited: float
    ) -> DaemonUnreachable:
        match error:
            case FileNotFoundError() | ConnectionRefusedError() | NotADirectoryError():
                is_here = machine_behind(self.socket) is None
                install = ""
                if is_here and why_no_daemon():
                    install = f" (after {install_command(REQUIREMENTS[NEEDED])})"
                why = (
                    f"nothing answers at {self.shown}; is zerotoolsd running? Start it with "
                    f"'zerotoolsd'{install}, or set {daemon_address.SOCKET_VARIABLE} to its socket"
                )
            case PermissionError():
                why = (
                    f"the daemon at {self.shown} belongs to another user (permission denied); "
                    "start your own zerotoolsd, or let its owner give you access"
                )
            case TimeoutError():
                return AnswerLost(
                    f"the daemon at {self.shown} did not answer within {waited:.3g} s"
                )
            case _:
                reason = str(error) or type(error).__name__
                return AnswerLost(
                    f"the daemon at {self.shown} closed the connection before it "
                    f"answered ({reason})"
                )
        return DaemonUnreachable(why)


class SocketConnection(http.client.HTTPConnection):
    """An HTTP connection to the Unix socket at `path`.

    Each wait for the daemon takes at most `timeout_seconds`.
    """

    def __init__(self, path: Path, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path
        self._timeout_seconds = timeout_seconds

    def connect(self) -> None:
        """Connect to the socket. Raises OSError if nothing listens there."""
        self.sock = daemon_address.connect_socket(self._path, self._timeout_seconds)


@dataclass(frozen=True, slots=True)
class LogBytes:
    """A part of the log of one rank.

    `over` is true if the attempt has ended and this part reaches the end of the log. `attempt` is
    the number of the attempt, or 0 if the job has no attempt.
    """

    data: bytes
    next_offset: int
    attempt: int
    over: bool


class DaemonClient(DaemonRequests):
    """One method for each request to the daemon. Methods that change a job return the job after the
    change."""

    def submit(
        self,
        spec: JobSpec,
        *,
        idempotency_key: str | None = None,
        terms: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Queue a job, and return it.

        Two requests with the same `idempotency_key` queue only one job. `terms` are the remaining
        keys of the request, such as `after` and `begin`.
        """
        from zerotools.jobs.jobfile.parse import given_of  # 9 ms that the other requests do without

        # Keys that were not set get the daemon's defaults, which may be of another version.
        body = {"job": given_of(spec), "idempotency_key": idempotency_key, **terms}
        return self._object("POST", "/v1/jobs", body=body, patience=answer_seconds(spec))

    def submit_array(
        self,
        spec: JobSpec,
        sweep: Mapping[str, list[Any]],
        count: int | None,
        *,
        idempotency_key: str | None = None,
        terms: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[dict[str, Any]]:
        """Queue `count` jobs for each combination of the values in `sweep`, and return the
        jobs. If one of them is refused, none is queued.
        """
        from zerotools.jobs.jobfile.parse import given_of

        asked = {"job": given_of(spec), "sweep": dict(sweep), "count": count}
        body = {**asked, "idempotency_key": idempotency_key, **terms}
        patience = answer_seconds(spec) + MANY_JOBS_SECONDS
        answer = self._object("POST", "/v1/arrays", body=body, patience=patience)
        return list(answer["jobs"])

    def check(
        self,
        spec: JobSpec,
        *,
        model: bool = False,
        terms: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[str]:
        """Check a job without queueing it: raise the error that `submit` would raise.

        If `model` is true, also build the model without weights, as the ranks do. Return notes for
        the user.
        """
        from zerotools.jobs.jobfile.parse import given_of

        body = {"job": given_of(spec), **({"model": True} if model else {}), **terms}
        patience = answer_seconds(spec, model=model)
        try:
            answer = self._object("POST", "/v1/check", body=body, patience=patience)
        except BadRequest:
            if not model or "api_versions" in self.health():
                raise
            upgrade = self._which_to_upgrade()
            return [*self.check(spec), f"the model was not built, because {upgrade}"]
        return [str(note) for note in answer.get("notes", ())]

    def check_and_show(
        self, spec: JobSpec, count: int, terms: Mapping[str, Any] = MappingProxyType({})
    ) -> tuple[list[str], dict[str, Any] | None]:
        """Check a job and its model, as `check` with `model=True` does.

        Return notes for the user, and a preview of the first `count` examples of the data.
        """
        from zerotools.jobs.jobfile.parse import given_of

        body = {"job": given_of(spec), "model": True, "show": count, **terms}
        patience = answer_seconds(spec, model=True)
        answer = self._object("POST", "/v1/check", body=body, patience=patience)
        return [str(note) for note in answer.get("notes", ())], answer.get("sample")

    def jobs(
        self,
        *,
        state: str | None = None,
        limit: int = 100,
        after: int | None = None,
        name: str | None = None,
        user: str | None = None,
        by_priority: bool = False,
    ) -> list[dict[str, Any]]:
        """Return at most `limit` jobs, the newest first. With `by_priority`, the highest priority
        is first, and of equal priorities the oldest job. A daemon of an older version ignores it.

        Optional filters: only jobs in this `state`, that follow the job `after`, with this `name`,
        or of this `user` (a name, a uid, or `me`).
        """
        query = {"state": state, "limit": limit, "after": after, "name": name, "user": user}
        if by_priority:
            query["order"] = "priority"
        try:
            jobs: list[dict[str, Any]] = self._object("GET", "/v1/jobs", query)["jobs"]
        except BadRequest:
            asked = (
                state in daemon_compatibility.FIRST_STATES or name is not None or user is not None
            )
            if asked or "api_versions" in self.health():
                raise
            return []  # an older daemon does not have jobs in this state
        return jobs

    def every_job(
        self, *, state: str | None = None, user: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield all jobs, or only the jobs in this `state` or of this `user`, the newest first.

        A long list is read by several requests.
        """
        after: int | None = None
        while True:
            page = self.jobs(state=state, limit=PAGE, after=after, user=user)
            yield from page
            if len(page) < PAGE:
                return
            after = min(int(job["id"]) for job in page)

    def jobs_of_array(self, number: int) -> list[dict[str, Any]]:
        """Return the jobs of the array `number`, the newest first."""
        return list(self._pages(None, number))

    def jobs_named(self, name: str, *, user: str | None = None) -> list[dict[str, Any]]:
        """Return all jobs with this name, or only the jobs of this `user`, the newest first."""
        if user is not None:
            return list(self._pages(name, user=user))
        try:
            return list(self._pages(name))
        except BadRequest:  # an older daemon cannot search for a name
            return [job for job in self._pages(None) if job["name"] == name]

    def _pages(
        self, name: str | None, array: int | None = None, user: str | None = None
    ) -> Iterator[dict[str, Any]]:
        query: dict[str, Any] = {"limit": PAGE, "name": name, "array": array, "user": user}
        while True:
            answer = self._object("GET", "/v1/jobs", query)
            yield from answer["jobs"]
            if answer["next"] is None:
                return
            query["after"] = answer["next"]

    def job(self, job_id: int) -> dict[str, Any]:
        """Return the job `job_id`."""
        return self._object("GET", f"/v1/jobs/{job_id}")

    def explain(self, job_id: int) -> dict[str, Any]:
        """Return the reason for a job's state: why the job waits, was started again, or ended."""
        return self._object("GET", f"/v1/jobs/{job_id}/explain")

    def cancel(self, job_id: int) -> dict[str, Any]:
        """Ask the daemon to make a job save and stop. Return the job."""
        return self._object("POST", f"/v1/jobs/{job_id}/cancel")

    def resume(self, job_id: int) -> dict[str, Any]:
        """Queue a new job that continues from the last checkpoint of a finished job.

        Return the new job.
        """
        path, patience = f"/v1/jobs/{job_id}/resume", WHOLE_LOOK_SECONDS
        return self._object("POST", path, patience=patience)

    def edit(self, job_id: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change a job before its first start, and return it.

        `changes` has the keys `set`, `unset`, `after` and `begin` of the request.
        """
        path, patience = f"/v1/jobs/{job_id}/edit", WHOLE_LOOK_SECONDS
        return self._object("POST", path, body=dict(changes), patience=patience)

    def of_array(self, job_id: int, body: Mapping[str, Any], request: str = "") -> dict[str, Any]:
        """Send one request for all jobs in the array of the job `job_id`. `request` is the end of
        the URL.

        Return a mapping: `jobs` has the changed jobs, and `kept` the reasons why other jobs were
        not changed. The request `/retry` returns a new array.
        """
        path, patience = f"/v1/jobs/{job_id}/array{request}", WHOLE_LOOK_SECONDS
        return self._object("POST", path, body=dict(body), patience=patience)

    def retry(
        self, job_id: int, *, output_dir: str | None = None, from_start: bool = True
    ) -> dict[str, Any]:
        """Queue a finished job again, and return the new job.

        The new job starts from the beginning, or with `from_start=False` from the newest
        checkpoint.
        """
        body: dict[str, Any] = {} if output_dir is None else {"output_dir": output_dir}
        if not from_start:
            body["from_start"] = False
        path, patience = f"/v1/jobs/{job_id}/retry", WHOLE_LOOK_SECONDS
        return self._object("POST", path, body=body, patience=patience)

    def adopt(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Make the daemon watch a process that already runs.

        `wanted` has the keys `pid`, `name`, `time_limit` and `checkpoint_dir`. In the result, `job`
        is the job that stands for the process, and `watched` describes the watched processes.
        """
        return self._object(
            "POST", "/v1/adoptions", body=dict(wanted), patience=INTERPRETER_SECONDS
        )

    def drain(self, why: str | None = None) -> dict[str, Any]:
        """Make the daemon start no more jobs until `undrain`.

        Return the daemon's health. `why` is the reason that the daemon shows to users.
        """
        return self._object("POST", "/v1/drain", body={} if why is None else {"why": why})

    def test_notices(self, places: Sequence[str], kinds: Sequence[str]) -> dict[str, Any]:
        """Let the daemon send examples of notifications to its destinations, and return the result.

        `places` are the names of the destinations (default: all). `kinds` are the kinds of
        notifications (default: the kinds that each destination gets). The key `sent` of the result
        lists the answer of each destination to each notification.
        """
        body = {"places": list(places), "kinds": list(kinds)}
        return self._object("POST", "/v1/notices/test", body=body, patience=NOTICE_TEST_SECONDS)

    def undrain(self) -> dict[str, Any]:
        """Let the daemon start jobs again after `drain`. Return the daemon's health."""
        return self._object("POST", "/v1/undrain")

    def set_priority(self, job_id: int, priority: int) -> dict[str, Any]:
        """Change the priority of a waiting job. Return the job."""
        return self._object("POST", f"/v1/jobs/{job_id}/priority", body={"priority": priority})

    def hold(self, job_id: int, *, lose_steps: bool = False) -> dict[str, Any]:
        """Keep a job from starting until it is released; a running job saves and stops first.

        Return the job.

        A running program may not save when it is stopped. Unless the daemon knows that the program
        saves, the request is refused if `lose_steps` is false.
        """
        body = {"lose_steps": True} if lose_steps else None
        return self._object("POST", f"/v1/jobs/{job_id}/hold", body=body)

    def release(self, job_id: int) -> dict[str, Any]:
        """Put a held job back into the queue, and return it."""
        return self._object("POST", f"/v1/jobs/{job_id}/release")

    def pause(self, job_id: int, *, lose_steps: bool = False) -> dict[str, Any]:
        """Hold a job of an older daemon, which has the request `pause` instead of `hold`.

        Return the job.
        """
        body = {"lose_steps": lose_steps}
        return self._object("POST", f"/v1/jobs/{job_id}/pause", body=body)

    def unpause(self, job_id: int) -> dict[str, Any]:
        """Release a held job of an older daemon, which has the request `unpause` instead of
        `release`.

        Return the job.
        """
        return self._object("POST", f"/v1/jobs/{job_id}/unpause")

    def clean(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Remove the files of finished jobs. `wanted` is the body of the request, which selects the
        jobs.

        Return `{"jobs": [...], "kept": [...], "dry_run": bool}`: the removed and the kept jobs.
        """
        return self._object("POST", "/v1/clean", body=dict(wanted), patience=CLEAN_SECONDS)

    def logs(
        self,
        job_id: int,
        *,
        attempt: int | None = None,
        rank: int = 0,
        offset: int = 0,
        limit: int = 1 << 16,
    ) -> LogBytes:
        """Return at most `limit` bytes of a rank's log, from byte `offset`.

        A negative `offset` counts from the end of the log.
        """
        query = {"attempt": attempt, "rank": rank, "offset": offset, "limit": limit}
        response, data = self._request("GET", f"/v1/jobs/{job_id}/logs", query)
        return LogBytes(
            data=data,
            next_offset=int(response.headers["Zerotools-Next-Offset"]),
            attempt=int(response.headers["Zerotools-Attempt"]),
            over=response.headers["Zerotools-Over"] == "true",
        )

    def progress(
        self, job_id: int, *, attempt: int | None = None, since: int = 0
    ) -> dict[str, Any]:
        """Return the progress reports of a job: `{"records": [...], "next": int, "attempt": int,
        "over": bool}`. Pass `next` as `since` to get only later reports. `over` is true if there
        will be no later reports."""
        query = {"attempt": attempt, "since": since}
        return self._object("GET", f"/v1/jobs/{job_id}/progress", query)

    def events(self, since: int = 0, *, wait_seconds: float = 0) -> dict[str, Any]:
        """Return the daemon's events: `{"events": [...], "next": int}`.

        Pass `next` as `since` to get only later events. The daemon waits up to `wait_seconds` for
        the first event.
        """
        query = {"since": since, "wait": wait_seconds}
        return self._object("GET", "/v1/events", query, patience=wait_seconds)

    def curves(self, job_id: int, points: int = 1000) -> dict[str, Any]:
        """Return the training reports of a job as columns, with at most `points` steps. Reports of
        the jobs that it resumes are included."""
        return self._object("GET", f"/v1/jobs/{job_id}/curves", {"points": points})

    def checkpoints(self, job_id: int) -> dict[str, Any]:
        """Return the checkpoints in the job's output directory now: `{"output_dir",
        "checkpoints": [...], "more", "unfinished"}`.
        """
        return self._object("GET", f"/v1/jobs/{job_id}/checkpoints")

    def machine(self) -> dict[str, Any]:
        """Return the state of the machine and the GPUs that jobs hold: `{"snapshot": {...} |
        null, "leases": [...]}`.
        """
        return self._object("GET", "/v1/machine")

    def history(self, seconds: int, points: int) -> dict[str, Any]:
        """Return measurements of the last `seconds`, with about `points` values for each series:
        `{"step_seconds", "times", "series", "trouble"}`.
        """
        return self._object("GET", "/v1/history", {"seconds": seconds, "points": points})

    def peaks(self, job_id: int | None = None) -> list[dict[str, Any]]:
        """Return the peak memory of each attempt of the job `job_id`. If `job_id` is None, return
        it for all jobs.
        """
        return list(self._object("GET", "/v1/peaks", {"job": job_id})["peaks"])

    def web_link(self) -> dict[str, Any]:
        """Return a link to the daemon's web page that can be used once: `{"url", "port",
        "expires_seconds"}`.
        """
        return self._object("POST", "/v1/web/links")

    def end_web_sessions(self) -> int:
        """End all browser sessions of this user. Return the number of ended sessions."""
        return int(self._object("POST", "/v1/web/end")["ended"])

    def shares(self) -> dict[str, Any]:
        """Return each user's share of the GPU time: `{"half_life_seconds", "fair", "users":
        [{...}]}`. The jobs of the first user in the list start first.
        """
        return self._object("GET", "/v1/shares")

    def health(self) -> dict[str, Any]:
        """Return the daemon's version and state.

        The keys are `{"version", "pid", "schema", "uptime_seconds", "api_versions", "last_event",
        "drain"}`. An older daemon does not have the last three.
        """
        return self._object("GET", "/v1/health")

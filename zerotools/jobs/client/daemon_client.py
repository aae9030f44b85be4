"""The daemon's client: HTTP/1.1 and JSON over its Unix socket, with only the standard library.

Responses are plain JSON values, as in docs/reference/http-api.md. Errors: BadRequest and
Unsupported for faults of the request, DaemonRefused for the other refusals, DaemonUnreachable if
nothing answers, AnswerLost if the daemon was reached before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.answer_times import (
    INTERPRETER_SECONDS,
    MANY_JOBS_SECONDS,
    WHOLE_LOOK_SECONDS,
    answer_seconds,
)
from zerotools.jobs.client import api_versions
from zerotools.jobs.client.daemon_requests import DaemonRequests

if TYPE_CHECKING:  # all tables of the job file, a fifth of the start of a command that asks
    from zerotools.jobs.tables.spec import JobSpec

PAGE = 1000
"""Jobs of one answer, at most."""
CLEAN_SECONDS = 3600.0
"""How much longer the removal of a job may take: it may be of many gigabytes."""


@dataclass(frozen=True, slots=True)
class LogBytes:
    """Bytes of a rank's log. `over`: the attempt has ended and there is nothing behind them.

    `attempt` is the attempt's number, 0 while the job has none.
    """

    data: bytes
    next_offset: int
    attempt: int
    over: bool


class DaemonClient(DaemonRequests):
    """The requests to the daemon."""

    def submit(
        self,
        spec: JobSpec,
        *,
        idempotency_key: str | None = None,
        terms: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Queue a job; the same key twice queues it once. `terms` say how it is to wait, by the
        keys of the request."""
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
        """Queue a job for every combination of the values, `count` times, or none of them; the
        jobs."""
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
        """Raise the error that a submit would raise, without queueing a job. With `model`, also
        check the model as the ranks do; return notes on it."""
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
        """Do the same as `check` with the model; also return a preview of `count` of the first
        examples."""
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
    ) -> list[dict[str, Any]]:
        """Return jobs, the newest first; only those with ids below `after`, of this `name`, and of
        this `user` (a name, a uid, or `me`)."""
        query = {"state": state, "limit": limit, "after": after, "name": name, "user": user}
        try:
            jobs: list[dict[str, Any]] = self._object("GET", "/v1/jobs", query)["jobs"]
        except BadRequest:
            asked = state in api_versions.FIRST_STATES or name is not None or user is not None
            if asked or "api_versions" in self.health():
                raise
            return []  # an older daemon, which has no job in a state that it does not know
        return jobs

    def every_job(
        self, *, state: str | None = None, user: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield all jobs, however many there are, in the order of `jobs`."""
        after: int | None = None
        while True:
            page = self.jobs(state=state, limit=PAGE, after=after, user=user)
            yield from page
            if len(page) < PAGE:
                return
            after = min(int(job["id"]) for job in page)

    def jobs_of_array(self, number: int) -> list[dict[str, Any]]:
        """Return the jobs of an array, the newest first."""
        return list(self._pages(None, number))

    def jobs_named(self, name: str, *, user: str | None = None) -> list[dict[str, Any]]:
        """Return all jobs of this name, and this `user`, the newest first."""
        if user is not None:
            return list(self._pages(name, user=user))
        try:
            return list(self._pages(name))
        except BadRequest:  # an older daemon looks for no names
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
        """Return one job."""
        return self._object("GET", f"/v1/jobs/{job_id}")

    def explain(self, job_id: int) -> dict[str, Any]:
        """Return why a job waits, was tried again or ended."""
        return self._object("GET", f"/v1/jobs/{job_id}/explain")

    def cancel(self, job_id: int) -> dict[str, Any]:
        """Ask a job to save and stop; the job as it is then."""
        return self._object("POST", f"/v1/jobs/{job_id}/cancel")

    def resume(self, job_id: int) -> dict[str, Any]:
        """Queue a new job that continues from the end of a finished one; return the new job."""
        path, patience = f"/v1/jobs/{job_id}/resume", WHOLE_LOOK_SECONDS
        return self._object("POST", path, patience=patience)

    def edit(self, job_id: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change a job before its first start, by `set`, `unset`, `after` and `begin` of the
        request; return the changed job."""
        path, patience = f"/v1/jobs/{job_id}/edit", WHOLE_LOOK_SECONDS
        return self._object("POST", path, body=dict(changes), patience=patience)

    def of_array(self, job_id: int, body: Mapping[str, Any], request: str = "") -> dict[str, Any]:
        """Send the same request for all jobs of a job's array; return the jobs (`jobs`), and the
        reasons for those that refused (`kept`). The request `/retry` returns a new array."""
        path, patience = f"/v1/jobs/{job_id}/array{request}", WHOLE_LOOK_SECONDS
        return self._object("POST", path, body=dict(body), patience=patience)

    def retry(
        self, job_id: int, *, output_dir: str | None = None, from_start: bool = True
    ) -> dict[str, Any]:
        """Queue a finished job again, from the start or from its newest checkpoint; return the new
        job."""
        body: dict[str, Any] = {} if output_dir is None else {"output_dir": output_dir}
        if not from_start:
            body["from_start"] = False
        path, patience = f"/v1/jobs/{job_id}/retry", WHOLE_LOOK_SECONDS
        return self._object("POST", path, body=body, patience=patience)

    def adopt(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Let the daemon watch a process: `pid`, and `name`, `time_limit`, `checkpoint_dir`; return
        the job, and what is `watched`."""
        return self._object(
            "POST", "/v1/adoptions", body=dict(wanted), patience=INTERPRETER_SECONDS
        )

    def drain(self, why: str | None = None) -> dict[str, Any]:
        """Let nothing start any more; as `health`."""
        return self._object("POST", "/v1/drain", body={} if why is None else {"why": why})

    def undrain(self) -> dict[str, Any]:
        """Let jobs start again; as `health`."""
        return self._object("POST", "/v1/undrain")

    def set_priority(self, job_id: int, priority: int) -> dict[str, Any]:
        """Let a job wait with another priority; the job as it is then."""
        return self._object("POST", f"/v1/jobs/{job_id}/priority", body={"priority": priority})

    def hold(self, job_id: int, *, lose_steps: bool = False) -> dict[str, Any]:
        """Keep a job from starting until it is released; a running job saves and stops first.
        Return the changed job."""
        body = {"lose_steps": True} if lose_steps else None
        return self._object("POST", f"/v1/jobs/{job_id}/hold", body=body)

    def release(self, job_id: int) -> dict[str, Any]:
        """Let a held job take its turn; the job as it is then."""
        return self._object("POST", f"/v1/jobs/{job_id}/release")

    def pause(self, job_id: int, *, lose_steps: bool = False) -> dict[str, Any]:
        """Hold the job by the older request `pause`; return the job as it is now."""
        body = {"lose_steps": lose_steps}
        return self._object("POST", f"/v1/jobs/{job_id}/pause", body=body)

    def unpause(self, job_id: int) -> dict[str, Any]:
        """Release such a job by the older request; return the job as it is then."""
        return self._object("POST", f"/v1/jobs/{job_id}/unpause")

    def clean(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Remove finished jobs: `{"jobs": [...], "kept": [...], "dry_run": bool}`."""
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
        """Return a part of a rank's log; a negative `offset` counts from the end."""
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
        """Return `{"records": [...], "next": int, "attempt": int, "over": bool}`."""
        query = {"attempt": attempt, "since": since}
        return self._object("GET", f"/v1/jobs/{job_id}/progress", query)

    def events(self, since: int = 0, *, wait_seconds: float = 0) -> dict[str, Any]:
        """Return `{"events": [...], "next": int}`; wait for the first one."""
        query = {"since": since, "wait": wait_seconds}
        return self._object("GET", "/v1/events", query, patience=wait_seconds)

    def curves(self, job_id: int, points: int = 1000) -> dict[str, Any]:
        """Return the reports of the job and of those that it resumes, in columns of at most
        `points`."""
        return self._object("GET", f"/v1/jobs/{job_id}/curves", {"points": points})

    def checkpoints(self, job_id: int) -> dict[str, Any]:
        """Return `{"output_dir", "checkpoints": [...], "more", "unfinished"}`: the files that exist
        now."""
        return self._object("GET", f"/v1/jobs/{job_id}/checkpoints")

    def machine(self) -> dict[str, Any]:
        """Return `{"snapshot": {...} | null, "leases": [...]}`."""
        return self._object("GET", "/v1/machine")

    def history(self, seconds: int, points: int) -> dict[str, Any]:
        """Return `{"step_seconds", "times", "series", "trouble"}` of the last `seconds`."""
        return self._object("GET", "/v1/history", {"seconds": seconds, "points": points})

    def peaks(self, job_id: int | None = None) -> list[dict[str, Any]]:
        """Return the most that attempts of this job, or of all, held."""
        return list(self._object("GET", "/v1/peaks", {"job": job_id})["peaks"])

    def web_link(self) -> dict[str, Any]:
        """Return `{"url", "port", "expires_seconds"}`: a link to the page for browsers that works
        once."""
        return self._object("POST", "/v1/web/links")

    def end_web_sessions(self) -> int:
        """End all sessions of this user's browsers; how many there were."""
        return int(self._object("POST", "/v1/web/end")["ended"])

    def shares(self) -> dict[str, Any]:
        """Return `{"half_life_seconds", "fair", "users": [{...}]}`, the first in turn at the
        top."""
        return self._object("GET", "/v1/shares")

    def health(self) -> dict[str, Any]:
        """`{"version", "pid", "schema", "uptime_seconds", "api_versions", "last_event", "drain"}`;
        the last three not of older ones."""
        return self._object("GET", "/v1/health")

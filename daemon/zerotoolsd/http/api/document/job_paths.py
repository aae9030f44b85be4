"""The requests about jobs."""

from __future__ import annotations

from zerotools.jobs.job_words import OLD_VERBS
from zerotools.jobs.states import STATE_WORDS, STATES
from zerotoolsd.http.api.document.json_schemas import Schema, of_type, ref
from zerotoolsd.http.api.document.operation_terms import (
    ATTEMPT,
    COUNT,
    JOB_ID,
    KNOWN,
    NUMBER,
    SINCE,
    TEXT,
    get,
    post,
    query_of,
)

_JOBS = "jobs"
_NEW = ("403", "409", "422")
"""Statuses that refuse a new job: because of the user, the queue, the job or its files."""
_CHANGED = ("403", "409")


def job_paths() -> dict[str, dict[str, Schema]]:
    """Return the operations by path and method."""
    job, jobs = ref("JobView"), ref("JobList")
    paths = {
        "/v1/jobs": {
            **post(
                "submitJob",
                _JOBS,
                "Queue a job, durably; 200: its idempotency key was seen before",
                {"201": job, "200": job},
                refused=_NEW,
                body="SubmitRequest",
            ),
            **get(
                "listJobs",
                _JOBS,
                "Jobs, the newest first; 304: none has changed since the `ETag`",
                {"200": ref("JobPage"), "304": None},
                query_of("state", {"type": "string", "enum": list(STATES)}, "in this state alone"),
                query_of(
                    "state_word",
                    {"type": "string", "enum": list(STATE_WORDS)},
                    "in the states with this word: `held` finds every kind of hold",
                ),
                query_of("limit", {**NUMBER, "maximum": 1000}, "default: 100"),
                query_of("after", COUNT, "ids below this: `next` of the page before"),
                query_of("name", TEXT, "of this name alone"),
                query_of("array", NUMBER, "of this array alone"),
                query_of("user", TEXT, "of this user alone: a name, a uid, or `me`"),
                KNOWN,
            ),
        },
        "/v1/arrays": post(
            "submitArray",
            _JOBS,
            "Queue many variants of a job, each with its values: all of them or none",
            {"201": jobs},
            refused=_NEW,
            body="ArrayRequest",
        ),
        "/v1/adoptions": post(
            "adoptProcess",
            _JOBS,
            "Watch a process that a user started by hand",
            {"201": ref("AdoptedJob")},
            refused=_CHANGED,
            body="AdoptionRequest",
        ),
        "/v1/check": post(
            "checkJob",
            _JOBS,
            "Check whether a submit would be refused, without queueing a job",
            {"200": ref("CheckNotes")},
            refused=_NEW,
            body="CheckRequest",
        ),
        "/v1/jobs/{id}": get(
            "getJob",
            _JOBS,
            "A job; 304: it has not changed since the `ETag`",
            {"200": job, "304": None},
            JOB_ID,
            KNOWN,
        ),
        "/v1/jobs/{id}/explain": get(
            "explainJob",
            _JOBS,
            "Why it waits, was tried again or ended",
            {"200": ref("Explanation")},
            JOB_ID,
            refused=("403",),
        ),
        "/v1/jobs/{id}/cancel": post(
            "cancelJob", _JOBS, "Ask for its end", {"202": job}, JOB_ID, refused=_CHANGED
        ),
        "/v1/jobs/{id}/resume": post(
            "resumeJob",
            _JOBS,
            "Deprecated: release a job held by the daemon (200), or retry a finished job from "
            "its newest checkpoint (201)",
            {"200": job, "201": job},
            JOB_ID,
            refused=_NEW,
        ),
        "/v1/jobs/{id}/retry": post(
            "retryJob",
            _JOBS,
            "Queue a finished job once more: from the start, or from its newest checkpoint",
            {"201": job},
            JOB_ID,
            refused=_NEW,
            body="RetryRequest",
        ),
        "/v1/jobs/{id}/edit": post(
            "editJob",
            _JOBS,
            "Change a job that never started",
            {"200": job},
            JOB_ID,
            refused=_NEW,
            body="EditRequest",
        ),
        "/v1/jobs/{id}/priority": post(
            "setJobPriority",
            _JOBS,
            "Let it wait with another priority",
            {"200": job},
            JOB_ID,
            refused=_CHANGED,
            body="PriorityRequest",
        ),
        "/v1/jobs/{id}/hold": post(
            "holdJob",
            _JOBS,
            "Hold a job until it is released; a running job saves and stops first",
            {"200": job},
            JOB_ID,
            refused=_CHANGED,
            body="HoldRequest",
            needs_body=False,
        ),
        "/v1/jobs/{id}/release": post(
            "releaseJob",
            _JOBS,
            "Let a held one take its turn, from its newest checkpoint",
            {"200": job},
            JOB_ID,
            refused=_CHANGED,
        ),
        "/v1/jobs/{id}/pause": post(
            "pauseJob",
            _JOBS,
            "Deprecated: hold it",
            {"202": job},
            JOB_ID,
            refused=_CHANGED,
            body="PauseRequest",
        ),
        "/v1/jobs/{id}/unpause": post(
            "unpauseJob",
            _JOBS,
            "Deprecated: release it",
            {"200": job},
            JOB_ID,
            refused=_CHANGED,
        ),
        "/v1/jobs/{id}/array": post(
            "changeArray",
            _JOBS,
            "Do the same to all jobs of its array, or to none",
            {"200": ref("ArrayChange")},
            JOB_ID,
            refused=_CHANGED,
            body="ArrayChangeRequest",
        ),
        "/v1/jobs/{id}/array/retry": post(
            "retryArray",
            _JOBS,
            "Queue all jobs of its array once more in a new array, or none",
            {"201": jobs},
            JOB_ID,
            refused=_NEW,
            body="RetryArrayRequest",
        ),
        "/v1/jobs/{id}/logs": get(
            "readLog",
            _JOBS,
            "Bytes of a rank's output; headers give their position",
            {"200": {"type": "string", "format": "binary"}},
            *(JOB_ID, ATTEMPT, query_of("rank", COUNT, "default: 0")),
            query_of("offset", of_type(int), "in bytes; a negative offset counts from the end"),
            query_of("limit", {**COUNT, "maximum": 2**20}, "bytes; default: 65536"),
            refused=("403",),
            content="application/octet-stream",
        ),
        "/v1/jobs/{id}/progress": get(
            "readProgress",
            _JOBS,
            "The reports of its ranks",
            {"200": ref("ProgressPage")},
            *(JOB_ID, ATTEMPT, SINCE),
            refused=("403",),
        ),
        "/v1/clean": post(
            "cleanJobs",
            _JOBS,
            "Remove finished jobs",
            {"200": ref("Cleaned")},
            body="CleanRequest",
        ),
    }
    for old in OLD_VERBS:
        paths[f"/v1/jobs/{{id}}/{old}"]["post"]["deprecated"] = True
    return paths

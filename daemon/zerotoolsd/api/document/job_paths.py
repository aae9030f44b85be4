"""The requests about jobs."""

from __future__ import annotations

from zerotools.jobs.states import STATES
from zerotoolsd.api.document.explanation_schema import explanation
from zerotoolsd.api.document.json_schemas import Schema, of_type
from zerotoolsd.api.document.operation_terms import (
    ANY_OBJECT,
    ATTEMPT,
    COUNT,
    JOB_ID,
    KEY,
    KNOWN,
    SINCE,
    closed,
    list_of,
    object_of,
    operation,
    query_of,
    ref,
)
from zerotoolsd.api.document.request_schemas import (
    ADOPTION_SCHEMA,
    ARRAY_CHANGE_SCHEMA,
    ARRAY_SCHEMA,
    EDIT_SCHEMA,
    PRIORITY_SCHEMA,
    TERMS_SCHEMA,
    text_schema,
)

PID: Schema = {**COUNT, "minimum": 1}
KEPT = object_of(job=PID, why={"type": "string"})
WATCHED = object_of(pid=PID, below=list_of(PID), gpu_uuids=list_of({"type": "string"}))


def job_paths() -> dict[str, dict[str, Schema]]:
    """By path and method."""
    job, notes = ref("JobView"), object_of(notes=list_of(of_type(str)))
    text: Schema = {"type": "string"}
    return {
        "/v1/jobs": {
            "post": operation(
                "Queue a job, durably; 200: its idempotency key was seen before",
                {"201": job, "200": job},
                body=closed(
                    object_of(("job",), job=ref("Job"), idempotency_key=KEY, **TERMS_SCHEMA)
                ),
            ),
            "get": operation(
                "Jobs, the newest first",
                {
                    "200": object_of(jobs=list_of(job), next={"anyOf": [COUNT, {"type": "null"}]}),
                    "304": None,
                },
                query_of("state", {"type": "string", "enum": list(STATES)}, "in this state alone"),
                query_of("limit", {**COUNT, "minimum": 1, "maximum": 1000}, "default: 100"),
                query_of("after", COUNT, "ids below this: `next` of the page before"),
                query_of("name", text, "of this name alone"),
                query_of("array", {**COUNT, "minimum": 1}, "of this array alone"),
                query_of("user", text, "of this user alone: a name, a uid, or `me`"),
                KNOWN,
            ),
        },
        "/v1/adoptions": {
            "post": operation(
                "Have a process watched that somebody started by hand",
                {"201": object_of(job=job, watched=WATCHED)},
                body=closed(object_of(("pid",), **ADOPTION_SCHEMA)),
            )
        },
        "/v1/jobs/{id}": {"get": operation("A job", {"200": job, "304": None}, JOB_ID, KNOWN)},
        "/v1/jobs/{id}/explain": {
            "get": operation(
                "Why it waits, was tried again or ended", {"200": explanation()}, JOB_ID
            )
        },
        "/v1/jobs/{id}/cancel": {"post": operation("Ask for its end", {"202": job}, JOB_ID)},
        "/v1/jobs/{id}/resume": {
            "post": operation(
                "Let a held job go on (200), or queue a new one that goes on (201)",
                {"200": job, "201": job},
                JOB_ID,
            )
        },
        "/v1/jobs/{id}/priority": {
            "post": operation(
                "Let it wait with another priority",
                {"200": job},
                JOB_ID,
                body=closed(object_of(priority=PRIORITY_SCHEMA)),
            )
        },
        "/v1/jobs/{id}/edit": {
            "post": operation(
                "Change one that has never started",
                {"200": job},
                JOB_ID,
                body=closed(object_of((), **EDIT_SCHEMA)),
            )
        },
        "/v1/jobs/{id}/retry": {
            "post": operation(
                "Queue one that is over once more, from the start",
                {"201": job},
                JOB_ID,
                body=closed(object_of((), output_dir=text_schema(4096))),
            )
        },
        "/v1/jobs/{id}/array": {
            "post": operation(
                "Do the same to all jobs of the array that it is of, or to none",
                {"200": object_of(jobs=list_of(job), kept=list_of(KEPT))},
                JOB_ID,
                body=closed(object_of(("do",), **ARRAY_CHANGE_SCHEMA)),
            )
        },
        "/v1/jobs/{id}/array/retry": {
            "post": operation(
                "Queue all jobs of the array that it is of once more, as a new array, or none",
                {"201": object_of(jobs=list_of(job))},
                JOB_ID,
                body=closed(object_of((), output_dir=text_schema(4096))),
            )
        },
        "/v1/jobs/{id}/hold": {
            "post": operation("Let it wait until it is released", {"200": job}, JOB_ID)
        },
        "/v1/jobs/{id}/release": {
            "post": operation("Let one that is on hold take its turn", {"200": job}, JOB_ID)
        },
        "/v1/jobs/{id}/pause": {
            "post": operation(
                "Let it save, give back what it has, and wait until it is unpaused",
                {"202": job},
                JOB_ID,
                body=closed(object_of((), lose_steps={"type": "boolean"})),
            )
        },
        "/v1/jobs/{id}/unpause": {
            "post": operation("Let a paused one take its old place", {"200": job}, JOB_ID)
        },
        "/v1/jobs/{id}/logs": {
            "get": operation(
                "Bytes of a rank's output; headers say where they lie",
                {"200": text},
                *(JOB_ID, ATTEMPT, query_of("rank", COUNT, "default: 0")),
                query_of("offset", of_type(int), "in bytes; from the end where it is negative"),
                query_of("limit", {**COUNT, "maximum": 2**20}, "bytes; default: 65536"),
                content="application/octet-stream",
            )
        },
        "/v1/jobs/{id}/progress": {
            "get": operation(
                "What its ranks reported",
                {
                    "200": object_of(
                        records=list_of(ANY_OBJECT), next=COUNT, attempt=COUNT, over=of_type(bool)
                    )
                },
                *(JOB_ID, ATTEMPT, SINCE),
            )
        },
        "/v1/check": {
            "post": operation(
                "What a submit would be refused for",
                {"200": notes},
                body=closed(
                    object_of(("job",), job=ref("Job"), model=of_type(bool), **TERMS_SCHEMA)
                ),
            )
        },
        "/v1/arrays": {
            "post": operation(
                "Queue a job many times, each with what it has of its own: all of them or none",
                {"201": object_of(jobs=list_of(job))},
                body=closed(
                    object_of(
                        ("job",),
                        job=ref("Job"),
                        idempotency_key=KEY,
                        **TERMS_SCHEMA,
                        **ARRAY_SCHEMA,
                    )
                ),
            )
        },
        "/v1/clean": {
            "post": operation(
                "Remove jobs that are over",
                {
                    "200": object_of(
                        jobs=list_of(ref("CleanedJob")),
                        kept=list_of(ref("KeptJob")),
                        dry_run=of_type(bool),
                    )
                },
                body=ref("CleanRequest"),
            )
        },
    }

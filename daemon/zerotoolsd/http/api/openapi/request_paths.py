"""The paths of the OpenAPI document: requests for jobs, results, the machine and the daemon."""

from __future__ import annotations

from zerotools.jobs.states import OLD_VERBS, STATE_WORDS, STATES
from zerotoolsd.http.api.job_outputs import LONGEST_WAIT_SECONDS, MOST_POINTS, MOST_ROWS
from zerotoolsd.http.api.openapi.request_schemas import JOB_ORDERS, MOST_SHOWN
from zerotoolsd.http.api.openapi.schema_builders import (
    ATTEMPT,
    COUNT,
    FLAG,
    JOB_ID,
    KNOWN,
    NUMBER,
    NUMBER_OR_NULL,
    SINCE,
    TEXT,
    TEXT_OR_NULL,
    WHOLE_OR_NULL,
    Schema,
    answers_of,
    get,
    list_of,
    object_of,
    of_type,
    or_null,
    post,
    query_of,
    ref,
)
from zerotoolsd.http.api.request_validation import (
    MOST_HISTORY_POINTS,
    MOST_HISTORY_SECONDS,
    MOST_PEAKS,
)
from zerotoolsd.service.downsample_curves import CheckpointStatement, CurvePart
from zerotoolsd.service.read_checkpoints_and_predictions import SavedCheckpoint

_JOBS = "jobs"
_NEW = ("403", "409", "422")
"""HTTP statuses with which a new job may be refused: because of the user, the queue, the job or its
files.
"""
_CHANGED = ("403", "409")


def job_paths() -> dict[str, dict[str, Schema]]:
    """Return the descriptions of requests about jobs, keyed by path and HTTP method."""
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
                "Jobs, the newest first by default; 304: none has changed since the `ETag`",
                {"200": ref("JobPage"), "304": None},
                query_of(
                    "state", {"type": "string", "enum": list(STATES)}, "only jobs in this state"
                ),
                query_of(
                    "state_word",
                    {"type": "string", "enum": list(STATE_WORDS)},
                    "in the states with this word: `held` finds every kind of hold",
                ),
                query_of("limit", {**NUMBER, "maximum": 1000}, "default: 100"),
                query_of("after", COUNT, "only jobs after this: `next` of the previous page"),
                query_of(
                    "order",
                    {"type": "string", "enum": list(JOB_ORDERS)},
                    "`priority`: the highest first, and of equal ones the oldest job",
                ),
                query_of("name", TEXT, "only jobs of this name"),
                query_of("array", NUMBER, "only jobs of this array"),
                query_of("user", TEXT, "only jobs of this user: a name, a uid, or `me`"),
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
        "/v1/import": post(
            "importJob",
            _JOBS,
            "Read the job in the text of a job file or of DeepSpeed's config, without queueing it",
            {"200": ref("ImportedJob")},
            refused=("403", "422"),
            body="ImportRequest",
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
            "Why a job waits, was restarted or ended",
            {"200": ref("Explanation")},
            JOB_ID,
            refused=("403",),
        ),
        "/v1/jobs/{id}/cancel": post(
            "cancelJob", _JOBS, "Cancel a job", {"202": job}, JOB_ID, refused=_CHANGED
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
            "Change the priority of a waiting job",
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
            "Release a held job; it continues from its newest checkpoint",
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
            "Apply one action to all jobs of an array, or to none",
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
            "The reports of a job's ranks",
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


_RESULTS = "results"


def result_components() -> dict[str, Schema]:
    """Return the schemas of job results by component name."""
    return {
        "Curves": object_of(
            checkpoints=list_of(ref("CheckpointStatement")),
            evaluations=ref("CurveColumns"),
            follow=or_null(ref("ProgressPlace")),
            job=COUNT,
            not_finite=list_of(COUNT),
            parts=list_of(ref("CurvePart")),
            sampled=FLAG,
            scores=ref("CurveColumns"),
            steps=ref("CurveColumns"),
        ),
        "CurveColumns": {"type": "object", "additionalProperties": list_of(NUMBER_OR_NULL)},
        "ProgressPlace": object_of(attempt=COUNT, since=COUNT),
        "CheckpointList": object_of(
            checkpoints=list_of(ref("SavedCheckpoint")),
            more=COUNT,
            output_dir=TEXT,
            unfinished=list_of(TEXT),
        ),
        "PredictionPage": object_of(
            first=COUNT,
            more=FLAG,
            rows=list_of(ref("PredictionRow")),
            step=or_null(COUNT),
            steps=list_of(COUNT),
        ),
        "PredictionRow": object_of(
            example=WHOLE_OR_NULL,
            prompt=TEXT_OR_NULL,
            reference=TEXT_OR_NULL,
            prediction=TEXT_OR_NULL,
        ),
        "JobExamples": object_of(
            job=COUNT,
            ready=FLAG,
            notes=list_of(TEXT),
            sample=or_null(ref("DataSample")),
            problem=TEXT_OR_NULL,
        ),
        **answers_of(SavedCheckpoint, CurvePart, CheckpointStatement),
    }


def result_paths() -> dict[str, dict[str, Schema]]:
    """Return the descriptions of requests for job results, keyed by path and HTTP method."""
    points: Schema = {**COUNT, "minimum": 1, "maximum": MOST_POINTS}
    shown: Schema = {**COUNT, "minimum": 1, "maximum": MOST_SHOWN}
    wait: Schema = {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT_SECONDS}
    rows: Schema = {**COUNT, "minimum": 1, "maximum": MOST_ROWS}
    return {
        "/v1/jobs/{id}/curves": get(
            "getCurves",
            _RESULTS,
            "Reports of the job and of those it resumes, as columns",
            {"200": ref("Curves")},
            *(JOB_ID, query_of("points", points, "at most; default: 1000")),
            refused=("403",),
        ),
        "/v1/jobs/{id}/checkpoints": get(
            "listCheckpoints",
            _RESULTS,
            "The checkpoints that the job's directory has now",
            {"200": ref("CheckpointList")},
            JOB_ID,
            refused=("403",),
        ),
        "/v1/jobs/{id}/predictions": get(
            "listPredictions",
            _RESULTS,
            "Texts that an evaluation generated",
            {"200": ref("PredictionPage")},
            *(JOB_ID, query_of("step", COUNT, "step of the evaluation; default: the newest")),
            query_of("first", COUNT, "the row to begin with; default: 0"),
            query_of("limit", rows, "largest number of rows; default: 20"),
            refused=("403",),
        ),
        "/v1/jobs/{id}/examples": get(
            "listExamples",
            _RESULTS,
            "The first training examples of a job as its model sees them",
            {"200": ref("JobExamples")},
            *(JOB_ID, query_of("show", shown, "how many; default: 3")),
            query_of("wait", wait, "longest wait for the examples, in seconds; default: 0"),
            refused=("403",),
        ),
    }


_DAEMON, _EVENTS, _MACHINE, _PAGE = "daemon", "events", "machine", "page"


def _bounded(most: int) -> Schema:
    """Return the schema of an integer from 1 to `most`."""
    return {"type": "integer", "minimum": 1, "maximum": most}


def machine_paths() -> dict[str, dict[str, Schema]]:
    """Return the descriptions of requests about machine and daemon, by path and HTTP method."""
    return {
        "/v1/drain": post(
            "drainQueue",
            _DAEMON,
            "Stop starting jobs, even after a restart of the daemon",
            {"200": ref("Health")},
            refused=("403",),
            body="DrainRequest",
        ),
        "/v1/undrain": post(
            "undrainQueue",
            _DAEMON,
            "Let jobs start again",
            {"200": ref("Health")},
            refused=("403",),
        ),
        "/v1/notices/test": post(
            "testNotices",
            _DAEMON,
            "Send examples of notifications to the configured places",
            {"200": ref("NoticeTest")},
            refused=("403",),
            body="NoticeTestRequest",
        ),
        "/v1/events": get(
            "listEvents",
            _EVENTS,
            "Events committed since",
            {"200": ref("EventPage")},
            SINCE,
            query_of(
                "wait", {"type": "number", "minimum": 0}, "seconds to wait for an event, at most 60"
            ),
        ),
        "/v1/events/stream": get(
            "streamEvents",
            _EVENTS,
            "The events as they come; `id` is `seq`, `data` an Event",
            {"200": TEXT},
            SINCE,
            {"name": "Last-Event-ID", "in": "header", "schema": COUNT},
            content="text/event-stream",
        ),
        "/v1/machine": get(
            "getMachine", _MACHINE, "GPUs, memory and leases", {"200": ref("Machine")}
        ),
        "/v1/history": get(
            "getHistory",
            _MACHINE,
            "The history of the machine and its jobs, as columns",
            {"200": ref("History")},
            query_of(
                "seconds", _bounded(MOST_HISTORY_SECONDS), "how far back, in seconds; default: 3600"
            ),
            query_of("points", _bounded(MOST_HISTORY_POINTS), "at most; default: 240"),
        ),
        "/v1/peaks": get(
            "listPeaks",
            _MACHINE,
            "Peak memory of attempts, also of removed jobs",
            {"200": ref("PeakList")},
            query_of("job", NUMBER, "the job; default: all"),
            query_of("limit", _bounded(MOST_PEAKS), "at most; default: 100"),
        ),
        "/v1/shares": get(
            "getShares",
            _MACHINE,
            "GPU use per user, and whose jobs start first",
            {"200": ref("Shares")},
        ),
        "/v1/web/links": post(
            "createPageLink",
            _PAGE,
            "A link to the page for browsers, for the user who asks; the link works once",
            {"201": ref("PageLink")},
            refused=("409",),
        ),
        "/v1/web/end": post(
            "endPageSessions",
            _PAGE,
            "End all browser sessions of the user who asks",
            {"200": ref("EndedSessions")},
        ),
        "/v1/health": get("getHealth", _DAEMON, "The daemon", {"200": ref("Health")}),
        "/metrics": get(
            "getMetrics",
            _DAEMON,
            "Metrics for monitoring, as Prometheus text or OpenMetrics",
            {"200": TEXT},
            {"name": "Accept", "in": "header", "schema": TEXT},
            content="text/plain",
        ),
        "/v1/openapi.json": get(
            "getOpenApi", _DAEMON, "This document", {"200": ref("OpenApiDocument")}
        ),
    }

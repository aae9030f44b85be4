"""The JSON schemas of responses: jobs, the machine, the daemon, events and explanations."""

from __future__ import annotations

from typing import Any

from zerotools.sensors.snapshot import Snapshot
from zerotoolsd.config.notify_config import DESTINATION_NOTICES, SERVICES
from zerotoolsd.http.api.openapi.schema_builders import (
    ANY_OBJECT,
    COUNT,
    FLAG,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    WHOLE_OR_NULL,
    Schema,
    answers_of,
    list_of,
    object_of,
    of_answer,
    of_type,
    or_null,
    ref,
)
from zerotoolsd.interface.api_types import AttemptView, CleanedJob, Event, JobView, KeptJob
from zerotoolsd.interface.start_conditions import Drain
from zerotoolsd.monitoring.history_file import AttemptPeak
from zerotoolsd.queue.rows import ArrayPlace
from zerotoolsd.queue.tables.preemption_table import YieldRow
from zerotoolsd.service.explain_job import Holder, QueuePlace

_NUMBER: Schema = of_type(float)


def answer_components() -> dict[str, Schema]:
    """Return the schemas of responses keyed by the name of the component."""
    return {
        **_job_components(),
        **_machine_components(),
        **answers_of(Event, CleanedJob, KeptJob, Drain),
        "EventPage": object_of(events=list_of(ref("Event")), next=COUNT),
        "Problem": object_of(title=TEXT, status=COUNT, detail=TEXT, code=TEXT),
        "Health": object_of(
            ("version", "pid", "schema", "uptime_seconds"),
            version=TEXT,
            pid=COUNT,
            schema=COUNT,
            uptime_seconds=_NUMBER,
            api_versions=list_of(COUNT),
            last_event=COUNT,
            drain=or_null(ref("Drain")),
        ),
        "NoticeTest": object_of(sent=list_of(ref("NoticeAnswer"))),
        "NoticeAnswer": object_of(
            place=TEXT,
            service={"enum": list(SERVICES)},
            notice={"enum": list(DESTINATION_NOTICES)},
            delivered=FLAG,
            answer=TEXT,
        ),
    }


def _job_components() -> dict[str, Schema]:
    views = answers_of(JobView, AttemptView, ArrayPlace)
    views["JobView"] = of_answer(
        JobView,
        state_word=TEXT,
        attempt=or_null(ref("AttemptView")),
        after=list_of(ref("JobDependency")),
        array=or_null(ref("ArrayPlace")),
        latest_checkpoint=or_null(ref("LatestCheckpoint")),
        uploaded=or_null(ref("UploadedCheckpoint")),
        progress=or_null(ref("ProgressRecord")),
        phase=or_null(ref("JobPhase")),
        spec=ref("JobWithDefaults"),
    )
    views["AttemptView"] = of_answer(AttemptView, binding=or_null(list_of(ref("RankBinding"))))
    return {
        **views,
        "JobWithDefaults": {
            **ANY_OBJECT,
            "description": "The keys of a Job with their defaults; values of env are masked.",
        },
        "JobDependency": object_of(
            ("job", "condition"), job=NUMBER, condition=TEXT, state=TEXT_OR_NULL
        ),
        "LatestCheckpoint": object_of(
            ("step", "path"),
            step=COUNT,
            path=TEXT,
            verified=or_null(ref("Verification")),
            not_verified=TEXT_OR_NULL,
            thinned=TEXT_OR_NULL,
        ),
        "Verification": object_of(how=TEXT, time=NUMBER_OR_NULL),
        "UploadedCheckpoint": object_of(
            step=WHOLE_OR_NULL, path=TEXT_OR_NULL, time=NUMBER_OR_NULL, why=TEXT_OR_NULL
        ),
        "ProgressRecord": {**ANY_OBJECT, "description": "A report of a rank, unchanged."},
        "JobPhase": object_of(
            ("doing", "since", "last_progress", "quiet", "last_line"),
            doing=TEXT_OR_NULL,
            since=NUMBER_OR_NULL,
            last_progress=NUMBER_OR_NULL,
            quiet=FLAG,
            last_line=TEXT_OR_NULL,
            usual_seconds=NUMBER_OR_NULL,
            name=TEXT_OR_NULL,
            last_step=NUMBER_OR_NULL,
            step_seconds=NUMBER_OR_NULL,
            late=FLAG,
            step_is_old=FLAG,
            waits_for=or_null(ref("AwaitedRank")),
            deadline_seconds=NUMBER_OR_NULL,
            stalled=FLAG,
            stall=TEXT_OR_NULL,
        ),
        "AwaitedRank": object_of(
            rank=of_type(int), at=TEXT, since=NUMBER_OR_NULL, state=TEXT_OR_NULL
        ),
        "RankBinding": object_of(
            ranks=TEXT, cpus=TEXT, memory_nodes=list_of(COUNT), why=TEXT_OR_NULL
        ),
        "JobList": object_of(jobs=list_of(ref("JobView"))),
        "JobPage": object_of(jobs=list_of(ref("JobView")), next=or_null(COUNT)),
        "AdoptedJob": object_of(job=ref("JobView"), watched=ref("WatchedProcess")),
        "WatchedProcess": object_of(pid=NUMBER, below=list_of(NUMBER), gpu_uuids=list_of(TEXT)),
        "ArrayChange": object_of(jobs=list_of(ref("JobView")), kept=list_of(ref("UnchangedJob"))),
        "UnchangedJob": object_of(job=NUMBER, why=TEXT),
        "CheckNotes": object_of(("notes",), notes=list_of(TEXT), sample=or_null(ref("DataSample"))),
        "ImportedJob": object_of(
            job=or_null(ref("Job")), text=TEXT, missing=list_of(TEXT), notes=list_of(TEXT)
        ),
        "DataSample": object_of(
            examples=list_of(ref("SampleExample")),
            looked_at=COUNT,
            empty=COUNT,
            duplicates=COUNT,
            tokens=COUNT,
            trained_tokens=COUNT,
            lengths=list_of(list_of(COUNT)),
            packed=or_null(ref("PackedSample")),
            epoch=or_null(ref("ExpectedEpoch")),
            memory=TEXT_OR_NULL,
        ),
        "PackedSample": object_of(sequences=COUNT, length=COUNT, filled=NUMBER),
        "ExpectedEpoch": object_of(
            tokens=COUNT, sequences=COUNT, steps=COUNT, operations=NUMBER_OR_NULL
        ),
        "SamplePart": object_of(text=TEXT, trained=FLAG),
        "SampleExample": object_of(
            place=TEXT,
            parts=list_of(ref("SamplePart")),
            text_cut=FLAG,
            tokens=COUNT,
            trained_tokens=COUNT,
            tokens_lost=COUNT,
        ),
        "Cleaned": object_of(
            jobs=list_of(ref("CleanedJob")), kept=list_of(ref("KeptJob")), dry_run=FLAG
        ),
        "ProgressPage": object_of(
            records=list_of(ref("ProgressRecord")), next=COUNT, attempt=COUNT, over=FLAG
        ),
    }


def _machine_components() -> dict[str, Schema]:
    column = list_of(NUMBER_OR_NULL)
    found = answers_of(Snapshot, AttemptPeak)
    found["AttemptPeak"]["properties"]["user"] = TEXT_OR_NULL
    return {
        **found,
        "Machine": object_of(
            ("snapshot", "leases"),
            snapshot=ref("Snapshot"),
            leases=list_of(ref("GpuLease")),
            launch=ref("LaunchBackend"),
            gpu_locks=ref("GpuLocks"),
            warm_start=ref("WarmStart"),
            gpu_choice=ref("GpuChoice"),
            numa=ref("NumaNodes"),
        ),
        "GpuLease": object_of(
            gpu_uuid=TEXT,
            job_id=NUMBER,
            attempt=WHOLE_OR_NULL,
            held_by=TEXT_OR_NULL,
            bytes=WHOLE_OR_NULL,
            uid=WHOLE_OR_NULL,
        ),
        "LaunchBackend": object_of(by=TEXT, why=TEXT, trouble=TEXT_OR_NULL),
        "GpuLocks": object_of(directory=TEXT_OR_NULL, trouble=TEXT_OR_NULL, held=list_of(TEXT)),
        "GpuChoice": object_of(unknown=list_of(TEXT)),
        "WarmStart": object_of(
            enabled=FLAG, trouble=TEXT_OR_NULL, servers=list_of(ref("WarmServer"))
        ),
        "WarmServer": object_of(
            kind=TEXT,
            pid=NUMBER,
            python=TEXT,
            ready=FLAG,
            memory_bytes=WHOLE_OR_NULL,
            idle_seconds=_NUMBER,
            jobs=COUNT,
        ),
        "NumaNodes": object_of(
            nodes=list_of(ref("NumaNode")), allowed_cpus=TEXT, allowed_nodes=TEXT
        ),
        "NumaNode": object_of(number=COUNT, cpus=TEXT, memory_bytes=COUNT, socket=WHOLE_OR_NULL),
        "History": object_of(
            step_seconds=COUNT,
            times=list_of(COUNT),
            series={"type": "object", "additionalProperties": ref("SeriesColumns")},
            trouble=TEXT_OR_NULL,
        ),
        "SeriesColumns": object_of(mean=column, most=column),
        "PeakList": object_of(peaks=list_of(ref("AttemptPeak"))),
        "PageLink": object_of(url=TEXT, port=COUNT, expires_seconds=_NUMBER),
        "EndedSessions": object_of(ended=COUNT),
        "Shares": object_of(half_life_seconds=_NUMBER, fair=FLAG, users=list_of(ref("UserShare"))),
        "UserShare": _user_share(),
        "OpenApiDocument": {**ANY_OBJECT, "description": "An OpenAPI 3.1 document."},
    }


def _user_share() -> Schema:
    numbers: dict[str, Any] = dict.fromkeys(
        ("weight", "share", "used", "gpu_hours", "gpu_hours_in_all", "factor", "gpus"), _NUMBER
    )
    return object_of(None, uid=COUNT, name=TEXT, waiting=COUNT, **numbers)


def explanation_components() -> dict[str, Schema]:
    """Return the schemas of a job's explanation keyed by the name of the component; `Explanation`
    is the whole response.
    """
    retries = object_of(
        used=COUNT,
        max=COUNT,
        rule={"enum": ["auto", "always"]},
        cause=TEXT_OR_NULL,
        after=TEXT_OR_NULL,
        cause_ends=COUNT,
        cause_max=WHOLE_OR_NULL,
        counts=FLAG,
        next_try=NUMBER_OR_NULL,
    )
    end = object_of(
        attempt=COUNT,
        cause_kind=TEXT_OR_NULL,
        cause=TEXT_OR_NULL,
        rank=WHOLE_OR_NULL,
        exit_code=WHOLE_OR_NULL,
        signal=WHOLE_OR_NULL,
        steps_done=COUNT,
        saved_step=WHOLE_OR_NULL,
        ended=NUMBER_OR_NULL,
    )
    notification = object_of(
        notice=TEXT,
        channel={"enum": ["webhook", "command", "place"]},
        place=TEXT_OR_NULL,
        tries=COUNT,
        next_try=of_type(float),
        trouble=TEXT_OR_NULL,
    )
    explanation = object_of(
        id=COUNT,
        name=TEXT,
        state=TEXT,
        state_word=TEXT,
        state_since=NUMBER_OR_NULL,
        why=TEXT_OR_NULL,
        phase=or_null(ref("JobPhase")),
        place=or_null(ref("QueuePlace")),
        size=TEXT_OR_NULL,
        holders=list_of(ref("Holder")),
        retries=ref("Retries"),
        end=or_null(ref("AttemptEnd")),
        resumed_from=TEXT_OR_NULL,
        room=list_of(ref("YieldRow")),
        notifications=list_of(ref("PendingNotification")),
        events=list_of(ref("Event")),
    )
    return {
        "Explanation": explanation,
        "Retries": retries,
        "AttemptEnd": end,
        "PendingNotification": notification,
        **answers_of(QueuePlace, Holder, YieldRow),
    }

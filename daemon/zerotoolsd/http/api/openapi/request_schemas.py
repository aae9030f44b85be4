"""The JSON schemas of request bodies."""

from __future__ import annotations

from zerotools.jobs.job_arrays import MOST_MEMBERS
from zerotools.jobs.priority_range import LEAST_PRIORITY, MOST_PRIORITY
from zerotools.jobs.states import TERMINAL
from zerotoolsd.config.notify_config import DESTINATION_NOTICES
from zerotoolsd.http.api.openapi.schema_builders import (
    FLAG,
    KEY,
    NUMBER,
    TEXT,
    Schema,
    closed,
    list_of,
    object_of,
    of_type,
    or_null,
    ref,
)
from zerotoolsd.http.api.request_validation import LARGEST_INT, LONGEST_TEXT
from zerotoolsd.interface.api_types import ARRAY_OPERATIONS
from zerotoolsd.interface.start_conditions import CONDITIONS

LARGEST_PID = 2**22
"""The largest value of `/proc/sys/kernel/pid_max` on 64-bit Linux (proc(5))."""
LONGEST_SPAN = 40
JOB_ORDERS = ("newest", "priority")
"""The orders in which jobs are listed, the default first."""
MOST_SHOWN = 20
"""The largest number of training examples that a check returns."""


def text_schema(longest: int) -> Schema:
    """Return the schema of a value that is null, or text of at most `longest` characters."""
    return {"type": ["string", "null"], "minLength": 1, "maxLength": longest}


_PRIORITY: Schema = {"type": "integer", "minimum": LEAST_PRIORITY, "maximum": MOST_PRIORITY}
_PRIORITY_OR_NULL: Schema = {**_PRIORITY, "type": ["integer", "null"]}
_AFTER = or_null(list_of(ref("Dependency")))
_BEGIN: Schema = {"type": ["number", "null"], "minimum": 0, "exclusiveMaximum": LARGEST_INT}
_TERMS: dict[str, Schema] = {
    "priority": _PRIORITY_OR_NULL,
    "hold": FLAG,
    "begin": _BEGIN,
    "after": _AFTER,
}
_JOB: dict[str, Schema] = {"job": ref("Job"), **_TERMS}
_SWEEP: Schema = {"type": ["object", "null"], "additionalProperties": list_of({})}
_MEMBERS: Schema = {"type": ["integer", "null"], "minimum": 1, "maximum": MOST_MEMBERS}


def request_components() -> dict[str, Schema]:
    """Return the schemas of request bodies by component name.

    Keys that are not listed are refused.
    """
    found = {
        "Dependency": object_of(
            ("job",), job=NUMBER, condition={"type": "string", "enum": list(CONDITIONS)}
        ),
        "SubmitRequest": object_of(("job",), idempotency_key=KEY, **_JOB),
        "ArrayRequest": object_of(
            ("job",), idempotency_key=KEY, sweep=_SWEEP, count=_MEMBERS, **_JOB
        ),
        "CheckRequest": object_of(
            ("job",),
            model=FLAG,
            show={"type": "integer", "minimum": 0, "maximum": MOST_SHOWN},
            **_JOB,
        ),
        "ImportRequest": {
            **object_of(
                (),
                text=text_schema(LONGEST_TEXT),
                convert=or_null(list_of(of_type(str))),
                deepspeed=text_schema(LONGEST_TEXT),
                name=text_schema(255),
            ),
            "anyOf": [{"required": ["text"]}, {"required": ["convert"]}],
        },
        "AdoptionRequest": object_of(
            ("pid",),
            pid={"type": "integer", "minimum": 1, "maximum": LARGEST_PID},
            name=text_schema(4096),
            checkpoint_dir=text_schema(4096),
            time_limit={**text_schema(LONGEST_SPAN), "type": ["integer", "string", "null"]},
        ),
        "PriorityRequest": object_of(priority=_PRIORITY),
        "EditRequest": object_of(
            (),
            set={"type": ["object", "null"]},
            unset={"type": ["array", "null"], "items": {"type": "string"}},
            after=_AFTER,
            begin=_BEGIN,
        ),
        "RetryRequest": object_of((), output_dir=text_schema(4096), from_start=FLAG),
        "RetryArrayRequest": object_of((), output_dir=text_schema(4096), from_start=FLAG),
        "ArrayChangeRequest": object_of(
            ("do",),
            do={"type": "string", "enum": list(ARRAY_OPERATIONS)},
            priority=_PRIORITY_OR_NULL,
            lose_steps=FLAG,
        ),
        "HoldRequest": object_of((), lose_steps=FLAG),
        "PauseRequest": object_of((), lose_steps=FLAG),
        "DrainRequest": object_of((), why=text_schema(500)),
        "NoticeTestRequest": object_of(
            (),
            places=or_null(list_of(TEXT)),
            kinds=or_null(list_of({"type": "string", "enum": list(DESTINATION_NOTICES)})),
        ),
        "CleanRequest": object_of(
            (),
            jobs=or_null(list_of(of_type(int))),
            states=or_null(list_of({"enum": sorted(TERMINAL)})),
            older_than_seconds={"type": ["number", "null"], "minimum": 0},
            keep={"type": ["integer", "null"], "minimum": 0, "maximum": LARGEST_INT},
            **dict.fromkeys(("outputs", "logs_only", "dry_run"), FLAG),
        ),
    }
    return {name: closed(schema) for name, schema in found.items()}

"""The requests about what a job has produced."""

from __future__ import annotations

from zerotoolsd.api.document.json_schemas import Schema, of_type
from zerotoolsd.api.document.operation_terms import (
    ANY_OBJECT,
    COUNT,
    JOB_ID,
    list_of,
    object_of,
    operation,
    query_of,
)
from zerotoolsd.api.results import MOST_POINTS, MOST_ROWS

_COLUMNS: Schema = {
    "type": "object",
    "additionalProperties": list_of({"type": ["number", "null"]}),
}
_CURVES = object_of(
    checkpoints=list_of(ANY_OBJECT),
    evaluations=_COLUMNS,
    follow={"anyOf": [object_of(attempt=COUNT, since=COUNT), {"type": "null"}]},
    job=COUNT,
    not_finite=list_of(COUNT),
    parts=list_of(ANY_OBJECT),
    sampled=of_type(bool),
    steps=_COLUMNS,
)
_CHECKPOINTS = object_of(
    checkpoints=list_of(ANY_OBJECT),
    more=COUNT,
    output_dir={"type": "string"},
    unfinished=list_of({"type": "string"}),
)
_PREDICTIONS = object_of(
    first=COUNT,
    more=of_type(bool),
    rows=list_of(ANY_OBJECT),
    step={"anyOf": [COUNT, {"type": "null"}]},
    steps=list_of(COUNT),
)


def result_paths() -> dict[str, dict[str, Schema]]:
    """By path and method."""
    points: Schema = {**COUNT, "minimum": 1, "maximum": MOST_POINTS}
    rows: Schema = {**COUNT, "minimum": 1, "maximum": MOST_ROWS}
    return {
        "/v1/jobs/{id}/curves": {
            "get": operation(
                "What it and the jobs that it resumes reported, as columns",
                {"200": _CURVES},
                *(JOB_ID, query_of("points", points, "at most; default: 1000")),
            )
        },
        "/v1/jobs/{id}/checkpoints": {
            "get": operation("The checkpoints in its directory now", {"200": _CHECKPOINTS}, JOB_ID)
        },
        "/v1/jobs/{id}/predictions": {
            "get": operation(
                "Texts that an evaluation generated",
                {"200": _PREDICTIONS},
                *(JOB_ID, query_of("step", COUNT, "of the evaluation; default: the newest")),
                query_of("first", COUNT, "the row to begin with; default: 0"),
                query_of("limit", rows, "rows, at most; default: 20"),
            )
        },
    }

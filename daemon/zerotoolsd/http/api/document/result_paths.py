"""The requests about the results of a job, and the components of their responses."""

from __future__ import annotations

from zerotoolsd.http.api.document.json_schemas import Schema, answers_of, ref
from zerotoolsd.http.api.document.operation_terms import (
    COUNT,
    FLAG,
    JOB_ID,
    NUMBER_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    WHOLE_OR_NULL,
    get,
    list_of,
    object_of,
    or_null,
    query_of,
)
from zerotoolsd.http.api.document.request_schemas import MOST_SHOWN
from zerotoolsd.http.api.results import LONGEST_WAIT_SECONDS, MOST_POINTS, MOST_ROWS
from zerotoolsd.service.results.checkpoint_tree import SavedCheckpoint
from zerotoolsd.service.results.run_curves import CheckpointStatement, CurvePart

_RESULTS = "results"


def result_components() -> dict[str, Schema]:
    """Return the components by name."""
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
    """Return the operations by path and method."""
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
            "The checkpoints in its directory now",
            {"200": ref("CheckpointList")},
            JOB_ID,
            refused=("403",),
        ),
        "/v1/jobs/{id}/predictions": get(
            "listPredictions",
            _RESULTS,
            "Texts that an evaluation generated",
            {"200": ref("PredictionPage")},
            *(JOB_ID, query_of("step", COUNT, "of the evaluation; default: the newest")),
            query_of("first", COUNT, "the row to begin with; default: 0"),
            query_of("limit", rows, "rows, at most; default: 20"),
            refused=("403",),
        ),
        "/v1/jobs/{id}/examples": get(
            "listExamples",
            _RESULTS,
            "The first examples of its data as its model sees them",
            {"200": ref("JobExamples")},
            *(JOB_ID, query_of("show", shown, "how many; default: 3")),
            query_of("wait", wait, "seconds until they are there; default: 0"),
            refused=("403",),
        ),
    }

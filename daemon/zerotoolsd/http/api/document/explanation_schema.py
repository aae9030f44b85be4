"""The components of the response of `GET /v1/jobs/{id}/explain`."""

from __future__ import annotations

from zerotoolsd.http.api.document.json_schemas import Schema, answers_of, of_type, ref
from zerotoolsd.http.api.document.operation_terms import (
    COUNT,
    FLAG,
    NUMBER_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    WHOLE_OR_NULL,
    list_of,
    object_of,
    or_null,
)
from zerotoolsd.queue.tables.preemption_table import YieldRow
from zerotoolsd.service.explain.explanation import Holder, QueuePlace


def explanation_components() -> dict[str, Schema]:
    """Return the components by name; `Explanation` is the answer."""
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
        channel={"enum": ["webhook", "command"]},
        tries=COUNT,
        next_try=of_type(float),
        trouble=TEXT_OR_NULL,
    )
    explanation = object_of(
        id=COUNT,
        name=TEXT,
        state=TEXT,
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

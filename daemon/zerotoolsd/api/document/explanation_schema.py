"""What `GET /v1/jobs/{id}/explain` answers."""

from __future__ import annotations

from zerotoolsd.api.document.json_schemas import Schema, of_answer, of_type
from zerotoolsd.api.document.operation_terms import COUNT, TEXT_OR_NULL, list_of, object_of, ref
from zerotoolsd.explaining.explanation import Holder, QueuePlace
from zerotoolsd.queue.yielding.yield_table import YieldRow


def explanation() -> Schema:
    none, number = {"type": "null"}, {"type": ["number", "null"]}
    whole, text_or_null = {"type": ["integer", "null"]}, TEXT_OR_NULL
    retries = object_of(
        used=COUNT,
        max=COUNT,
        rule={"enum": ["auto", "always"]},
        cause=text_or_null,
        after=text_or_null,
        cause_ends=COUNT,
        cause_max=whole,
        counts=of_type(bool),
        next_try=number,
    )
    end = object_of(
        attempt=COUNT,
        cause_kind=text_or_null,
        cause=text_or_null,
        rank=whole,
        exit_code=whole,
        signal=whole,
        steps_done=COUNT,
        saved_step=whole,
        ended=number,
    )
    notice = object_of(
        notice=of_type(str),
        channel={"enum": ["webhook", "command"]},
        tries=COUNT,
        next_try=of_type(float),
        trouble=text_or_null,
    )
    return object_of(
        id=COUNT,
        name=of_type(str),
        state=of_type(str),
        why=text_or_null,
        place={"anyOf": [of_answer(QueuePlace), none]},
        size=text_or_null,
        holders=list_of(of_answer(Holder)),
        retries=retries,
        end={"anyOf": [end, none]},
        resumed_from=text_or_null,
        room=list_of(of_answer(YieldRow)),
        notifications=list_of(notice),
        events=list_of(ref("Event")),
    )

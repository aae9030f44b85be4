"""Schemas of what requests say of how jobs are to wait, and of how many they are."""

from __future__ import annotations

from zerotools.jobs.priorities import LEAST_PRIORITY, MOST_PRIORITY
from zerotools.jobs.sweeps import MOST_MEMBERS
from zerotoolsd.api.inputs import LARGEST_INT
from zerotoolsd.api.json_schemas import Schema
from zerotoolsd.service import CONDITIONS

PRIORITY_SCHEMA: Schema = {"type": "integer", "minimum": LEAST_PRIORITY, "maximum": MOST_PRIORITY}
_DEPENDENCY: Schema = {
    "type": "object",
    "properties": {
        "job": {"type": "integer", "minimum": 1, "maximum": LARGEST_INT},
        "condition": {"type": "string", "enum": list(CONDITIONS)},
    },
    "required": ["job"],
    "additionalProperties": False,
}
TERMS_SCHEMA: dict[str, Schema] = {
    "priority": {**PRIORITY_SCHEMA, "type": ["integer", "null"]},
    "hold": {"type": "boolean"},
    "begin": {"type": ["number", "null"], "minimum": 0, "exclusiveMaximum": LARGEST_INT},
    "after": {"type": ["array", "null"], "items": _DEPENDENCY},
}
ARRAY_SCHEMA: dict[str, Schema] = {
    "sweep": {"type": ["object", "null"], "additionalProperties": {"type": "array"}},
    "count": {"type": ["integer", "null"], "minimum": 1, "maximum": MOST_MEMBERS},
}

"""Schemas that no dataclass has: how jobs are to wait, how many they are, what is cleaned, and how
the daemon is."""

from __future__ import annotations

from zerotools.jobs.priorities import LEAST_PRIORITY, MOST_PRIORITY
from zerotools.jobs.states import TERMINAL
from zerotools.jobs.sweeps import MOST_MEMBERS
from zerotoolsd.api.document.json_schemas import Schema, of_answer, of_type
from zerotoolsd.api.inputs import LARGEST_INT
from zerotoolsd.queue_terms import CONDITIONS, Drain
from zerotoolsd.service.exchanged import ARRAY_OPERATIONS


def text_schema(longest: int) -> Schema:
    """Text of at most so many characters, or null."""
    return {"type": ["string", "null"], "minLength": 1, "maxLength": longest}


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
EDIT_SCHEMA: dict[str, Schema] = {
    "set": {"type": ["object", "null"]},
    "unset": {"type": ["array", "null"], "items": {"type": "string"}},
    "after": TERMS_SCHEMA["after"],
    "begin": TERMS_SCHEMA["begin"],
}
ARRAY_CHANGE_SCHEMA: dict[str, Schema] = {
    "do": {"type": "string", "enum": list(ARRAY_OPERATIONS)},
    "priority": TERMS_SCHEMA["priority"],
    "lose_steps": {"type": "boolean"},
}
ARRAY_SCHEMA: dict[str, Schema] = {
    "sweep": {"type": ["object", "null"], "additionalProperties": {"type": "array"}},
    "count": {"type": ["integer", "null"], "minimum": 1, "maximum": MOST_MEMBERS},
}
LARGEST_PID = 2**22
"""`/proc/sys/kernel/pid_max` of 64-bit Linux, at most (proc(5))."""
LONGEST_SPAN = 40
ADOPTION_SCHEMA: dict[str, Schema] = {
    "pid": {"type": "integer", "minimum": 1, "maximum": LARGEST_PID},
    "name": text_schema(4096),
    "checkpoint_dir": text_schema(4096),
    "time_limit": {**text_schema(LONGEST_SPAN), "type": ["integer", "string", "null"]},
}
CLEAN_SCHEMA: Schema = {
    "type": "object",
    "properties": {
        "jobs": {"anyOf": [{"type": "null"}, {"type": "array", "items": of_type(int)}]},
        "states": {
            "anyOf": [{"type": "null"}, {"type": "array", "items": {"enum": sorted(TERMINAL)}}]
        },
        "older_than_seconds": {"type": ["number", "null"], "minimum": 0},
        "keep": {"type": ["integer", "null"], "minimum": 0, "maximum": LARGEST_INT},
        **{name: of_type(bool) for name in ("outputs", "logs_only", "dry_run")},
    },
    "additionalProperties": False,
}
_COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": LARGEST_INT}
HEALTH_SCHEMA: Schema = {
    "type": "object",
    "properties": {
        "version": of_type(str),
        "pid": _COUNT,
        "schema": _COUNT,
        "uptime_seconds": of_type(float),
        "api_versions": {"type": "array", "items": _COUNT},
        "last_event": _COUNT,
        "drain": {"anyOf": [of_answer(Drain), of_type(type(None))]},
    },
    "required": ["version", "pid", "schema", "uptime_seconds"],
}

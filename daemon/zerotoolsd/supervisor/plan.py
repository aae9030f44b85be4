"""`attempt.json`: everything that the supervisor is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ATTEMPT = "attempt.json"
RUN = "run.json"
EXIT = "exit.json"
REQUEST = "request.json"
LOCK = "lock"
STOP = "stop"
NOTIFY = "notify.sock"
PROGRESS = "progress.jsonl"
SUMMARY = "summary"
"""The event of the supervisor's own lines in `progress.jsonl`: what an attempt came to so far."""

OUTSIDE = "SIGTERM"
"""The reason of a stop that the daemon did not ask for."""

EXIT_LOCKED = 3
"""The supervisor's own exit status: another copy holds the lock."""
EXIT_USED = 4
"""The supervisor's own exit status: the attempt was started before."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One attempt. `argv` is the command of one rank, `env` its whole environment but its rank;
    `closing` is run once, with the same, when all ranks have finished."""

    job_id: int
    attempt: int
    token: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    umask: int
    world_size: int
    gpu_uuids: tuple[str, ...]
    grace_seconds: float
    straggler_seconds: float
    log_limit_bytes: int
    closing: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All fields, under their own names."""
        tree = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**tree, "env": dict(self.env)}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Plan:
        """The plan that `to_json` wrote; keys of newer daemons are ignored."""
        known = {"closing": (), **{k: v for k, v in tree.items() if k in cls.__dataclass_fields__}}
        return cls(
            **{
                **known,
                "argv": tuple(known["argv"]),
                "gpu_uuids": tuple(known["gpu_uuids"]),
                "closing": tuple(known["closing"]),
            }
        )

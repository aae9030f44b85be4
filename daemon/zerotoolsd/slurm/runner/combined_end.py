"""Combines the records of an attempt's nodes into one end.

The nodes of an attempt end together, for one reason: a rank of one fails, and those of the others
fail because of that, or are asked to stop. The first independent failure counts. If one node has
`crashed` and another has `not_ready` (it lost its peer), the result is `crashed`; of several equal
ones, that which ended first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotoolsd.queue import lifecycle
from zerotoolsd.supervisor.transient_errors import NOT_READY

_ORDER = (
    lifecycle.BAD_JOB,
    lifecycle.BAD_CHECKPOINT,
    lifecycle.NOT_STARTED,
    lifecycle.CRASHED,
    lifecycle.LOST,
    NOT_READY,
    lifecycle.KILLED,
    lifecycle.STOPPED,
    lifecycle.FINISHED,
)

Record = Mapping[str, Any]


def combined(records: Sequence[Record], names: Sequence[str]) -> dict[str, Any]:
    """Return one record for the records of all nodes, by their numbers; `names` are for people."""
    by_weight = sorted(range(len(records)), key=lambda node: _weight(records[node]))
    first, several = records[by_weight[0]], len(records) > 1
    found = dict(first)
    outcome = str(first.get("outcome"))
    if several and outcome not in (lifecycle.FINISHED, lifecycle.STOPPED):
        found["cause"] = f"{names[by_weight[0]]}: {first.get('cause')}"
    leader = records[0]
    for name in ("steps_done", "progress", "evaluation", "checkpoint"):
        found[name] = leader.get(name) or first.get(name)
    for name in ("peak_gpu_bytes", "peak_host_bytes"):
        values = [each[name] for each in records if type(each.get(name)) is int]
        found[name] = max(values, default=None)
    ran = [each["ran_seconds"] for each in records if isinstance(each.get("ran_seconds"), float)]
    if ran:
        found["ran_seconds"] = max(ran)
    found["unkillable"] = []  # Slurm kills remaining processes, and drains the node if it cannot
    following = ("closing", "uploading", "uploaded")
    found |= {name: leader[name] for name in following if leader.get(name)}
    return found


def _weight(record: Record) -> tuple[int, float]:
    outcome = record.get("outcome")
    rank = _ORDER.index(outcome) if outcome in _ORDER else _ORDER.index(lifecycle.CRASHED)
    ended = record.get("ended")
    return rank, ended if isinstance(ended, float) else float("inf")

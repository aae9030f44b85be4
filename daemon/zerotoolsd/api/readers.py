"""What of a job somebody else may see: that it is there, and what it takes of the machine.

Its owner and administrators see everything. Others see its number, owner, state, times and GPUs, so
that they know what they wait behind; not its name, its paths, its job file, its reasons or its
output. A field of which nobody has said yet that others may see it is hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

from aiohttp import web

from zerotoolsd.api.asking.asked import Asked
from zerotoolsd.api.keys import PEOPLE
from zerotoolsd.rights.policy import Access
from zerotoolsd.service.exchanged import AttemptView, Event, JobView

SEEN_OF_JOB = frozenset(
    {
        "id",
        "state",
        "uid",
        "user",
        "created",
        "started",
        "ended",
        "attempts",
        "world_size",
        "sizes",
        "device",
    }
)
SEEN_OF_ATTEMPT = frozenset({"number", "state", "gpu_uuids", "started", "ended", "world_size"})
_EMPTY: dict[str, Any] = {"output_dir": "", "spec": {}, "steps_done": 0, "run_dir": ""}
"""What hides a field that is never null."""


def hidden_fields(kind: type[Any], seen: frozenset[str]) -> dict[str, Any]:
    """What stands in the place of the fields of `kind` that others do not see."""
    return {
        each.name: _EMPTY.get(each.name, None if each.default is MISSING else each.default)
        for each in fields(kind)
        if each.name not in seen
    }


OUTLIVED = "a process that outlived it"
_HIDDEN_OF_JOB = hidden_fields(JobView, SEEN_OF_JOB)
_HIDDEN_OF_ATTEMPT = hidden_fields(AttemptView, SEEN_OF_ATTEMPT)


async def named(request: web.Request, views: Sequence[JobView]) -> list[JobView]:
    """With what the users are called whose they are."""
    names = await request.app[PEOPLE].names(view.uid for view in views)
    return [replace(view, user=names[view.uid]) for view in views]


def view_for(view: JobView, by: Asked) -> JobView:
    """What who asked may see of a job."""
    if by.sees(view.uid):
        return view
    attempts = tuple(replace(attempt, **_HIDDEN_OF_ATTEMPT) for attempt in view.attempts)
    shown = {**_HIDDEN_OF_JOB, "name": f"job-{view.id}", "attempts": attempts, "masked": True}
    return replace(view, **shown)


def event_for(event: Event, by: Asked) -> Event:
    """What who asked may see of an event."""
    return event if by.sees(event.uid) else replace(event, why=None)


def machine_for(tree: dict[str, Any], by: Asked) -> dict[str, Any]:
    """What who asked may see of the machine. Memory and processes on its GPUs everybody sees, as
    in /proc and by nvidia-smi."""
    leases = [_lease_for(lease, by) for lease in tree["leases"]]
    launch = tree.get("launch")
    if launch is not None and by.access is not Access.ALLOWED:
        launch = {**launch, "trouble": None}  # it may quote what was started
    tree = {**tree, "leases": leases, **({} if launch is None else {"launch": launch})}
    warm = tree.get("warm_start")
    if warm is not None and by.access is not Access.ALLOWED:  # whose interpreters, and what failed
        tree["warm_start"] = {**warm, "trouble": None, "servers": []}
    return tree


def peak_for(tree: dict[str, Any], by: Asked) -> dict[str, Any]:
    """What who asked may see of the most that an attempt held."""
    sees = tree["uid"] is not None and by.sees(tree["uid"])
    return tree if sees else {**tree, "name": None}


def _lease_for(lease: dict[str, Any], by: Asked) -> dict[str, Any]:
    if not lease.get("held_by") or by.sees(lease["uid"]):
        return lease
    return {**lease, "held_by": OUTLIVED}

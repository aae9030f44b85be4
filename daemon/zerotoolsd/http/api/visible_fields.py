"""Decides which part of a job other users may see: that the job exists, and its use of the machine.

The owner of a job and administrators see everything. Other users see its number, owner, state,
times and GPUs, so that they know why their own jobs wait. They do not see its name, paths, job
file, reasons or output. A new field is hidden until it is declared visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

from aiohttp import web

from zerotoolsd.http.api.aiohttp_app_keys import PEOPLE
from zerotoolsd.http.api.authorize import AuthorizedRequest
from zerotoolsd.interface.api_types import AttemptView, Event, JobView
from zerotoolsd.users.rights import Access

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
"""The replacement values of hidden fields that may not be null."""


def hidden_fields(kind: type[Any], seen: frozenset[str]) -> dict[str, Any]:
    """Return the fields of dataclass `kind` that other users may not see, each with the value that
    replaces it.
    """
    return {
        each.name: _EMPTY.get(each.name, None if each.default is MISSING else each.default)
        for each in fields(kind)
        if each.name not in seen
    }


OUTLIVED = "a process that it left behind"
_HIDDEN_OF_JOB = hidden_fields(JobView, SEEN_OF_JOB)
_HIDDEN_OF_ATTEMPT = hidden_fields(AttemptView, SEEN_OF_ATTEMPT)


async def named(request: web.Request, views: Sequence[JobView]) -> list[JobView]:
    """Return the jobs with the names of their owners filled in."""
    names = await request.app[PEOPLE].names(view.uid for view in views)
    return [replace(view, user=names[view.uid]) for view in views]


def view_for(view: JobView, by: AuthorizedRequest) -> JobView:
    """Return the part of a job that the caller may see."""
    if by.sees(view.uid):
        return view
    attempts = tuple(replace(attempt, **_HIDDEN_OF_ATTEMPT) for attempt in view.attempts)
    shown = {**_HIDDEN_OF_JOB, "name": f"job-{view.id}", "attempts": attempts, "masked": True}
    return replace(view, **shown)


def event_for(event: Event, by: AuthorizedRequest) -> Event:
    """Return the part of an event that the caller may see."""
    return event if by.sees(event.uid) else replace(event, why=None)


def machine_for(tree: dict[str, Any], by: AuthorizedRequest) -> dict[str, Any]:
    """Return the part of the machine's state that the caller may see.

    Every user may see memory and processes on GPUs, because /proc and nvidia-smi show them, too.
    """
    leases = [_lease_for(lease, by) for lease in tree["leases"]]
    launch = tree.get("launch")
    if launch is not None and by.access is not Access.ALLOWED:
        launch = {**launch, "trouble": None}  # it may quote the started command
    tree = {**tree, "leases": leases, **({} if launch is None else {"launch": launch})}
    warm = tree.get("warm_start")
    if warm is not None and by.access is not Access.ALLOWED:  # it has the owners of interpreters
        tree["warm_start"] = {**warm, "trouble": None, "servers": []}
    return tree


def peak_for(tree: dict[str, Any], by: AuthorizedRequest) -> dict[str, Any]:
    """Return the part of an attempt's peak memory that the caller may see."""
    sees = tree["uid"] is not None and by.sees(tree["uid"])
    return tree if sees else {**tree, "name": None}


def _lease_for(lease: dict[str, Any], by: AuthorizedRequest) -> dict[str, Any]:
    if not lease.get("held_by") or by.sees(lease["uid"]):
        return lease
    return {**lease, "held_by": OUTLIVED}

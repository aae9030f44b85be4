"""What of a job somebody else may see: that it is there, and what it takes of the machine.

Its owner, root and the user of the daemon see everything. Others see its number, owner, state,
times and size, so that they know what they wait behind; not its name, its paths, its job file, its
reasons or its output.
"""

from __future__ import annotations

import os
from dataclasses import replace

from aiohttp import web

from zerotoolsd.api import inputs
from zerotoolsd.api.keys import SERVICE
from zerotoolsd.api.peer import peer_uid
from zerotoolsd.service import AttemptView, Event, Forbidden, JobView


def sees_all(uid: int, owner: int) -> bool:
    """Whether `uid` may see all of a job of `owner`."""
    return uid in (owner, os.geteuid(), 0)


def view_for(view: JobView, uid: int) -> JobView:
    """What `uid` may see of a job."""
    if sees_all(uid, view.uid):
        return view
    return replace(
        view,
        name=f"job-{view.id}",
        reason=None,
        attempts=tuple(map(_attempt_for_others, view.attempts)),
        stage=None,
        output_dir="",
        latest_checkpoint=None,
        progress=None,
        phase=None,
        spec={},
        set_keys=None,
        environment=None,
    )


def _attempt_for_others(attempt: AttemptView) -> AttemptView:
    return replace(attempt, cause=None, resumed_from=None, run_dir="")


def event_for(event: Event, uid: int) -> Event:
    """What `uid` may see of an event. All jobs are of the user of the daemon, or root's."""
    return event if sees_all(uid, os.geteuid()) else replace(event, why=None)


async def readable_job(request: web.Request) -> JobView:
    """The job of the path, all of which the caller may see. Raises NotFound, Forbidden."""
    view, uid = await request.app[SERVICE].job(inputs.job_id(request)), peer_uid(request)
    if not sees_all(uid, view.uid):
        raise Forbidden(f"job {view.id} belongs to uid {view.uid}, and you are uid {uid}")
    return view

"""Handlers of /v1/jobs and /v1/check: submit, check, list, show, cancel, resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.priorities import why_not_priority
from zerotools.jobs.states import STATES
from zerotools.jobs.text.secrets import HIDDEN
from zerotoolsd.api import inputs
from zerotoolsd.api.answers import answer, answer_unless_known
from zerotoolsd.api.keys import SERVICE
from zerotoolsd.api.peer import peer_uid
from zerotoolsd.api.readers import readable_job, sees_all, view_for
from zerotoolsd.service import JobView, QueueTerms

MAX_JOBS = 1000
TERMS = ("priority",)
"""Keys of a request that say how its job is to wait."""


def view_json(view: JobView) -> dict[str, Any]:
    """A job for a client. No value of its `[env]` leaves the daemon."""
    tree = view.to_json()
    spec = dict(tree["spec"])
    env = spec.get("env")
    if isinstance(env, Mapping):
        spec["env"] = dict.fromkeys(env, HIDDEN)
    return {**tree, "spec": spec}


def _in_a_list(view: JobView, uid: int) -> dict[str, Any]:
    """A job in a list: without what a page of a hundred would repeat a hundred times."""
    tree = view_json(view_for(view, uid))
    tree["spec"].pop("captured_env", None)
    return tree


def terms_of(body: Mapping[str, Any]) -> QueueTerms:
    """How the job of a request is to wait. Raises BadRequest."""
    return QueueTerms(priority=_priority(body))


def _priority(body: Mapping[str, Any]) -> int | None:
    value = body.get("priority")
    if value is None:
        return None
    if (why := why_not_priority(value)) is not None:
        raise BadRequest(f"priority: {why}")
    return int(value)


async def submit(request: web.Request) -> web.Response:
    """POST /v1/jobs."""
    uid = peer_uid(request)
    body = await inputs.json_object(request, known=("job", "idempotency_key", *TERMS))
    if "job" not in body:
        raise BadRequest("the key 'job' is missing")
    key = inputs.idempotency_key(body.get("idempotency_key"))
    spec = job_from_dict(body["job"], source="job")
    view, is_new = await request.app[SERVICE].submit(
        spec, uid=uid, idempotency_key=key, terms=terms_of(body)
    )
    return answer(view_json(view), status=201 if is_new else 200)


async def check(request: web.Request) -> web.Response:
    """POST /v1/check."""
    uid = peer_uid(request)
    body = await inputs.json_object(request, known=("job", "model", *TERMS))
    if "job" not in body:
        raise BadRequest("the key 'job' is missing")
    if not isinstance(model := body.get("model", False), bool):
        raise BadRequest("model: must be true or false")
    spec = job_from_dict(body["job"], source="job")
    notes = await request.app[SERVICE].check(spec, uid=uid, model=model, terms=terms_of(body))
    return answer({"notes": notes})


async def list_jobs(request: web.Request) -> web.Response:
    """GET /v1/jobs?state=&limit=&after=&name=."""
    state = request.query.get("state")
    if state is not None and state not in STATES:
        raise BadRequest(f"state={state[:40]!r}: must be one of {', '.join(STATES)}")
    limit = inputs.whole(request.query, "limit", 100, minimum=1, maximum=MAX_JOBS)
    after = inputs.whole(request.query, "after", None, minimum=0)
    assert limit is not None
    name, uid = request.query.get("name"), peer_uid(request)
    views = await request.app[SERVICE].jobs(state=state, limit=limit, after=after, name=name)
    after = views[-1].id if len(views) == limit else None
    # What somebody may not see, a question for its name does not tell either.
    shown = [view for view in views if name is None or sees_all(uid, view.uid)]
    tree = {"jobs": [_in_a_list(view, uid) for view in shown], "next": after}
    return answer_unless_known(request, tree)


async def show(request: web.Request) -> web.Response:
    """GET /v1/jobs/{id}."""
    return answer_unless_known(request, view_json(await readable_job(request)))


async def explain(request: web.Request) -> web.Response:
    """GET /v1/jobs/{id}/explain."""
    view = await readable_job(request)
    return answer(await request.app[SERVICE].explain(view.id))


async def cancel(request: web.Request) -> web.Response:
    """POST /v1/jobs/{id}/cancel."""
    job_id = inputs.job_id(request)
    await inputs.no_body(request)
    view = await request.app[SERVICE].cancel(job_id, uid=peer_uid(request))
    return answer(view_json(view), status=202)


async def set_priority(request: web.Request) -> web.Response:
    """POST /v1/jobs/{id}/priority."""
    job_id = inputs.job_id(request)
    body = await inputs.json_object(request, known=("priority",))
    if (priority := _priority(body)) is None:
        raise BadRequest("the key 'priority' is missing")
    uid = peer_uid(request)
    return answer(view_json(await request.app[SERVICE].set_priority(job_id, priority, uid=uid)))


async def resume(request: web.Request) -> web.Response:
    """POST /v1/jobs/{id}/resume."""
    job_id = inputs.job_id(request)
    await inputs.no_body(request)
    view = await request.app[SERVICE].resume(job_id, uid=peer_uid(request))
    return answer(view_json(view), status=200 if view.id == job_id else 201)

"""Handlers of /v1/jobs and /v1/check: submit, check, list, show, edit, cancel, hold, and arrays."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from zerotools.core.errors import BadRequest
from zerotools.jobs.job_arrays import MOST_MEMBERS, count_of, each_member
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.priority_range import why_not_priority
from zerotools.jobs.states import STATE_WORDS, STATES, states_of
from zerotools.jobs.text.mask_secrets import HIDDEN
from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.aiohttp_app_keys import PEOPLE, SERVICE
from zerotoolsd.http.api.authorize import AuthorizedRequest, authorized_request
from zerotoolsd.http.api.openapi.request_schemas import (
    JOB_ORDERS,
    LARGEST_PID,
    LONGEST_SPAN,
    MOST_SHOWN,
)
from zerotoolsd.http.api.responses import (
    answer_unless_known,
    json_response,
    json_text,
    parts_unless_known,
)
from zerotoolsd.http.api.visible_fields import named, view_for
from zerotoolsd.interface.api_types import ARRAY_OPERATIONS, Adoption, ArrayRequest, JobView
from zerotoolsd.interface.event_loop_slice import TimeSlice
from zerotoolsd.interface.start_conditions import CONDITIONS, OK, Dependency, JobEdit, QueueTerms
from zerotoolsd.users.rights import Access

MAX_JOBS = 1000
MOST_ARRAY_BYTES = 16 << 20
"""The largest size of all jobs of an array together, in bytes: one transaction queues them."""
ME = "me"
LONGEST_UID = 10
ADOPTION_TEXTS = ("name", "checkpoint_dir")
TERMS = ("priority", "hold", "begin", "after")
"""The keys of a request body that belong to the queue terms of a job."""


def view_json(view: JobView) -> dict[str, Any]:
    """Return a job as JSON values for a client. The values in its table `[env]` are never sent."""
    tree = view.to_json()
    spec = dict(tree["spec"])
    env = spec.get("env")
    if isinstance(env, Mapping):
        spec["env"] = dict.fromkeys(env, HIDDEN)
    return {**tree, "spec": spec}


def in_a_list(view: JobView, by: AuthorizedRequest) -> dict[str, Any]:
    """Return a job as JSON values for a list, as `by` may see it, without long values."""
    tree = view_json(view_for(view, by))
    tree["spec"].pop("captured_env", None)
    return tree


async def list_text(request: web.Request, views: Sequence[JobView]) -> str:
    """Return the jobs `views` as a JSON list, each with the fields that the caller may see."""
    return f"[{', '.join(await _texts(request, views))}]"


async def _texts(request: web.Request, views: Sequence[JobView]) -> list[str]:
    """Return each job as JSON text. Other requests can run between the jobs."""
    by, time_slice, texts = authorized_request(request), TimeSlice(), list[str]()
    for view in await named(request, views):
        await time_slice.pause_if_due()
        texts.append(json_text(in_a_list(view, by)))
    return texts


def terms_of(body: Mapping[str, Any]) -> QueueTerms:
    """Return the queue terms (priority, hold, begin, dependencies) in a request body.

    Raises BadRequest.
    """
    hold = request_validation.body_flag(body, "hold")
    return QueueTerms(
        priority=priority_of(body),
        hold=hold,
        begin=request_validation.body_time(body, "begin"),
        after=_dependencies(body.get("after")),
    )


def _dependencies(value: object) -> tuple[Dependency, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadRequest("after: must be null or a list of jobs")
    found = [_dependency(each) for each in value]
    if len({each.job_id for each in found}) < len(found):
        raise BadRequest("after: names a job twice")
    return tuple(found)


def _dependency(tree: object) -> Dependency:
    if not isinstance(tree, dict):
        raise BadRequest('after: each entry must be an object, such as {"job": 3}')
    request_validation.refuse_unknown(tree, ("job", "condition"), "key of after")
    job_id, condition = tree.get("job"), tree.get("condition", OK)
    if type(job_id) is not int or not 0 < job_id <= request_validation.LARGEST_INT:
        raise BadRequest("after: job must be the number of a job")
    if condition not in CONDITIONS:
        raise BadRequest(f"after: condition must be one of {', '.join(CONDITIONS)}")
    return Dependency(job_id=job_id, condition=str(condition))


def priority_of(body: Mapping[str, Any]) -> int | None:
    """Return the priority in a request body; None if it has no priority. Raises BadRequest."""
    value = body.get("priority")
    if value is None:
        return None
    if (why := why_not_priority(value)) is not None:
        raise BadRequest(f"priority: {why}")
    return int(value)


async def _answer(request: web.Request, view: JobView, status: int) -> web.Response:
    """Return a response with the job, as the caller may see it, and the HTTP status `status`."""
    (view,) = await named(request, [view])
    await asyncio.sleep(0)  # a large one takes long to write
    return json_response(view_json(view), status=status)


async def _spec_of(body: Mapping[str, Any]) -> JobSpec:
    """Return the job in a request body. Reading a large job takes long, so other requests can run
    before and after it.
    """
    await asyncio.sleep(0)
    spec = job_from_dict(body["job"], source="job")
    await asyncio.sleep(0)
    return spec


async def submit(request: web.Request) -> web.Response:
    """Handle POST /v1/jobs: submit a job."""
    uid = authorized_request(request).uid
    body = await request_validation.json_object(request, known=("job", "idempotency_key", *TERMS))
    if "job" not in body:
        raise BadRequest("the key 'job' is missing")
    key = request_validation.idempotency_key(body.get("idempotency_key"))
    spec = await _spec_of(body)
    view, is_new = await request.app[SERVICE].submit(
        spec, uid=uid, idempotency_key=key, terms=terms_of(body)
    )
    return await _answer(request, view, 201 if is_new else 200)


async def submit_array(request: web.Request) -> web.Response:
    """Handle POST /v1/arrays: submit an array of jobs."""
    uid = authorized_request(request).uid
    known = ("job", "sweep", "count", "idempotency_key", *TERMS)
    body = await request_validation.json_object(request, known=known)
    if "job" not in body:
        raise BadRequest("the key 'job' is missing")
    key = request_validation.idempotency_key(body.get("idempotency_key"))
    await _spec_of(body)  # refused as the job that it is, before it is many
    sweep, count = _sweep(body.get("sweep")), _members(body.get("count"))
    _refuse_large(body["job"], count_of(sweep, count))
    time_slice, jobs = TimeSlice(), list[tuple[JobSpec, str]]()
    for each in each_member(body["job"], sweep, count):
        await time_slice.pause_if_due()
        jobs.append((job_from_dict(each.tree, source="job"), each.label))
    views = await request.app[SERVICE].submit_array(
        jobs, uid=uid, idempotency_key=key, terms=terms_of(body)
    )
    text = await list_text(request, views)
    return web.json_response(text=f'{{"jobs": {text}}}', status=201)


def _refuse_large(job: object, members: int) -> None:
    size = len(json_text(job))
    if size * members > MOST_ARRAY_BYTES:
        raise BadRequest(
            f"the array is too large: {members} jobs of {size:,} bytes, but an array has at "
            f"most {MOST_ARRAY_BYTES:,} bytes in all; make several arrays, or write long values "
            "into a file and pass its path"
        )


def _sweep(value: object) -> Mapping[str, list[Any]]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(each, list) for each in value.values()):
        raise BadRequest("sweep: must be null or an object with a list of values for each key")
    return value


def _members(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= MOST_MEMBERS:
        raise BadRequest(f"count: must be null or a whole number from 1 to {MOST_MEMBERS}")
    return value


async def check(request: web.Request) -> web.Response:
    """Handle POST /v1/check: check a job without queueing it."""
    uid = authorized_request(request).uid
    body = await request_validation.json_object(request, known=("job", "model", "show", *TERMS))
    if "job" not in body:
        raise BadRequest("the key 'job' is missing")
    if not isinstance(model := body.get("model", False), bool):
        raise BadRequest("model: must be true or false")
    show = body.get("show", 0)
    if type(show) is not int or not 0 <= show <= MOST_SHOWN:
        raise BadRequest(f"show: must be a whole number from 0 to {MOST_SHOWN}")
    spec = await _spec_of(body)
    found = await request.app[SERVICE].check(
        spec, uid=uid, model=model or show > 0, show=show, terms=terms_of(body)
    )
    return json_response({"notes": found.notes, **({"sample": found.sample} if show else {})})


async def list_jobs(request: web.Request) -> web.Response:
    """Handle GET /v1/jobs?state=&state_word=&limit=&after=&name=&array=&user=&order=: list jobs."""
    wanted = _states(request)
    limit = request_validation.query_integer(
        request.query, "limit", 100, minimum=1, maximum=MAX_JOBS
    )
    after = request_validation.query_integer(request.query, "after", None, minimum=0)
    assert limit is not None
    by, name = authorized_request(request), request.query.get("name")
    array = request_validation.query_integer(request.query, "array", None, minimum=1)
    of = await _user(request, by)
    order = request.query.get("order", "newest")
    if order not in JOB_ORDERS:
        raise BadRequest(f"order={order[:40]!r}: must be one of {', '.join(JOB_ORDERS)}")
    # A filter by name or array must not reveal what the caller may not see.
    if (name, array) != (None, None) and by.access is not Access.ALLOWED:
        if of not in (None, by.uid):
            return answer_unless_known(request, {"jobs": [], "next": None})
        of = by.uid
    word, views, is_more = request.query.get("state_word"), list[JobView](), True
    while is_more and len(views) < limit:
        found = await request.app[SERVICE].jobs(
            states=wanted,
            limit=limit,
            after=after,
            name=name,
            array=array,
            uid=of,
            whole=by.sees,
            by_priority=order == "priority",
        )
        is_more, after = len(found) == limit, found[-1].id if found else None
        views += [each for each in found if word in (None, view_for(each, by).state_word)]
    if len(views) > limit:
        views, after, is_more = views[:limit], views[limit - 1].id, True
    texts = await _texts(request, views)
    parts = [f"{text}, " for text in texts[:-1]] + texts[-1:]
    return await parts_unless_known(
        request, ['{"jobs": [', *parts, f'], "next": {json_text(after if is_more else None)}}}']
    )


def _states(request: web.Request) -> tuple[str, ...] | None:
    """Return the stored states that `state` and `state_word` in the query select; None for all."""
    wanted = None
    for key, known in (("state", STATES), ("state_word", STATE_WORDS)):
        if (given := request.query.get(key)) is None:
            continue
        if given not in known:
            raise BadRequest(f"{key}={given[:40]!r}: must be one of {', '.join(known)}")
        found = (given,) if key == "state" else states_of(given)
        wanted = found if wanted is None else tuple(each for each in wanted if each in found)
    return wanted


async def _user(request: web.Request, by: AuthorizedRequest) -> int | None:
    """Return the uid that the query selects with `user`; None for all users.

    Raises BadRequest if the user does not exist.
    """
    text = request.query.get("user")
    if text in (None, ME):
        return by.uid if text else None
    if text.isascii() and text.isdigit() and len(text) <= LONGEST_UID:
        return int(text)
    uid = None if text.isdigit() else await request.app[PEOPLE].uid_of(text)
    if uid is None:
        raise BadRequest(f"user={text[:40]!r}: no such user; give a name, a uid or {ME!r}")
    return uid


async def show(request: web.Request) -> web.Response:
    """Handle GET /v1/jobs/{id}: return one job."""
    (view,) = await named(
        request, [await request.app[SERVICE].job(request_validation.job_id(request))]
    )
    return answer_unless_known(request, view_json(view_for(view, authorized_request(request))))


async def explain(request: web.Request) -> web.Response:
    """Handle GET /v1/jobs/{id}/explain: return why the job waits, was restarted or ended."""
    return json_response(await request.app[SERVICE].explain(request_validation.job_id(request)))


async def cancel(request: web.Request) -> web.Response:
    """Handle POST /v1/jobs/{id}/cancel: cancel a job."""
    job_id = request_validation.job_id(request)
    await request_validation.no_body(request)
    view = await request.app[SERVICE].cancel(job_id, uid=authorized_request(request).uid)
    return await _answer(request, view, 202)


async def edit(request: web.Request) -> web.Response:
    """Handle POST /v1/jobs/{id}/edit: change the job file of a job that has not started."""
    job_id = request_validation.job_id(request)
    body = await request_validation.json_object(request, known=("set", "unset", "after", "begin"))
    changes, unset = body.get("set"), body.get("unset")
    changes = {} if changes is None else changes
    unset = [] if unset is None else unset
    if not isinstance(changes, dict):
        raise BadRequest("set: must be null or an object of dotted keys and their values")
    if not isinstance(unset, list) or not all(isinstance(each, str) for each in unset):
        raise BadRequest("unset: must be null or a list of dotted keys")
    after = None if body.get("after") is None else _dependencies(body["after"])
    begin = request_validation.body_time(body, "begin")
    wanted = JobEdit(set=changes, unset=tuple(unset), after=after, begin=begin)
    view = await request.app[SERVICE].edit(job_id, wanted, uid=authorized_request(request).uid)
    return await _answer(request, view, 200)


async def retry(request: web.Request) -> web.Response:
    """Handle POST /v1/jobs/{id}/retry: queue an ended job once more."""
    job_id = request_validation.job_id(request)
    body = await request_validation.json_object(request, known=("output_dir", "from_start"))
    output_dir, from_start = retry_wish(body)
    uid = authorized_request(request).uid
    view = await request.app[SERVICE].retry(
        job_id, uid=uid, output_dir=output_dir, from_start=from_start
    )
    return await _answer(request, view, 201)


def retry_wish(body: dict[str, object]) -> tuple[str | None, bool]:
    """Return `output_dir` and `from_start` of a retry request. Raises BadRequest if they conflict.

    If the body has no `from_start`, it is True: the new job begins at step 0. Older clients, which
    do not know this key, expect this.
    """
    output_dir = request_validation.body_text(body, "output_dir")
    from_start = request_validation.body_flag(body, "from_start", True)
    if output_dir is not None and not from_start:
        raise BadRequest(
            "output_dir: needs from_start = true; otherwise a job continues in its output_dir"
        )
    return output_dir, from_start


async def adopt(request: web.Request) -> web.Response:
    """Handle POST /v1/adoptions: queue a job that watches a running process."""
    body = await request_validation.json_object(
        request, known=("pid", *ADOPTION_TEXTS, "time_limit")
    )
    pid, limit = body.get("pid"), body.get("time_limit")
    if type(pid) is not int or not 0 < pid <= LARGEST_PID:
        raise BadRequest(f"pid: must be a whole number from 1 to {LARGEST_PID}")
    if limit is not None and type(limit) is not int:
        limit = request_validation.body_text(body, "time_limit", LONGEST_SPAN)
    texts = {name: request_validation.body_text(body, name) for name in ADOPTION_TEXTS}
    wanted = Adoption(pid=pid, time_limit=limit, **texts)
    found = await request.app[SERVICE].adopt(wanted, uid=authorized_request(request).uid)
    (view,) = await named(request, [found.job])
    watched = {"pid": pid, "below": list(found.below), "gpu_uuids": list(found.gpu_uuids)}
    return json_response({"job": view_json(view), "watched": watched}, status=201)


async def set_priority(request: web.Request) -> web.Response:
    """Handle POST /v1/jobs/{id}/priority: set the priority of a job."""
    job_id = request_validation.job_id(request)
    body = await request_validation.json_object(request, known=("priority",))
    if (priority := priority_of(body)) is None:
        raise BadRequest("the key 'priority' is missing")
    view = await request.app[SERVICE].set_priority(
        job_id, priority, uid=authorized_request(request).uid
    )
    return await _answer(request, view, 200)


async def hold(request: web.Request) -> web.Response:
    """Handle POST /v1/jobs/{id}/hold: hold a job until it is released."""
    job_id = request_validation.job_id(request)
    body = await request_validation.body_if_any(request, known=("lose_steps",))
    lose_steps = request_validation.body_flag(body, "lose_steps")
    view = await request.app[SERVICE].hold(
        job_id, uid=authorized_request(request).uid, lose_steps=lose_steps
    )
    return await _answer(request, view, 200)


async def release(request: web.Request) -> web.Response:
    """Handle POST /v1/jobs/{id}/release: release a held job."""
    job_id = request_validation.job_id(request)
    await request_validation.no_body(request)
    view = await request.app[SERVICE].release(job_id, uid=authorized_request(request).uid)
    return await _answer(request, view, 200)


async def pause(request: web.Request) -> web.Response:
    """Handle POST /v1/jobs/{id}/pause: pause a job (an older form of hold)."""
    job_id = request_validation.job_id(request)
    body = await request_validation.json_object(request, known=("lose_steps",))
    lose_steps = request_validation.body_flag(body, "lose_steps")
    uid = authorized_request(request).uid
    view = await request.app[SERVICE].pause(job_id, uid=uid, lose_steps=lose_steps)
    return await _answer(request, view, 202)


async def unpause(request: web.Request) -> web.Response:
    """Handle POST /v1/jobs/{id}/unpause: continue a paused job (an older form of release)."""
    job_id = request_validation.job_id(request)
    await request_validation.no_body(request)
    view = await request.app[SERVICE].unpause(job_id, uid=authorized_request(request).uid)
    return await _answer(request, view, 200)


async def resume(request: web.Request) -> web.Response:
    """Handle POST /v1/jobs/{id}/resume: resume an ended job (an older form of retry)."""
    job_id = request_validation.job_id(request)
    await request_validation.no_body(request)
    view = await request.app[SERVICE].resume(job_id, uid=authorized_request(request).uid)
    return await _answer(request, view, 200 if view.id == job_id else 201)


async def change_array(request: web.Request) -> web.Response:
    """Handle POST /v1/jobs/{id}/array: apply an operation to all jobs of an array."""
    job_id = request_validation.job_id(request)
    body = await request_validation.json_object(request, known=("do", "priority", "lose_steps"))
    by = authorized_request(request)
    found = await request.app[SERVICE].change_array(job_id, _array_request(body), uid=by.uid)
    kept = json_text([{"job": job, "why": why} for job, why in found.kept])
    text = await list_text(request, found.jobs)
    return web.json_response(text=f'{{"jobs": {text}, "kept": {kept}}}')


def _array_request(body: dict[str, object]) -> ArrayRequest:
    do, lose_steps = body.get("do"), request_validation.body_flag(body, "lose_steps")
    if do not in ARRAY_OPERATIONS:
        raise BadRequest(f"do: must be one of {', '.join(ARRAY_OPERATIONS)}")
    if lose_steps and do not in ("hold", "pause"):
        raise BadRequest("lose_steps: works only with do = hold")
    priority = priority_of(body)
    if (priority is None) is (do == "priority"):
        raise BadRequest("priority: works only with do = priority, and is required there")
    return ArrayRequest(do=str(do), priority=priority, lose_steps=lose_steps)


async def retry_array(request: web.Request) -> web.Response:
    """Handle POST /v1/jobs/{id}/array/retry: queue all jobs of an array once more."""
    job_id = request_validation.job_id(request)
    body = await request_validation.json_object(request, known=("output_dir", "from_start"))
    output_dir, from_start = retry_wish(body)
    views = await request.app[SERVICE].retry_array(
        job_id, uid=authorized_request(request).uid, output_dir=output_dir, from_start=from_start
    )
    return web.json_response(text=f'{{"jobs": {await list_text(request, views)}}}', status=201)

"""Handlers of a job's output: logs, progress, curves, checkpoints, predictions and examples.

Logs are read by offset, and no file stays open between requests. An attempt may create anything in
its directory, even a pipe or a link. So only regular files are read, and reading never waits.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from zerotools.core.errors import BadRequest
from zerotools.jobs.states import TERMINAL
from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.aiohttp_app_keys import SERVICE
from zerotoolsd.http.api.openapi.request_schemas import MOST_SHOWN
from zerotoolsd.http.api.responses import json_response
from zerotoolsd.interface.api_types import AttemptView, JobView, NotFound
from zerotoolsd.users.open_as_user import opened_run_directory

LARGEST_PART = 1 << 20
USUAL_PART = 1 << 16
MAX_RECORDS = 1000


class FileBytes(NamedTuple):
    """Bytes of a file from `offset` on, and the size of the whole file when it was read."""

    data: bytes
    offset: int
    size: int


async def logs(request: web.Request) -> web.Response:
    """Handle GET /v1/jobs/{id}/logs?attempt=&rank=&offset=&limit=: return a part of a log. The
    offset and the file size are in headers.
    """
    view = await request.app[SERVICE].job(request_validation.job_id(request))
    attempt = _attempt(view, request)
    rank = request_validation.query_integer(request.query, "rank", 0, minimum=0) or 0
    ranks = max(view.sizes or (view.world_size,))  # this attempt may have had fewer
    if rank >= ranks > 0:  # 0: how many it has cannot be read, but their logs can
        raise BadRequest(f"rank={rank}: job {view.id} has ranks 0 to {ranks - 1}")
    offset = (
        request_validation.query_integer(
            request.query, "offset", 0, minimum=-request_validation.LARGEST_INT
        )
        or 0
    )
    limit = request_validation.query_integer(
        request.query, "limit", USUAL_PART, minimum=0, maximum=LARGEST_PART
    )
    assert limit is not None
    if attempt is None:
        return _log_response(FileBytes(b"", 0, 0), 0, ended=view.state in TERMINAL)
    path = _directory(request, view, attempt) / f"rank-{rank}.log"
    part = await asyncio.to_thread(read_part, path, offset, limit)
    return _log_response(part, attempt.number, ended=attempt.ended is not None)


def _log_response(part: FileBytes, attempt: int, *, ended: bool) -> web.Response:
    next_offset = part.offset + len(part.data)
    over = ended and next_offset >= part.size
    return web.Response(
        body=part.data,
        content_type="application/octet-stream",
        headers={
            "Zerotools-Attempt": str(attempt),
            "Zerotools-Next-Offset": str(next_offset),
            "Zerotools-Size": str(part.size),
            "Zerotools-Over": "true" if over else "false",
        },
    )


async def progress(request: web.Request) -> web.Response:
    """Handle GET /v1/jobs/{id}/progress?attempt=&since=: return reports of an attempt. The next
    request uses `next` of the response as `since`.
    """
    view = await request.app[SERVICE].job(request_validation.job_id(request))
    attempt = _attempt(view, request)
    since = request_validation.query_integer(request.query, "since", 0, minimum=0) or 0
    if attempt is None:
        return _progress_response([], 0, 0, over=view.state in TERMINAL)
    path = _directory(request, view, attempt) / "progress.jsonl"
    part = await asyncio.to_thread(read_part, path, since, LARGEST_PART)
    records, used = parse_records(part.data)
    over = attempt.ended is not None and (part.offset + len(part.data) >= part.size)
    over = over and len(records) < MAX_RECORDS
    return _progress_response(records, part.offset + used, attempt.number, over=over)


def _progress_response(
    records: list[dict[str, Any]], next_offset: int, attempt: int, *, over: bool
) -> web.Response:
    return json_response(
        {"records": records, "next": next_offset, "attempt": attempt, "over": over}
    )


def parse_records(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Parse the complete lines of `data`; return at most a thousand JSON objects, and the number of
    bytes parsed.

    The job wrote the lines, so lines that are not JSON objects or exceed LARGEST_PART are left out.
    """
    records: list[dict[str, Any]] = []
    used = 0
    while len(records) < MAX_RECORDS and (end := data.find(b"\n", used)) >= 0:
        try:
            record = json.loads(data[used:end])
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
        used = end + 1
    if used == 0 and len(data) >= LARGEST_PART:
        used = len(data)  # one endless line would block all followers
    return records, used


def _directory(request: web.Request, view: JobView, attempt: AttemptView) -> Path:
    path = request.app[SERVICE].run_dir(view.id, attempt.number)
    if attempt.ended is None or path.exists():
        return path
    if attempt.started is None:
        why = f": {attempt.cause}" if attempt.cause else ""
        raise NotFound(
            f"attempt {attempt.number} of job {view.id} never started, so it has no logs{why}"
        )
    raise NotFound(
        f"the logs and the progress of attempt {attempt.number} of job {view.id} were removed"
    )


def _attempt(view: JobView, request: web.Request) -> AttemptView | None:
    number = request_validation.query_integer(request.query, "attempt", None, minimum=1)
    if number is None:
        return view.attempt
    for attempt in view.attempts:
        if attempt.number == number:
            return attempt
    raise NotFound(f"job {view.id} has no attempt {number}; it has {len(view.attempts)} so far")


def read_part(path: Path, offset: int, limit: int) -> FileBytes:
    """Return at most `limit` bytes of a file from `offset` on; a negative `offset` counts from the
    end.

    The result is empty if the file is missing, or `offset` is beyond its end. Raises NotFound if
    the file cannot be read.
    """
    try:
        with opened_run_directory(path.parent) as base:
            descriptor = _open(base / path.name, is_pinned=base != path.parent)
    except FileNotFoundError:
        return FileBytes(b"", 0, 0)
    except OSError as error:
        raise NotFound(f"{path.name} cannot be read: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotFound(f"{path.name} is not a regular file")
        start = max(found.st_size + offset, 0) if offset < 0 else min(offset, found.st_size)
        return FileBytes(os.pread(descriptor, limit, start), start, found.st_size)
    finally:
        os.close(descriptor)


def _open(path: Path, *, is_pinned: bool) -> int:
    """Open a file of an attempt for reading, and return its descriptor.

    Neither the file nor the attempt's directory may be a symbolic link. Opening a pipe does not
    block.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    if is_pinned:  # the path to it is a link of the kernel
        return os.open(path, flags | os.O_NONBLOCK)
    directory = os.open(path.parent, flags | os.O_DIRECTORY)
    try:
        return os.open(path.name, flags | os.O_NONBLOCK, dir_fd=directory)
    finally:
        os.close(directory)


POINTS, MOST_POINTS = 1000, 5000
ROWS, MOST_ROWS = 20, 100
SHOWN = 3
LONGEST_WAIT_SECONDS = 60.0


async def curves(request: web.Request) -> web.Response:
    """Handle GET /v1/jobs/{id}/curves?points=: return the training curves of a job."""
    points = request_validation.query_integer(
        request.query, "points", POINTS, minimum=1, maximum=MOST_POINTS
    )
    found = await request.app[SERVICE].curves(request_validation.job_id(request), points or POINTS)
    return json_response(found)


async def checkpoints(request: web.Request) -> web.Response:
    """Handle GET /v1/jobs/{id}/checkpoints: return the checkpoints that a job has now."""
    return json_response(await request.app[SERVICE].checkpoints(request_validation.job_id(request)))


async def predictions(request: web.Request) -> web.Response:
    """Handle GET /v1/jobs/{id}/predictions?step=&first=&limit=: return generated texts."""
    query = request.query
    step = request_validation.query_integer(query, "step", None, minimum=0)
    first = request_validation.query_integer(query, "first", 0, minimum=0) or 0
    count = (
        request_validation.query_integer(query, "limit", ROWS, minimum=1, maximum=MOST_ROWS) or ROWS
    )
    found = await request.app[SERVICE].predictions(
        request_validation.job_id(request), step, first, count
    )
    return json_response(found)


async def examples(request: web.Request) -> web.Response:
    """Handle GET /v1/jobs/{id}/examples?show=&wait=: return the first training examples."""
    show = (
        request_validation.query_integer(
            request.query, "show", SHOWN, minimum=1, maximum=MOST_SHOWN
        )
        or SHOWN
    )
    wait = request_validation.query_seconds(request.query, "wait", maximum=LONGEST_WAIT_SECONDS)
    return json_response(
        await request.app[SERVICE].examples(request_validation.job_id(request), show, wait)
    )

"""Refusals of the daemon, each with the status of its answer."""

from __future__ import annotations

from zerotools.core.errors import BadRequest, ZerotoolsError


class NotFound(BadRequest):
    """No such job or attempt (HTTP 404)."""


class Forbidden(BadRequest):
    """The caller's uid may not do this (HTTP 403)."""


class Unauthorized(BadRequest):
    """The caller is unknown: the token is missing or wrong (HTTP 401)."""


class Conflict(BadRequest):
    """The job's state does not allow this, or a key is used twice (HTTP 409)."""


class Unavailable(ZerotoolsError):
    """The daemon cannot do it now: its disk is full, or it is stopping (HTTP 503)."""

    exit_code = 5

"""Identifies the caller of a request and decides whether the request is allowed. No other module of
the API decides this.

At the Unix socket, the kernel identifies the caller; at a TCP address, a token does. Every route
names its `Action` (`routes`). A refused request never reaches its handler. If the decision is
MASKED, the handler removes the hidden fields from the response (`visible_fields`).
"""

from __future__ import annotations

import socket
import struct
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.aiohttp_app_keys import (
    ACTIONS,
    CONCURRENCY_LIMIT,
    PEOPLE,
    RIGHTS,
    SERVICE,
    TOKENS,
)
from zerotoolsd.interface.api_types import Forbidden, Unauthorized
from zerotoolsd.users.rights import Access, Caller, Owner, Rights


@dataclass(frozen=True)
class AuthorizedRequest:
    """The caller of a request, and the decision on the request."""

    caller: Caller
    access: Access
    rights: Rights

    @property
    def uid(self) -> int:
        """The uid of the caller."""
        return self.caller.uid

    def sees(self, owner: int | None) -> bool:
        """Return whether the caller may see everything of a job that the user `owner` submitted."""
        return self.rights.sees(self.caller, owner)


# aiohttp before 3.14 has text for its keys, and since then it warns of that.
_KEY = getattr(web, "RequestKey", None)
_ASKED: Any = "zerotoolsd.asked" if _KEY is None else _KEY("zerotoolsd.asked", AuthorizedRequest)


async def decide(request: web.Request, uid: int) -> None:
    """Decide whether `uid` may send this request, and record caller and decision in it.

    Raises Forbidden and NotFound.
    """
    if request.match_info.http_exception is not None:
        return  # the path does not exist, which the response will report
    action = request.app[ACTIONS].get(request.match_info.handler)
    if action is None:
        raise Forbidden(
            "no rule of this zerotoolsd defines who may send this request: this is a defect"
        )
    rights, people = request.app[RIGHTS], request.app[PEOPLE]
    caller = await people.find(uid) if rights.name_people else Caller(uid=uid)
    owner = job_id = None
    if "id" in request.match_info:
        job_id = request_validation.job_id(request)
        owner = Owner(request.app[SERVICE].owner(job_id))
    decision = rights.decide(caller, action, owner, job_id)
    if decision.access is Access.REFUSED:
        if owner is not None:
            owner = Owner(owner.uid, (await people.find(owner.uid)).name)
        raise Forbidden(rights.decide(await people.find(uid), action, owner, job_id).why)
    request[_ASKED] = AuthorizedRequest(caller, decision.access, rights)


def authorized_request(request: web.Request) -> AuthorizedRequest:
    """Return the caller of a request that has reached its handler, and the decision on it."""
    found: AuthorizedRequest = request[_ASKED]
    return found


async def authorized_again(request: web.Request) -> AuthorizedRequest:
    """Decide once more on a request whose handler has waited, because its caller may have left a
    group meanwhile.

    Raises Forbidden and NotFound.
    """
    await decide(request, authorized_request(request).uid)
    return authorized_request(request)


def turn_of(request: web.Request) -> AbstractAsyncContextManager[None]:
    """Return a context for the handler of `request`, which limits how many requests of one user are
    handled at the same time.

    The handler also reads the body inside this context. Administrators, and requests that only
    read, have no limit.
    """
    by: AuthorizedRequest | None = request.get(_ASKED)
    if by is None or request.method != "POST" or by.rights.is_administrator(by.caller):
        return nullcontext()
    return request.app[CONCURRENCY_LIMIT].slot(by.uid)


_CREDENTIALS = struct.Struct("iII")
"""`struct ucred`: pid, uid, gid (unix(7)); a uid is unsigned."""


def peer_uid(request: web.Request) -> int:
    """Return the uid of the client: at the Unix socket, that of the connected process; over TCP,
    that of its token. Raises Unauthorized.
    """
    link = None if request.transport is None else request.transport.get_extra_info("socket")
    uid = None if link is None else uid_of(link)
    return _by_token(request) if uid is None else uid


def uid_of(link: socket.socket) -> int | None:
    """Return the uid of the process that connected to a Unix socket; None for other sockets."""
    if link.family != socket.AF_UNIX:
        return None
    packed = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(packed)
    return int(uid)


def _by_token(request: web.Request) -> int:
    tokens = request.app.get(TOKENS)
    given = request.headers.getall("Authorization", [])
    uid = None if tokens is None or len(given) != 1 else tokens.uid_of(given[0])
    if uid is None:
        raise Unauthorized("a token is needed: send the header Authorization: Bearer TOKEN")
    return uid

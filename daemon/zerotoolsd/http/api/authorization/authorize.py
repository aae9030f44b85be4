"""Authorizes requests: the only module of the API that decides this.

Every route names its `Action` (`routes`). A refused request never reaches its handler. A handler
with a masked response removes the hidden fields (`visible_fields`).
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.app_keys import ACTIONS, PEOPLE, RIGHTS, SERVICE, TURNS
from zerotoolsd.interface.api_errors import Forbidden
from zerotoolsd.users.caller import Caller
from zerotoolsd.users.policy import Access, Owner, Rights


@dataclass(frozen=True)
class Asked:
    """The caller, and the decision."""

    caller: Caller
    access: Access
    rights: Rights

    @property
    def uid(self) -> int:
        """The caller's."""
        return self.caller.uid

    def sees(self, owner: int | None) -> bool:
        """Return whether the caller may see all of a job of this uid."""
        return self.rights.sees(self.caller, owner)


# aiohttp before 3.14 has text for its keys, and since then it warns of that.
_KEY = getattr(web, "RequestKey", None)
_ASKED: Any = "zerotoolsd.asked" if _KEY is None else _KEY("zerotoolsd.asked", Asked)


async def decide(request: web.Request, uid: int) -> None:
    """Record the caller and the decision in the request. Raises Forbidden and NotFound."""
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
    request[_ASKED] = Asked(caller, decision.access, rights)


def asked(request: web.Request) -> Asked:
    """Return the decision on a request that has reached its handler."""
    found: Asked = request[_ASKED]
    return found


def turn_of(request: web.Request) -> AbstractAsyncContextManager[None]:
    """Return a context for the request's handler, which limits concurrent requests of one user.

    It covers the body too. Administrators are not limited, and read requests have no body.
    """
    by: Asked | None = request.get(_ASKED)
    if by is None or request.method != "POST" or by.rights.is_administrator(by.caller):
        return nullcontext()
    return request.app[TURNS].turn(by.uid)

"""Whether a request may do what it asks: the one place of the API where that is decided.

Every route names its `Action` (`routes`). What is refused never reaches its handler; a handler
whose answer is masked cuts it down (`readers`).
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from zerotoolsd.api import inputs
from zerotoolsd.api.keys import ACTIONS, PEOPLE, RIGHTS, SERVICE, TURNS
from zerotoolsd.rights.caller import Caller
from zerotoolsd.rights.policy import Access, Owner, Rights
from zerotoolsd.service.refusals import Forbidden


@dataclass(frozen=True)
class Asked:
    """Who asked, and what was decided."""

    caller: Caller
    access: Access
    rights: Rights

    @property
    def uid(self) -> int:
        """The caller's."""
        return self.caller.uid

    def sees(self, owner: int | None) -> bool:
        """Whether the caller may see all of a job of this uid."""
        return self.rights.sees(self.caller, owner)


# aiohttp before 3.14 has text for its keys, and since then it warns of that.
_KEY = getattr(web, "RequestKey", None)
_ASKED: Any = "zerotoolsd.asked" if _KEY is None else _KEY("zerotoolsd.asked", Asked)


async def decide(request: web.Request, uid: int) -> None:
    """Note who asks, and what is to be answered. Raises Forbidden, NotFound."""
    if request.match_info.http_exception is not None:
        return  # there is no such path, which is what will be said
    action = request.app[ACTIONS].get(request.match_info.handler)
    if action is None:
        raise Forbidden("no rule of this zerotoolsd says who may ask this: it is a defect")
    rights, people = request.app[RIGHTS], request.app[PEOPLE]
    caller = await people.find(uid) if rights.name_people else Caller(uid=uid)
    owner = job_id = None
    if "id" in request.match_info:
        job_id = inputs.job_id(request)
        owner = Owner(request.app[SERVICE].owner(job_id))
    decision = rights.decide(caller, action, owner, job_id)
    if decision.access is Access.REFUSED:
        if owner is not None:
            owner = Owner(owner.uid, (await people.find(owner.uid)).name)
        raise Forbidden(rights.decide(await people.find(uid), action, owner, job_id).why)
    request[_ASKED] = Asked(caller, decision.access, rights)


def asked(request: web.Request) -> Asked:
    """What was decided of a request that has reached its handler."""
    found: Asked = request[_ASKED]
    return found


def turn_of(request: web.Request) -> AbstractAsyncContextManager[None]:
    """For the time of the request's handler, its body included: what one user sends at a time is
    bounded. Administrators wait for nobody, and who only looks has nothing to send."""
    by: Asked | None = request.get(_ASKED)
    if by is None or request.method != "POST" or by.rights.is_administrator(by.caller):
        return nullcontext()
    return request.app[TURNS].turn(by.uid)

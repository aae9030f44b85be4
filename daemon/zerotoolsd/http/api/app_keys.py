"""The keys of the application with which handlers find the service, and the rights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from zerotoolsd.http.api.authorization.per_user_lock import PerUserLock
from zerotoolsd.http.api.job_page import JobPage
from zerotoolsd.http.api.listeners.tokens import BearerTokens
from zerotoolsd.service.job_requests import JobRequests
from zerotoolsd.service.user_lookup import People
from zerotoolsd.users.policy import Action, Rights

TOKENS: web.AppKey[BearerTokens] = web.AppKey("tokens")
SERVICE: web.AppKey[JobRequests] = web.AppKey("service")
PAGE: web.AppKey[JobPage] = web.AppKey("page")
PEOPLE: web.AppKey[People] = web.AppKey("people")
TURNS: web.AppKey[PerUserLock] = web.AppKey("turns")
RIGHTS: web.AppKey[Rights] = web.AppKey("rights")
ACTIONS: web.AppKey[Mapping[Any, Action]] = web.AppKey("actions")
"""The action of each route's handler."""

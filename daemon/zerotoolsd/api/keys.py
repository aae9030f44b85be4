"""Where the handlers find the service, and who may ask it, in their application."""

from __future__ import annotations

from aiohttp import web

from zerotoolsd.api.doors.tokens import BearerTokens
from zerotoolsd.service import JobService

TOKENS: web.AppKey[BearerTokens] = web.AppKey("tokens")
SERVICE: web.AppKey[JobService] = web.AppKey("service")

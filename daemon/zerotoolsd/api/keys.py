"""Where the handlers find the service in their application."""

from __future__ import annotations

from aiohttp import web

from zerotoolsd.service import JobService

SERVICE: web.AppKey[JobService] = web.AppKey("service")

"""Requests to the daemon and its answers, over its Unix socket: what `DaemonClient` is made of."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import zerotools
from zerotools.core.errors import (
    AnswerLost,
    BadRequest,
    DaemonRefused,
    DaemonUnreachable,
    Unsupported,
)
from zerotools.io.files.packages import REQUIREMENTS, install_command
from zerotools.jobs.client import api_versions, location
from zerotools.jobs.client.connection import SocketConnection
from zerotools.jobs.client.daemon_package import NEEDED, why_no_daemon
from zerotools.jobs.client.remote.elsewhere import machine_behind, shown_socket

TIMEOUT_SECONDS = 30.0
_BLAME: Mapping[str, type[BadRequest | Unsupported]] = {
    "bad_request": BadRequest,
    "not_found": BadRequest,
    "unsupported": Unsupported,
}
_STRANGE = ("no_such_path", "method_not_allowed")
_STRANGE_JOB = ("job: ", "unknown key ")
"""How a daemon begins that cannot read a request. This side has read the job before it was sent."""


class DaemonRequests:
    """Sends requests to the daemon behind `socket` (default: the usual path). One connection per
    request."""

    def __init__(
        self, socket: Path | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self.socket = socket or location.default_socket()
        self._timeout = timeout_seconds
        self.deadline: float | None = None
        """When the caller stops waiting for answers (CLOCK_MONOTONIC)."""

    @property
    def shown(self) -> str:
        """The daemon's address, for messages."""
        return shown_socket(self.socket)

    def _object(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        body: Any = None,
        patience: float = 0,
    ) -> dict[str, Any]:
        _, data = self._request(method, path, query, body=body, patience=patience)
        return self._parse(data)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        body: Any = None,
        patience: float = 0,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        words = urlencode(given, errors="surrogateescape")
        target = f"{path}?{words}" if given else path
        payload = None if body is None else json.dumps(body).encode()
        seconds = self._until_deadline(self._timeout + patience)
        connection = SocketConnection(self.socket, seconds)
        try:
            connection.request(method, target, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error, seconds) from error
        finally:
            connection.close()
        if response.status >= 400:
            raise self._refusal(response.status, data)
        return response, data

    def _until_deadline(self, seconds: float) -> float:
        if self.deadline is None:
            return seconds
        return min(seconds, max(0.1, self.deadline - time.monotonic()))

    def _parse(self, data: bytes) -> dict[str, Any]:
        try:
            tree = json.loads(data)
        except ValueError:
            tree = None
        if not isinstance(tree, dict):
            raise DaemonUnreachable(f"the server at {self.shown} is not zerotoolsd")
        return tree

    def _refusal(self, status: int, data: bytes) -> Exception:
        problem = self._parse(data)
        code = str(problem.get("code", ""))
        detail = str(problem.get("detail") or problem.get("title") or f"HTTP status {status}")
        if code in _STRANGE or detail.startswith(_STRANGE_JOB):
            detail = "; ".join(filter(None, (detail, self._which_to_upgrade())))
        if kind := _BLAME.get(code):
            return kind(detail, status=status, code=code)
        return DaemonRefused(detail, status=status, code=code)

    def _which_to_upgrade(self) -> str | None:
        connection = SocketConnection(self.socket, self._timeout)
        try:
            connection.request("GET", "/v1/health")
            response = connection.getresponse()
            health = self._parse(response.read()) if response.status == 200 else {}
        except (OSError, http.client.HTTPException, DaemonUnreachable):
            return None
        finally:
            connection.close()
        return api_versions.which_to_upgrade(health, zerotools.__version__) if health else None

    def _unreachable(
        self, error: OSError | http.client.HTTPException, waited: float
    ) -> DaemonUnreachable:
        match error:
            case FileNotFoundError() | ConnectionRefusedError() | NotADirectoryError():
                is_here = machine_behind(self.socket) is None
                install = ""
                if is_here and why_no_daemon():
                    install = f" (after {install_command(REQUIREMENTS[NEEDED])})"
                why = (
                    f"nothing answers at {self.shown}; is zerotoolsd running? Start it with "
                    f"'zerotoolsd'{install}, or set {location.SOCKET_VARIABLE} to its socket"
                )
            case PermissionError():
                why = f"the daemon at {self.shown} belongs to another user (permission denied)"
            case TimeoutError():
                return AnswerLost(
                    f"the daemon at {self.shown} did not answer within {waited:.3g} s"
                )
            case _:
                reason = str(error) or type(error).__name__
                return AnswerLost(f"the daemon at {self.shown} broke off the connection ({reason})")
        return DaemonUnreachable(why)

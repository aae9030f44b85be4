"""Writes and reads `request.json`, the request of the daemon to save and stop an attempt.

Disk space for the file is reserved when the attempt is prepared, so that a job can be cancelled
after it has filled the disk. If a write still fails, the daemon tries again while the supervisor
lives. A request may be replaced by another one: a preempted job may be cancelled while it saves.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from zerotoolsd.supervisor.attempt_plan import GOES_ON, OUTSIDE, REQUEST, STOP
from zerotoolsd.supervisor.durable_files import (
    LARGEST_RECORD,
    REQUEST_BYTES,
    read_json,
    reserve_space,
    write_reserved,
)

_LONGEST_GRACE = 1e9


def reserve_request(run_dir: Path) -> None:
    """Reserve disk space in `run_dir` for a stop request, and for the file that tells the ranks to
    stop. A second call does nothing.

    Raises OSError.
    """
    for path in (run_dir / REQUEST, run_dir / STOP):
        if not os.path.lexists(path):
            reserve_space(path, 0, REQUEST_BYTES)


def write_request(run_dir: Path, reason: str, grace_seconds: float | None = None) -> None:
    """Write a stop request into `run_dir`, and flush it to the disk. A second request can
    shorten the grace period.

    `reason` is the reason of the stop. `grace_seconds` is the time that the ranks have to
    save; None keeps the default. Raises OSError.
    """
    record: dict[str, object] = {"reason": reason}
    if grace_seconds is not None:
        record["grace_seconds"] = grace_seconds
    if _read_request(run_dir) == record:
        return
    write_reserved(run_dir / REQUEST, json.dumps(record))


def _read_request(run_dir: Path) -> object:
    try:
        return read_json(run_dir / REQUEST, LARGEST_RECORD)
    except ValueError:
        return None


class RequestedStop(NamedTuple):
    """A request to save and stop. `reason` and `grace_seconds` are None if they have not changed
    since the last request.

    `grace_seconds` is the time that the ranks have to save. `is_first` is True if there was no
    request before.
    """

    reason: str | None
    grace_seconds: float | None
    is_first: bool = False


class RequestReader:
    """Reads the stop request in the working directory, and every later version of the request."""

    def __init__(self, default_grace: float) -> None:
        self._default_grace = default_grace
        self._written: int | None = None
        self.reason: str | None = None
        """The reason of the requested stop; None if no stop was requested."""

    def poll(self, *, signalled: bool) -> RequestedStop | None:
        """Return the stop request if it has changed since the last call; None otherwise.

        `signalled` is True if this process got SIGTERM, which counts as a request even if no
        request can be read.
        """
        try:
            written = Path(REQUEST).stat().st_mtime_ns
        except OSError:
            written = None
        if self.reason is None:
            return self._first(written, signalled=signalled)
        if written is None or written == self._written:
            return None
        try:
            request = read_json(Path(REQUEST), LARGEST_RECORD) or {}
        except (OSError, ValueError):
            return None
        self._written = written
        reason: str | None = str(request.get("reason"))
        is_firmer = self.reason in GOES_ON and reason not in GOES_ON
        if is_firmer or self.reason == OUTSIDE:
            self.reason = reason
        else:
            reason = None
        grace = _grace(request, self._default_grace) if "grace_seconds" in request else None
        return RequestedStop(reason, grace)

    def _first(self, written: int | None, *, signalled: bool) -> RequestedStop | None:
        try:
            request = read_json(Path(REQUEST), LARGEST_RECORD)
        except (OSError, ValueError) as error:
            request = {"reason": f"an unreadable request ({error})"}
        if request is None and not signalled:
            return None
        self._written = written
        request = request or {"reason": OUTSIDE}
        self.reason = str(request.get("reason"))
        return RequestedStop(self.reason, _grace(request, self._default_grace), is_first=True)


def _grace(request: dict[str, object], default: float) -> float:
    grace = request.get("grace_seconds", default)
    if isinstance(grace, (int, float)) and 0 <= grace < _LONGEST_GRACE:
        return float(grace)
    return default

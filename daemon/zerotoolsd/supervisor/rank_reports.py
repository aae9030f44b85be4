"""Receives the reports of ranks on a Unix socket, and stores them in `progress.jsonl` and in
memory.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from zerotoolsd.supervisor.attempt_plan import NOTIFY, PROGRESS, SUMMARY
from zerotoolsd.supervisor.durable_files import is_shallow
from zerotoolsd.supervisor.heartbeats.rank_heartbeats import ScriptHeartbeats
from zerotoolsd.supervisor.rank_log import log_line

MAX_DATAGRAM = 4096
_THIN_ABOVE = 32 * 2**20
"""If `progress.jsonl` is larger than this many bytes, not every message is stored.

From there on, one message of each kind is stored per second, and ten times fewer each time
that the file has doubled its size.
"""
_KINDS = ("step", "checkpoint", "eval", "phase", "error", "finished")
BESIDE = ("fetched", "uploaded", "upload_failed", "skipped_checkpoint")
"""Names of events that are reported by processes other than ranks."""
MAX_RANKS = 2**16
_CREDENTIALS = struct.Struct("3i")
"""Layout of the kernel's `struct ucred`, the sender of a message: pid, uid, gid (unix(7))."""
_CREDENTIALS_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size)
_MOST_PATHS = 10_000
_CHECKPOINT_SECONDS = 10.0
_SUMMARY_BYTES = 16 * 1024
"""Number of bytes after which another summary is written, so that the end of the file always
contains a summary.
"""
_NOTABLE = 1.05
_ALIVE_SECONDS = 5.0
STRUCTURE = "structure"
"""Value for a checkpoint of a user's program that was verified only by its metadata: all files
in it are complete.
"""
_AT_ONCE = 1000
"""Largest number of messages that are read before the supervisor does other work."""
_MAX_ERRORS = 1000
"""Number of errors that are stored: the first ones, which show the first failure, and the last
ones.
"""


def _is_count(value: object) -> TypeGuard[int]:
    """Return whether `value` is an integer that the database of the queue can store."""
    return type(value) is int and 0 <= value < 2**63


def pause_between(kind: str, size_bytes: int) -> float:
    """Return the least number of seconds between two stored messages of `kind`, when
    `progress.jsonl` has `size_bytes` bytes.
    """
    pause, size = 0.0, size_bytes
    while size > _THIN_ABOVE:
        pause, size = (pause or 0.1) * 10, size // 2
    return min(pause, _CHECKPOINT_SECONDS) if kind == "checkpoint" else pause


def _is_ours(more: list[tuple[int, int, bytes]]) -> bool:
    """Return whether a message was sent by this user or by root. `more` is the ancillary data
    that arrived with the message.
    """
    for level, kind, data in more:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            _, uid, _ = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])
            return uid in (os.geteuid(), 0)
    return False


class Progress:
    """Receives reports of the ranks on a socket, stores them in a file, and keeps the newest
    message of each kind.

    The run directory is the working directory.
    """

    def __init__(self, note_finished: Callable[..., None] = lambda **_: None) -> None:
        """Open the socket and the file `progress.jsonl`.

        `note_finished(is_so=...)` is called whenever the program reports that the job is
        complete (True), or withdraws this report (False).
        """
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        # The kernel reports that a message comes from a process of this user, or of root.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        Path(NOTIFY).unlink(missing_ok=True)
        self.socket.bind(NOTIFY)
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(PROGRESS, flags, 0o600)
        self._size = os.fstat(self._file).st_size
        self._last_kept: dict[object, float] = {}
        self.last_step: dict[str, Any] | None = None
        self.evaluation: dict[str, Any] | None = None
        self.checkpoint: dict[str, Any] | None = None
        self.uploaded: dict[str, Any] | None = None
        self._reported_paths: set[str] = set()
        self.errors: list[dict[str, Any]] = []
        self.phases: dict[int, str] = {}
        self.script_heartbeats = ScriptHeartbeats()
        self.awaited: int | None = None
        self.finished = False
        self._note_finished = note_finished
        self.steps_done = 0
        self.peak_gpu_bytes: int | None = None
        self.peak_host_bytes = 0
        self._summed_up_at = 0
        self._summed_up_peak = 0
        self._noted_alive = float("-inf")
        self._waits: str | None = None

    def record_wait(self, why: str | None, seconds: float = 0.0) -> None:
        """Record that the supervisor has been waiting for `seconds` because of `why`. With
        `why` None, record that the wait is over.
        """
        if why != self._waits:
            self._waits = why
            self._append({"event": "phase", "doing": why, "time": time.time() - seconds})

    def record_host_bytes(self, used_bytes: int) -> None:
        """Record the host memory, in bytes, that all processes of the attempt use now."""
        self.peak_host_bytes = max(self.peak_host_bytes, used_bytes)
        if self.peak_host_bytes > self._summed_up_peak * _NOTABLE:
            self._sum_up()

    def _sum_up(self) -> None:
        self._summed_up_peak = self.peak_host_bytes
        self._append(
            {
                "event": SUMMARY,
                "time": time.time(),
                "peak_host_bytes": self.peak_host_bytes or None,
                "uploaded": self.uploaded,
                "evaluation": self.evaluation,
                "checkpoint_step": self.checkpoint and self.checkpoint["step"],
                "checkpoint_path": self.checkpoint and self.checkpoint.get("path"),
                "checkpoint_found": self.checkpoint and self.checkpoint.get("found"),
                "checkpoint_time": self.checkpoint and self.checkpoint.get("time"),
                "checkpoint_verified": self.checkpoint and self.checkpoint.get("verified"),
                "checkpoint_not_verified": self.checkpoint and self.checkpoint.get("not_verified"),
            }
        )
        self._summed_up_at = self._size

    @property
    def trained(self) -> bool:
        """Return whether a rank has begun to train, so that a stop has something to save."""
        return any(phase not in ("init", "load") for phase in self.phases.values())

    def drain(self) -> None:
        """Read datagrams from the socket, at most _AT_ONCE. Ignore invalid ones, and those of other
        users than root and this user.
        """
        for _ in range(_AT_ONCE):  # a flooding sender does not block the rest
            try:
                data, more, _, _ = self.socket.recvmsg(MAX_DATAGRAM + 1, _CREDENTIALS_ROOM)
            except BlockingIOError:
                return
            if len(data) > MAX_DATAGRAM or not _is_ours(more):
                continue
            try:
                message = json.loads(data, parse_constant=lambda _: None)
            except (ValueError, RecursionError):
                continue
            if not isinstance(message, dict) or not is_shallow(message):
                continue
            if message.get("event") in BESIDE and "rank" not in message:
                self._record_transfer(message)
            elif type(rank := message.get("rank")) is int and 0 <= rank < MAX_RANKS:
                self._record_report({**message, "clock": time.monotonic()})

    def _record_transfer(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "uploaded":
            self.uploaded = {name: message.get(name) for name in ("step", "path", "time")}
        elif event == "upload_failed":
            self.uploaded = {**(self.uploaded or {}), "why": message.get("why")}
        self._append_if_due(message, event)

    def add_checkpoint(self, path: str, step: int | None) -> None:
        """Record the checkpoint `path` that the checkpoint finder found. If its `step` is None, the
        newest step that the ranks reported is used.

        If the program reports its checkpoints itself, checkpoints of the finder are ignored.
        """
        if not self._reported_paths:
            event = {"event": "checkpoint", "path": path, "time": time.time(), "found": True}
            event["verified"] = STRUCTURE
            self._record_event({**event, "step": self.steps_done if step is None else step})

    def add_skipped_checkpoint(self, path: str, why: str) -> None:
        """Record that the checkpoint `path` is damaged, for the reason `why`, so that an older
        checkpoint is used.
        """
        message = {"event": "skipped_checkpoint", "path": path, "why": why, "time": time.time()}
        self._append(message)

    def add_stall(self, event: dict[str, Any]) -> None:
        """Record that the ranks make no progress. `event` is the object for `progress.jsonl`."""
        self._append(event)

    def _record_report(self, message: dict[str, Any]) -> None:
        if isinstance(phase := message.get("phase"), str):
            self.phases[message["rank"]] = phase
        self.script_heartbeats.update(message)
        step, peak = message.get("step"), message.get("gpu_peak_bytes")
        if _is_count(watched := message.get("watched_bytes")):
            self.record_host_bytes(watched)
        if _is_count(step):
            self.steps_done = max(self.steps_done, step)
        if _is_count(peak):
            self.peak_gpu_bytes = max(peak, self.peak_gpu_bytes or 0)
        path = message.get("path") if message.get("event") == "checkpoint" else None
        if isinstance(path, str) and len(self._reported_paths) < _MOST_PATHS:
            self._reported_paths.add(path)
        if message.get("event") is None:
            self._note_alive()
        if message.get("event") in ("step", "checkpoint", "finished"):
            self.finished = message["event"] == "finished"
            self._note_finished(is_so=self.finished)
        self._record_event(message)

    def _note_alive(self) -> None:
        """Set the modification time of `progress.jsonl` to now, because a rank has sent a
        heartbeat. Heartbeats are not written to the file.
        """
        now = time.monotonic()
        if now - self._noted_alive < _ALIVE_SECONDS:
            return
        self._noted_alive = now
        with suppress(OSError):
            os.utime(self._file)

    def _record_event(self, message: dict[str, Any]) -> None:
        event = message.get("event")
        if event == "step" and _is_count(message.get("step")):
            self.last_step = message
        elif event == "eval" and _is_count(message.get("step")):
            self.evaluation = message
        elif event == "checkpoint" and _is_count(message.get("step")):
            self.checkpoint = message
        elif event == "error":
            self.errors = [*self.errors[:_MAX_ERRORS], message]
        if event is not None:
            self._append_if_due(message, str(event) if event in _KINDS else "other")

    def _append_if_due(self, message: dict[str, Any], kind: str) -> None:
        now = time.monotonic()
        if now - self._last_kept.get(kind, float("-inf")) < pause_between(kind, self._size):
            return
        self._last_kept[kind] = now
        self._append(message)
        if self._size - self._summed_up_at > _SUMMARY_BYTES:
            self._sum_up()

    def _append(self, message: dict[str, Any]) -> None:
        try:
            self._size += os.write(self._file, json.dumps(message).encode() + b"\n")
        except OSError as error:
            log_line(f"{PROGRESS}: {error}")

    def close(self) -> None:
        """Close the file, and close and remove the socket."""
        self.socket.close()
        os.close(self._file)
        Path(NOTIFY).unlink(missing_ok=True)

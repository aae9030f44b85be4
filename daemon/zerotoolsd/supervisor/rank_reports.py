"""Reports of the ranks: datagrams on a Unix socket, kept in `progress.jsonl` and in memory."""

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

from zerotoolsd.supervisor.durable_files import is_shallow
from zerotoolsd.supervisor.heartbeats.rank_heartbeats import ToldBeats
from zerotoolsd.supervisor.plan import NOTIFY, PROGRESS, SUMMARY
from zerotoolsd.supervisor.rank_log import say

MAX_DATAGRAM = 4096
_THIN_ABOVE = 32 * 2**20
"""Bytes of `progress.jsonl` above which at most one message of a kind is kept in a second, and in
ten times as long each time that the file has doubled: no run makes it much larger than that."""
_KINDS = ("step", "checkpoint", "eval", "phase", "error", "finished")
BESIDE = ("fetched", "uploaded", "upload_failed")
"""Events from processes other than ranks."""
MAX_RANKS = 2**16
_CREDENTIALS = struct.Struct("3i")
"""`struct ucred`: pid, uid, gid (unix(7))."""
_CREDENTIALS_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size)
_MOST_PATHS = 10_000
_CHECKPOINT_SECONDS = 10.0
_SUMMARY_BYTES = 16 * 1024
"""A summary comes again after so many bytes: the end of the file always has one."""
_NOTABLE = 1.05
_ALIVE_SECONDS = 5.0
STRUCTURE = "structure"
"""The check of a checkpoint of a user's program: it is complete by its metadata."""
_AT_ONCE = 1000
"""Messages that are taken in before the supervisor looks at anything else."""
_MAX_ERRORS = 1000
"""Errors that are kept: the first ones, which tell who began it, and the last."""


def _is_count(value: object) -> TypeGuard[int]:
    """Return whether it is a number that the queue can store."""
    return type(value) is int and 0 <= value < 2**63


def pause_between(kind: str, size_bytes: int) -> float:
    """Return the seconds between two kept messages of `kind`, in a file of this size."""
    pause, size = 0.0, size_bytes
    while size > _THIN_ABOVE:
        pause, size = (pause or 0.1) * 10, size // 2
    return min(pause, _CHECKPOINT_SECONDS) if kind == "checkpoint" else pause


def _is_ours(more: list[tuple[int, int, bytes]]) -> bool:
    """Return whether a message with this ancillary data was sent by this user, or by root."""
    for level, kind, data in more:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            _, uid, _ = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])
            return uid in (os.geteuid(), 0)
    return False


class Progress:
    """The socket, the file, and the newest of every kind of message. Works in the directory."""

    def __init__(self, note_finished: Callable[..., None] = lambda **_: None) -> None:
        """Open the socket and the file. `note_finished(is_so=...)` is called whenever `finished`
        changes."""
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
        self._told_paths: set[str] = set()
        self.errors: list[dict[str, Any]] = []
        self.phases: dict[int, str] = {}
        self.told = ToldBeats()
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

    def waits(self, why: str | None, seconds: float = 0.0) -> None:
        """Record that the supervisor itself waits, since so many seconds; None ends the wait."""
        if why != self._waits:
            self._waits = why
            self._append({"event": "phase", "doing": why, "time": time.time() - seconds})

    def used_host(self, used_bytes: int) -> None:
        """Record the memory that all processes of the attempt hold together now."""
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
        """Whether any rank got as far as training, so that a stop has something to save."""
        return any(phase not in ("init", "load") for phase in self.phases.values())

    def drain(self) -> None:
        """Take in everything that has arrived. Whatever is not a message is ignored."""
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
            if message.get("event") in BESIDE:
                self._note_beside(message)
            elif type(rank := message.get("rank")) is int and 0 <= rank < MAX_RANKS:
                self._take({**message, "clock": time.monotonic()})

    def _note_beside(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "uploaded":
            self.uploaded = {name: message.get(name) for name in ("step", "path", "time")}
        elif event == "upload_failed":
            self.uploaded = {**(self.uploaded or {}), "why": message.get("why")}
        self._keep(message, event)

    def found(self, path: str, step: int | None) -> None:
        """Record a checkpoint that was found; without a step it is of the newest one.

        A program that reports its checkpoints itself names all of them: found ones are ignored.
        """
        if not self._told_paths:
            event = {"event": "checkpoint", "path": path, "time": time.time(), "found": True}
            event["verified"] = STRUCTURE
            self._take_event({**event, "step": self.steps_done if step is None else step})

    def passed_over(self, path: str, why: str) -> None:
        """Record that a checkpoint is damaged, so the run continues from an older one."""
        message = {"event": "skipped_checkpoint", "path": path, "why": why, "time": time.time()}
        self._append(message)

    def stalled(self, event: dict[str, Any]) -> None:
        """Record that the ranks make no progress."""
        self._append(event)

    def _take(self, message: dict[str, Any]) -> None:
        if isinstance(phase := message.get("phase"), str):
            self.phases[message["rank"]] = phase
        self.told.take(message)
        step, peak = message.get("step"), message.get("gpu_peak_bytes")
        if _is_count(watched := message.get("watched_bytes")):
            self.used_host(watched)
        if _is_count(step):
            self.steps_done = max(self.steps_done, step)
        if _is_count(peak):
            self.peak_gpu_bytes = max(peak, self.peak_gpu_bytes or 0)
        path = message.get("path") if message.get("event") == "checkpoint" else None
        if isinstance(path, str) and len(self._told_paths) < _MOST_PATHS:
            self._told_paths.add(path)
        if message.get("event") is None:
            self._note_alive()
        if message.get("event") in ("step", "checkpoint", "finished"):
            self.finished = message["event"] == "finished"
            self._note_finished(is_so=self.finished)
        self._take_event(message)

    def _note_alive(self) -> None:
        """Touch the file: heartbeats are not kept, only the time of the last one."""
        now = time.monotonic()
        if now - self._noted_alive < _ALIVE_SECONDS:
            return
        self._noted_alive = now
        with suppress(OSError):
            os.utime(self._file)

    def _take_event(self, message: dict[str, Any]) -> None:
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
            self._keep(message, str(event) if event in _KINDS else "other")

    def _keep(self, message: dict[str, Any], kind: str) -> None:
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
            say(f"{PROGRESS}: {error}")

    def close(self) -> None:
        """Remove the socket."""
        self.socket.close()
        os.close(self._file)
        Path(NOTIFY).unlink(missing_ok=True)

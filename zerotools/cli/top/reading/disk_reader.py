"""Reads disks and checkpoint directories through a child process, because a file system may hang.

If the child does not answer in time, it is killed. A child that sleeps in the kernel cannot be
killed: until it has ended, nothing on the same mount is read, and the mount is reported as not
responding. Another child then reads other mounts.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.io.files.mounts import ReadMounts, mounts_of, read_mounts

DEADLINE_SECONDS, START_SECONDS = 0.5, 5.0
PAUSE_SECONDS = 30.0
"""After a timeout, the mount is read again when this many seconds have passed and the hanging child
process has ended.
"""
MOST_HANGING = 4
LONGEST_ANSWER = 1 << 20
COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("disk_reader_process.py")))


@dataclass(frozen=True)
class DiskSpace:
    """A file system: its mount point `at`, its size and its free space. If size and space are
    unknown, `why` is the reason.
    """

    at: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    is_read_only: bool = False
    why: str | None = None


@dataclass(frozen=True)
class CheckpointDirectory:
    """The directory of a checkpoint. It was last written at `time`, in seconds since 1970."""

    time: float
    is_thinned: bool


class DiskNotAnswering(Exception):
    """Raised if the child process does not answer in time, or cannot get the request. The message
    has the cause.
    """


class DiskReader:
    """Sends requests to a child process, and replaces it if it hangs. Several threads must not use
    it at once.

    `command` starts the child, `clock` returns monotonic seconds, and `mounted` returns the mounts.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = COMMAND,
        deadline_seconds: float = DEADLINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        mounted: ReadMounts = read_mounts,
    ) -> None:
        self._command = command
        self._deadline = deadline_seconds
        self._clock = clock
        self._mounted = mounted
        self._child: subprocess.Popen[bytes] | None = None
        self._hanging: list[_Hanging] = []

    def disk(self, path: str) -> DiskSpace:
        """Return the file system of `path`. If it cannot be read, the result contains the
        reason.
        """
        try:
            found = self._ask({"disk": path}, path)
        except DiskNotAnswering as silent:
            at = min(mounts_of(path, self._mounted()), default=path)
            return DiskSpace(at, why=str(silent))
        if "why" in found:
            return DiskSpace(path, why=str(found["why"]))
        return DiskSpace(**found)

    def saved(self, paths: Sequence[str]) -> list[CheckpointDirectory | None] | None:
        """Return the checkpoint directory at each path, with None for a path that does not exist.
        If the paths cannot be read, return None.
        """
        if not paths:
            return []
        try:
            found = self._ask({"saved": list(paths)}, list(paths))
        except DiskNotAnswering:
            return None
        if "why" in found:
            return None
        return [None if each is None else CheckpointDirectory(**each) for each in found["saved"]]

    @property
    def hanging(self) -> list[int]:
        """The pids of child processes that hang in a file system."""
        return [each.child.pid for each in self._hanging]

    def close(self) -> None:
        """End the child processes. A child that hangs ends when its file system answers."""
        for child in (self._child, *(each.child for each in self._hanging)):
            if child is not None:
                _end(child)
        self._child = None

    def _ask(self, question: Mapping[str, Any], named: object) -> dict[str, Any]:
        mounts = mounts_of(named, self._mounted())
        self._forget_hanging()
        if any(mounts & each.mounts or named == each.named for each in self._hanging):
            raise DiskNotAnswering("does not answer")
        if len(self._hanging) >= MOST_HANGING:
            raise DiskNotAnswering("not checked: too many paths do not answer")
        if self._child is None:
            self._child = self._start()
        try:
            return _exchange(self._child, question, self._deadline)
        except TimeoutError:
            child, self._child = self._child, None
            child.kill()
            until = self._clock() + PAUSE_SECONDS
            self._hanging.append(_Hanging(child, mounts, named, until))
            raise DiskNotAnswering("does not answer") from None
        except (OSError, ValueError) as error:
            child, self._child = self._child, None
            _end(child)
            raise DiskNotAnswering(
                f"not checked: the checking process has ended ({error})"
            ) from None

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C on a terminal is for the parent to handle
            )
        except OSError as error:
            raise DiskNotAnswering(
                f"not checked: no checking process could be started ({error})"
            ) from error
        try:
            _answer(child, START_SECONDS)
        except (TimeoutError, ValueError) as error:
            _end(child)
            raise DiskNotAnswering(
                f"not checked: the checking process did not start ({error})"
            ) from None
        return child

    def _forget_hanging(self) -> None:
        now = self._clock()
        for each in list(self._hanging):
            if each.child.poll() is not None and now >= each.until:
                _end(each.child)
                self._hanging.remove(each)


@dataclass(frozen=True)
class _Hanging:
    child: subprocess.Popen[bytes]
    mounts: set[str]
    named: object
    until: float


def _exchange(
    child: subprocess.Popen[bytes], question: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    """Send one request to the child, and return its response.

    Raises TimeoutError, and OSError or ValueError if the child cannot be used any more.
    """
    assert child.stdin is not None
    child.stdin.write(json.dumps(question).encode() + b"\n")
    child.stdin.flush()
    return _answer(child, seconds)


def _answer(child: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    """Return the next response of the child. Raises the errors of `_exchange`."""
    assert child.stdout is not None
    until = time.monotonic() + seconds
    waiting = select.poll()
    waiting.register(child.stdout, select.POLLIN)
    said = bytearray()
    while not said.endswith(b"\n"):
        if not waiting.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError
        part = os.read(child.stdout.fileno(), 1 << 16)
        said += part
        if not part or len(said) > LONGEST_ANSWER:
            raise ValueError("the answer is too long" if part else "there was no answer")
    found = json.loads(said)
    if not isinstance(found, dict):
        raise ValueError("the answer is not a JSON object")
    return found


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(OSError):  # closing fails with unwritten data if the process has ended
                pipe.close()
    with suppress(subprocess.TimeoutExpired):  # it may hang in the kernel
        child.wait(0.5)

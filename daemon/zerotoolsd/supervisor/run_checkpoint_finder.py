"""Runs the checkpoint finder, a process that searches directories of users.

The file system of such a directory may never respond. The finder prints JSON lines. The first line
is `{"resume_from": path or null, "passed_over": [...], "lost": null or why the job must not
start}`. After that, one object follows for every checkpoint that is found. If a disk gives errors,
the first line is `{"not_ready": why}`, and nothing follows. When its standard input is closed, the
finder searches once more and ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from zerotoolsd.supervisor.attempt_plan import FINDER, Plan
from zerotoolsd.supervisor.durable_files import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.rank_log import log_line
from zerotoolsd.supervisor.rank_reports import Progress
from zerotoolsd.supervisor.spawn_child import die_with

LAST = "last"
"""Argument of a finder that only reports all complete checkpoints of the job, and ends."""
LAST_LOOK_SECONDS = 30.0
_SLICE_SECONDS = 0.2
_KILLS = (signal.SIGKILL, signal.SIGTERM)


class NoAnswer(Exception):
    """The checkpoint finder ended before it reported a checkpoint to resume from.

    The message gives the reason. `is_killed` is True if another program, or the kernel, killed the
    finder.
    """

    def __init__(self, status: int) -> None:
        self.is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in _KILLS
        if self.is_killed:
            name = signal.Signals(os.WTERMSIG(status)).name
            super().__init__(f"the search for checkpoints was ended by {name}")
        else:
            super().__init__("the search for checkpoints failed; see supervisor.log")


class FinderAnswer(NamedTuple):
    """The first line of the finder's output.

    Attributes:
        resume_from: the checkpoint to resume from; None: no checkpoint was found.
        passed_over: the newer checkpoints that were rejected, each with the reason.
        lost: the reason why the job cannot continue although it once had a complete checkpoint.
        not_ready: the reason why no checkpoint can be read now.
    """

    resume_from: str | None
    passed_over: tuple[tuple[str, str], ...] = ()
    lost: str | None = None
    not_ready: str | None = None


class Finder:
    """The checkpoint finder, a child process of the supervisor of one attempt."""

    def __init__(self, plan: Plan) -> None:
        """Start the process of the checkpoint finder. Raises OSError."""
        self._plan = plan
        self._start()

    def _start(self, *more: str) -> None:
        self._process = subprocess.Popen(
            (*self._plan.finder, *more),
            env={**os.environ, "ZEROTOOLS_TOKEN": self._plan.token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            preexec_fn=die_with(os.getpid(), self._plan.umask),
        )
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.stdout = self._process.stdout.fileno()
        os.set_blocking(self.stdout, False)
        self._buffer = b""
        self._over = False
        # The supervisor reaps every child itself; without this, Popen would wait for it as well.
        self._process.returncode = 0

    def choose(
        self, stop_asked: Callable[[], bool], waits: Callable[[float], None] = lambda seconds: None
    ) -> FinderAnswer | None:
        """Wait for the checkpoint finder, and return the checkpoint to resume from; None if a stop
        is requested meanwhile.

        If the file system of the directory does not respond, this method waits until it does, and
        calls `waits` with the seconds that it has waited so far. Raises NoAnswer if the finder
        ended.
        """
        began = time.monotonic()
        while not stop_asked():
            answers = self._read()
            if answers:
                return _choice(answers[0])
            if self._over:
                raise NoAnswer(os.waitpid(self.pid, 0)[1])
            waits(time.monotonic() - began)
            select.select([self.stdout], [], [], _SLICE_SECONDS)
        return None

    def _read(self) -> list[dict[str, Any]]:
        """Return the JSON objects of the complete lines that were printed since the last call."""
        while not self._over:
            try:
                data = os.read(self.stdout, 1 << 16)
            except BlockingIOError:
                break
            self._over = not data
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def drain(self, progress: Progress) -> bool:
        """Record in `progress` the checkpoints that the finder has found. Return False at the
        end of the finder's output.
        """
        for message in self._read():
            progress.add_checkpoint(message["path"], message["step"])
        return not self._over

    def finish(self, progress: Progress) -> None:
        """Ask the finder for a last search, and wait for its end, at most LAST_LOOK_SECONDS. Call
        this after all ranks have ended. If the finder was killed, another one searches.
        """
        if self._over:
            try:
                self._start(LAST)
            except OSError as error:
                log_line(f"{self._plan.finder[0]} cannot be started: {error.strerror}")
                return
        assert self._process.stdin is not None
        self._process.stdin.close()
        deadline = time.monotonic() + LAST_LOOK_SECONDS
        while self.drain(progress):
            if time.monotonic() > deadline:
                log_line(f"the last search for checkpoints took more than {LAST_LOOK_SECONDS:g} s")
                return
            select.select([self.stdout], [], [], _SLICE_SECONDS)


def searched_directory() -> str:
    """Return the path of the directory that the finder searches, for use in messages."""
    try:
        found = (read_json(Path(FINDER), LARGEST_RECORD) or {}).get("checkpoint_dir")
    except (OSError, ValueError):
        found = None
    return found if isinstance(found, str) else "the directories of the job"


def _choice(answer: dict[str, Any]) -> FinderAnswer:
    if "not_ready" in answer:
        return FinderAnswer(None, not_ready=answer["not_ready"])
    over = tuple((each["path"], each["why"]) for each in answer["passed_over"])
    return FinderAnswer(answer["resume_from"], over, answer.get("lost"))

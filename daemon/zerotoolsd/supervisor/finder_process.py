"""The finder's parent: a process that looks into directories of users, which may never answer.

It prints JSON lines: first `{"resume_from": path or null, "passed_over": [...], "lost": null or why
the job is not to begin}`, then one object for every checkpoint that it finds; or `{"not_ready":
why}`, where a disk gives errors, and nothing more. The end of its input
asks for a last look, after which it ends.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.children.spawning import die_with
from zerotoolsd.supervisor.durable import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.logs import say
from zerotoolsd.supervisor.plan import FINDER, Plan
from zerotoolsd.supervisor.progress import Progress

LAST_LOOK_SECONDS = 30.0
_SLICE_SECONDS = 0.2


class NoAnswer(Exception):
    """The finder did not say what to go on from; the message says why."""


@dataclass(frozen=True)
class FinderAnswer:
    """What to go on from, and the checkpoints that were passed over for it, with the reasons.
    `lost`: why the job cannot go on, where it had a whole one and has none any more. `not_ready`:
    why nothing is known of them now."""

    resume_from: str | None
    passed_over: tuple[tuple[str, str], ...] = ()
    lost: str | None = None
    not_ready: str | None = None


class Finder:
    """Looks for the checkpoints of one attempt, in a process of its own."""

    def __init__(self, plan: Plan) -> None:
        """Raises OSError: it cannot be started."""
        self._process = subprocess.Popen(
            plan.finder,
            env={**os.environ, "ZEROTOOLS_TOKEN": plan.token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            preexec_fn=die_with(os.getpid(), plan.umask),
        )
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.stdout = self._process.stdout.fileno()
        os.set_blocking(self.stdout, False)
        self._held = b""
        self._over = False
        # The supervisor reaps every child itself; without this, Popen would wait for it as well.
        self._process.returncode = 0

    def choose(
        self, stop_asked: Callable[[], bool], waits: Callable[[float], None] = lambda seconds: None
    ) -> FinderAnswer | None:
        """What to go on from; None: somebody asks for a stop meanwhile. Raises NoAnswer.

        The directory may be on a file system that does not answer now: that is waited for, and
        `waits` is called with the seconds so far.
        """
        began = time.monotonic()
        while not stop_asked():
            answers = self._read()
            if answers:
                return _choice(answers[0])
            if self._over:
                raise NoAnswer("the search for checkpoints failed; see supervisor.log")
            waits(time.monotonic() - began)
            select.select([self.stdout], [], [], _SLICE_SECONDS)
        return None

    def _read(self) -> list[dict[str, Any]]:
        """The whole lines that have come."""
        while not self._over:
            try:
                data = os.read(self.stdout, 1 << 16)
            except BlockingIOError:
                break
            self._over = not data
            self._held += data
        *lines, self._held = self._held.split(b"\n")
        return [json.loads(line) for line in lines]

    def drain(self, progress: Progress) -> bool:
        """Pass on what was found. False: nothing more will come."""
        for message in self._read():
            progress.found(message["path"], message["step"])
        return not self._over

    def finish(self, progress: Progress) -> None:
        """Have it look once more, now that nothing changes any more, and let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        deadline = time.monotonic() + LAST_LOOK_SECONDS
        while self.drain(progress):
            if time.monotonic() > deadline:
                say(f"the last search for checkpoints took more than {LAST_LOOK_SECONDS:g} s")
                return
            select.select([self.stdout], [], [], _SLICE_SECONDS)


def searched() -> str:
    """Where the finder looks, for messages."""
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

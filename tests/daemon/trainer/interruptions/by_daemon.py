"""A job through a real daemon, ended in each of three ways."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.daemon.daemons import REAL, Daemon
from tests.daemon.trainer.interruptions.compared import HOWS, Interrupted, begin, last_step
from tests.daemon.waiting import wait_for
from zerotools.jobs import states
from zerotools.jobs.jobfile.parse import job_from_dict

CONFIG = """
[limits]
cpu_ranks = 4
[stop]
grace_seconds = 120.0
[retry]
first_seconds = 0.05
"""
SECONDS = 300.0
"""Longest wait for what an attempt does next."""


def make_daemon(state: Path) -> Daemon:
    """A real daemon on `state`, not started yet."""
    return Daemon(state, CONFIG, REAL)


def interrupt(
    daemon: Daemon, tree: Mapping[str, Any], place: Path, chance: random.Random
) -> Interrupted:
    """Run `tree` by `daemon`, ended once in each way, in any order: `cancel` and then `resume`;
    SIGTERM to the supervisor, after which the daemon starts the job again; SIGKILL to one rank,
    which is a crash."""
    found = begin(tree, place)
    followed = _Followed(daemon, {**tree, "output_dir": str(found.output)}, found.output)
    for number, how in enumerate(chance.sample(HOWS, len(HOWS))):
        # One in each part of the run, and none so late that it may be over before.
        part = (found.steps - 10) // len(HOWS)
        reached = followed.end(how, chance.randint(number * part + 2, number * part + part), chance)
        found.compare()
        followed.begin_again(how)
        found.ends.append(f"{how} after {reached}, went on after {followed.began()}")
    followed.wait_for_end()
    found.compare_ends()
    return found


class _Followed:
    """The attempts of a job, one after the other; a cancelled one goes on as another job."""

    def __init__(self, daemon: Daemon, tree: Mapping[str, Any], output: Path) -> None:
        self._daemon = daemon
        self._output = output
        self._job: int = daemon.client.submit(job_from_dict(tree, source="job"))["id"]
        self._attempt = 1

    @property
    def _directory(self) -> Path:
        return self._daemon.state / "jobs" / str(self._job) / f"attempt-{self._attempt}"

    def _told(self) -> list[dict[str, Any]]:
        path = self._directory / "progress.jsonl"
        lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def began(self) -> int:
        """The step after which this attempt began, once it has taken one."""
        self._wait(lambda: any(one.get("event") == "step" for one in self._told()), "a step")
        resumed = [one["step"] for one in self._told() if one.get("event") == "resumed"]
        return resumed[0] if resumed else 0

    def end(self, how: str, at: int, chance: random.Random) -> int:
        """End this attempt after step `at`, or soon after; the last step that it made."""
        self._wait(lambda: last_step(self._output) >= at, f"step {at}")
        who = json.loads((self._directory / "run.json").read_text("utf-8"))
        if how == "cancel":
            self._daemon.client.cancel(self._job)
        elif how == "SIGTERM":
            os.kill(who["pid"], signal.SIGTERM)
        else:
            os.kill(chance.choice(who["ranks"])["pid"], signal.SIGKILL)
        wait_for((self._directory / "exit.json").exists, f"an end by {how}", SECONDS)
        return last_step(self._output)

    def begin_again(self, how: str) -> None:
        """Have the job go on, where it does not by itself."""
        if how == "cancel":
            self._reach(states.CANCELLED)
            self._job, self._attempt = self._daemon.client.resume(self._job)["id"], 1
        else:
            self._attempt += 1

    def wait_for_end(self) -> None:
        """Wait until the job has succeeded."""
        self._reach(states.SUCCEEDED)

    def _reach(self, state: str) -> None:
        def has_reached() -> bool:
            view = self._daemon.client.job(self._job)
            assert view["state"] == state or view["state"] not in (*states.TERMINAL, states.HELD), (
                f"job {self._job} is {view['state']}: {view.get('reason')}"
            )
            return bool(view["state"] == state)

        wait_for(has_reached, f"job {self._job} to be {state}", SECONDS)

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        def is_there() -> bool:
            if holds():
                return True
            view = self._daemon.client.job(self._job)
            assert view["state"] not in (*states.TERMINAL, states.HELD), (
                f"job {self._job} is {view['state']} before {what}: {view.get('reason')}"
            )
            return False

        wait_for(is_there, f"{what} of job {self._job}", SECONDS)

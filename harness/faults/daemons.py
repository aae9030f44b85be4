"""A state directory with its daemon, and a client that runs jobs until they end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.faults import warm
from harness.faults.tracing import CrashPoint, Injection
from harness.faults.warm import Victim
from harness.forked import Forked
from harness.patience import Deadline
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.states import TERMINAL
from zerotoolsd.attempts import crash_points

CONFIG = "[limits]\ncpu_ranks = 8\n[retry]\nfirst_seconds = 0.02\n[stop]\ngrace_seconds = 2\n"
SECONDS = 60.0
PAUSE = 0.02
HELD_SECONDS = 5.0
GONE = "gone"
"""The expected state of a removed job."""


@dataclass(frozen=True)
class Wanted:
    """A job of a story: its job file `tree`, and the state `end` in which it must end."""

    tree: Mapping[str, Any]
    end: str
    terms: Mapping[str, Any] = field(default_factory=dict)
    """Options of the submission; `after` names other jobs of the story."""
    edit: Mapping[str, Any] = field(default_factory=dict)
    """Keys that are changed while the job is on hold. Then the job is released."""
    is_held: bool = False
    """If True, the job is held after its second step, and then released."""
    members: int | None = None
    """Number of jobs, if they are an array with this job file. Their names are NAME-0, NAME-1,
    ...
    """
    is_retried: bool = False
    """If True, the array of `members` jobs, which is on hold, is cancelled and then retried."""


@dataclass
class Place:
    """The files of one run of a story: the state directory, the log, and the files in which jobs
    write lines.
    """

    path: Path
    tensors: Path
    config: str = CONFIG
    acknowledged: dict[str, int] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    edited: set[str] = field(default_factory=set)
    was_held: set[str] = field(default_factory=set)
    again: set[int] = field(default_factory=set)
    """The numbers of the new jobs of arrays that were retried."""

    def __post_init__(self) -> None:
        self.path.mkdir(exist_ok=True)
        (self.path / "config.toml").write_text(self.config)
        self.client = DaemonClient(self.state / "api.sock", timeout_seconds=20)

    @property
    def state(self) -> Path:
        """The state directory of the daemon."""
        return self.path / "state"

    @property
    def log(self) -> str:
        """The last 3,000 characters of the log of all daemons."""
        return (self.path / "log").read_text(errors="replace")[-3000:]

    @property
    def options(self) -> tuple[str, ...]:
        """The command-line options of a daemon for this place."""
        config = self.path / "config.toml"
        return ("--state-dir", str(self.state), "--config", str(config))

    def victim(self, injection: Injection | None) -> Victim:
        """Start a daemon with `injection`."""
        return Victim("daemon", self.options, self.path, injection)

    def daemon(
        self, crash: CrashPoint | None = None, env: Mapping[str, str] | None = None
    ) -> Forked:
        """Start a daemon without an injection.

        With `crash`, the daemon kills itself at this point of its code.
        """
        env = {**(env or {}), **({} if crash is None else {crash_points.VARIABLE: crash.name})}
        return warm.start("daemon", self.options, self.path, env=env)

    def lines(self, name: str) -> list[str]:
        """Return the lines that the job `name` has written."""
        path = self.path / f"{name}.lines"
        return path.read_text().splitlines() if path.exists() else []

    def script(self, name: str, program: str, end: str = "succeeded", **more: Any) -> Wanted:
        """Return a job that runs the shell script `program`.

        In the script, `$LINES` is the path of the file for the job's lines.
        """
        script = {
            "command": ["/bin/sh", "-c", program],
            "directory": str(self.path),
            "launcher": "plain",
        }
        env = {"LINES": str(self.path / f"{name}.lines")}
        tree = {"name": name, "engine": "script", "device": "cpu", "ranks": 1}
        return Wanted({**tree, "env": env, "script": script, **more}, end)

    def training(
        self,
        name: str,
        steps: int,
        end: str = "succeeded",
        env: Mapping[str, str] = {},
        **more: Any,
    ) -> Wanted:
        """Return a job of the built-in trainer, with `stand_in` as its rank."""
        mine = {"LINES": str(self.path / f"{name}.lines"), "TENSORS": str(self.tensors)}
        tree = {"name": name, "device": "cpu", "ranks": 1, "env": {**mine, **env}}
        data = {"text": [str(self.path / "config.toml")]}
        train = {"steps": steps, "batch_size": 4}
        return Wanted({**tree, "model": {"config": {}}, "data": data, "train": train, **more}, end)

    def drive(
        self,
        jobs: Mapping[str, Wanted],
        is_running: Callable[[], bool],
        seconds: float = SECONDS,
    ) -> str | None:
        """Submit the jobs, and send the requests of the story until all jobs have ended.

        Returns None then. Returns an empty text if the daemon ended before, and a sentence if the
        jobs did not end within `seconds`.
        """
        deadline, said = Deadline(seconds), "nothing was answered"
        while not deadline.has_passed():
            if not is_running():
                return ""
            with contextlib.suppress(OSError):
                try:
                    said = self._once(jobs)
                    if not said:
                        return None
                except ZerotoolsError as error:
                    said = str(error)
            time.sleep(PAUSE)
        return f"jobs did not end within {deadline.waited:.0f} s: {said}"

    def _once(self, jobs: Mapping[str, Wanted]) -> str:
        for name, wanted in jobs.items():
            if name not in self.acknowledged:
                spec = job_from_dict(wanted.tree, source="job")
                terms = self._terms(wanted)
                if wanted.members is not None:
                    key, count = str(spec.name), wanted.members
                    several = self.client.submit_array(
                        spec, {}, count, idempotency_key=key, terms=terms
                    )
                    self.acknowledged |= {str(job["name"]): int(job["id"]) for job in several}
                    continue
                taken = self.client.submit(spec, idempotency_key=name, terms=terms)
                self.acknowledged[name] = taken["id"]
        found = {job["name"]: job for job in sorted(self.client.jobs(), key=lambda job: job["id"])}
        for name, wanted in jobs.items():
            job = found.get(name)
            if job is not None and wanted.end == "cancelled" and self.lines(name):
                self._cancel(name, job)
            if job is not None and wanted.is_held:
                self._hold(name, job)
            if job is not None and wanted.is_retried and job["id"] == self.acknowledged[name]:
                self._retry(job)
                return f"{name} is retried"
            if job is not None and wanted.end == GONE and job["state"] in TERMINAL:
                self.client.clean({"jobs": [job["id"]], "outputs": True})
            if job is not None and job["state"] == "on_hold":
                if wanted.edit and name not in self.edited:
                    self.client.edit(job["id"], {"set": dict(wanted.edit)})
                    self.edited.add(name)
                self.client.release(job["id"])
            if job is not None and job["state"] == "held":
                self._resume(name, job["id"])
        state = {name: found[name]["state"] if name in found else GONE for name in jobs}
        if all(
            state[name] in {*TERMINAL, GONE} and self._is_over(state[name], jobs[name])
            for name in jobs
        ):
            return ""
        return json.dumps({name: (state[name], found.get(name, {}).get("reason")) for name in jobs})

    def _terms(self, wanted: Wanted) -> dict[str, Any]:
        named = wanted.terms.get("after", ())
        after = [{"job": self.acknowledged[name], "condition": how} for name, how in named]
        return {**wanted.terms, "after": after} if after else dict(wanted.terms)

    def _resume(self, name: str, job: int) -> None:
        """Resume a job that has been held for some time.

        A job may be held for a moment although its program has ended. If such a job is resumed, its
        program runs again.
        """
        if time.monotonic() - self.held.setdefault(name, time.monotonic()) > HELD_SECONDS:
            self.client.resume(job)
            del self.held[name]

    def _retry(self, job: Mapping[str, Any]) -> None:
        """Cancel the whole array of `job`. When all jobs of the array have ended, retry the
        array.
        """
        if job["state"] not in TERMINAL:
            self.client.of_array(job["id"], {"do": "cancel"})
        elif all(
            each["state"] in TERMINAL for each in self.client.jobs_of_array(job["array"]["id"])
        ):
            new = self.client.of_array(job["id"], {}, "/retry")
            self.again |= {each["id"] for each in new["jobs"]}

    def _is_over(self, state: str, wanted: Wanted) -> bool:
        return (state == GONE) == (wanted.end == GONE)

    def _hold(self, name: str, job: Mapping[str, Any]) -> None:
        """After the second step of the job, hold the job once, and then release it."""
        if job["state"] == "paused":
            self.was_held.add(name)  # even if no answer came
            self.client.release(job["id"])
            return
        runs = name not in self.was_held and job["state"] in ("running", "pausing")
        if runs and "step 2" in self.lines(name):
            self.client.hold(job["id"])

    def _cancel(self, name: str, job: Mapping[str, Any]) -> None:
        if job["state"] not in {*TERMINAL, "stopping"}:
            self.client.cancel(job["id"])

    def idle(self, name: str) -> int:
        """Return how often a training job was started again after it had ended, and found no step
        left to do.

        Returns 0 if such a start did any step.
        """
        after = self.lines(name)
        after = after[after.index("done") + 1 :] if "done" in after else []
        is_idle = all(line == "done" or line.startswith("began ") for line in after)
        return sum(line.startswith("began ") for line in after) if is_idle else 0

    def wrong(self, jobs: Mapping[str, Wanted], *, ranks_die: bool = False) -> Iterator[str]:
        """Yield a sentence for each job that ran again, and for each job that ended in a wrong
        state.

        With `ranks_die`, a rank may have been killed between its last line and its exit. So one
        more attempt is allowed if it finds no step left to do.
        """
        with closing(sqlite3.connect(self.state / "zerotools.db")) as database:
            found = list(database.execute("SELECT name, state FROM job ORDER BY rowid"))
        rows, counts = dict(found), Counter(name for name, _ in found)
        for name, wanted in jobs.items():
            if counts[name] > 1 + wanted.is_retried:
                yield f"{name} was queued again: it exists {counts[name]} times"
            lines = self.lines(name)
            done = lines.index("done") if "done" in lines else len(lines)
            again = any(line.startswith("began") for line in lines[done:])
            if again and not (ranks_die and self.idle(name)):
                yield f"{name} ran again after it was done: {lines}"
            state = rows.get(name, GONE)
            if state != wanted.end:
                yield f"{name} is {state}, not {wanted.end}: its lines are {lines}"


def make_tensors(directory: Path) -> Path:
    """Make a DCP directory with one tensor, as `zerotools convert` writes it."""
    model, out = directory / "model", directory / "tensors"
    model.mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(16)
    (model / "model.safetensors").write_bytes(data)
    command = ("convert", model, out, "--to", "dcp", "--world-size", "1")
    subprocess.run(
        [sys.executable, "-m", "zerotools", *map(str, command)], check=True, capture_output=True
    )
    (out / ".zerotools-output.json").unlink()
    return out


def moved(template: Path, state: Path, old: Path, new: Path) -> None:
    """Copy a queue file, or the state directory of an ended daemon, from `template` to `state`.

    In the copy, the path `old` is replaced by `new`.
    """
    queue = state
    if template.is_dir():
        ignored = shutil.ignore_patterns("api.sock", "notify.sock")
        shutil.copytree(template, state, ignore=ignored, symlinks=True)
        queue = state / "zerotools.db"
    else:
        shutil.copyfile(template, state)
    with closing(sqlite3.connect(queue)) as database, database:
        columns = {row[1] for row in database.execute("PRAGMA table_info(job)")}
        for table, column in (
            ("job", "output_dir"),
            ("job", "spec"),
            ("job", "spec_given"),
            ("attempt", "run_dir"),
        ):
            if table == "job" and column not in columns:
                continue
            text = (os.fspath(old), os.fspath(new))
            database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", text)

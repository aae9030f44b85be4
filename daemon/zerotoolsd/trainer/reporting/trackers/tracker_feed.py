"""Starts the trackers of a job (wandb, MLflow) on rank 0, and sends them the results of the steps.

A tracker gets no secret of the job. Training waits for the process of a tracker only when training
ends, and only for a short time.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from zerotools.io.telemetry.step_metrics_files import METRICS
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.preflight.tracker_login import is_switched_off, offline_reasons
from zerotools.jobs.text.mask_secrets import HIDDEN, is_secret_name, mask_tree
from zerotoolsd.supervisor.transient_os_errors import error_text

PROGRAM = Path(__file__).with_name("tracker_program.py")
MOST_WAITING = 20_000
"""At most this many steps wait to be sent to a tracker. If there are more, they are not logged
there.
"""
CLOSE_SECONDS = 30.0
SAID = 3
"""Exit status of a tracker's process that failed and has already logged the reason."""
_NOT_ITS_OWN = ("ZEROTOOLS_NOTIFY", "ZEROTOOLS_PULSE", "ZEROTOOLS_TOKEN")


class TrackerFeed:
    """Starts the process of the tracker `name`, and sends it the results of steps as lines.

    The output of the process goes to the rank's log. `opening` is the first line, which describes
    the run; see `tracker_program`.
    """

    def __init__(
        self,
        name: str,
        opening: Mapping[str, Any],
        *,
        command: Sequence[str] = (sys.executable, "-P", str(PROGRAM)),
        close_seconds: float = CLOSE_SECONDS,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        """Start the process of the tracker. Raises OSError if it cannot be started."""
        self.name = name
        self._close_seconds = close_seconds
        self._most_waiting = most_waiting
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._failed = False
        self._end = "failed"
        environment = {n: v for n, v in os.environ.items() if n not in _NOT_ITS_OWN}
        self._process = subprocess.Popen(
            (*command, name), stdin=subprocess.PIPE, env=environment, bufsize=0
        )
        self._thread = threading.Thread(target=self._write, name=f"to {name}", daemon=True)
        self._thread.start()
        self._enqueue(opening)

    def append(self, step: int, fields: Mapping[str, float]) -> str | None:
        """Send `fields`, the numbers of step `step`, to the tracker.

        Returns the reason when numbers are lost for the first time, and None at all other times.
        """
        problem = None
        if (ended := self._process.poll()) is not None:
            problem = "" if ended == SAID else f"its process ended ({ended})"
        elif self._lines.qsize() >= self._most_waiting:
            problem = f"{self._most_waiting} steps wait for it already, and it makes no progress"
        else:
            self._enqueue({"step": step, "fields": fields})
        if problem is None or self._failed:
            return None
        self._failed = True
        return problem or None

    def ends_as(self, end: str) -> None:
        """Set the result of the run that is reported to the tracker: `done` or `stopped`. Without
        this call, the result is `failed`.
        """
        self._end = end

    def close(self) -> str | None:
        """Let the tracker's process write its data and end.

        Returns the reason if the process failed; None if it succeeded.
        """
        deadline = time.monotonic() + self._close_seconds
        self._enqueue({"end": self._end})
        self._lines.put(None)
        self._thread.join(self._close_seconds)
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"it did not end within {self._close_seconds:g} s, and was killed"
        ended = self._process.returncode
        return None if self._failed or ended in (0, SAID) else f"its process ended ({ended})"

    def _enqueue(self, tree: Mapping[str, Any]) -> None:
        self._lines.put(json.dumps(tree, default=str).encode() + b"\n")

    def _write(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        try:
            while (line := self._lines.get()) is not None:
                view = memoryview(line)
                while view:
                    view = view[pipe.write(view) :]
        except OSError:  # it has ended, which `append` and `close` find
            return
        finally:
            pipe.close()


_NOT_TOLD = ("captured_env", "notify", "script")
Start = Callable[[str, Mapping[str, Any]], TrackerFeed]


def start_tracking(
    spec: JobSpec,
    run_dir: Path,
    done: int | None,
    log_line: Callable[[str], None],
    start: Start = TrackerFeed,
) -> list[TrackerFeed]:
    """Start a process for each tracker of the job, and return their feeds.

    `done` is the number of completed steps (None: the run begins). If a process cannot be started,
    this is reported with `log_line`, and training continues.
    """
    trackers = spec.metrics.trackers
    if not trackers:
        return []
    output_dir = Path(spec.output_dir or "")
    try:
        run = tracked_run(output_dir, run_dir.parent, continues=done is not None)
    except OSError as error:
        names = " and ".join(trackers)
        why = error_text(error)
        log_line(f"{names}: no steps are logged there ({why}); training continues")
        return []
    return list(_started(spec, output_dir, run.id, (done or 0) + 1, log_line, start))


def _started(
    spec: JobSpec,
    output_dir: Path,
    identity: str,
    first: int,
    log_line: Callable[[str], None],
    start: Start,
) -> Iterator[TrackerFeed]:
    offline = offline_reasons(spec.metrics, os.environ)
    for name, project in spec.metrics.trackers.items():
        if is_switched_off(name, os.environ):
            log_line(f"{name}: is switched off by WANDB_MODE: no step is logged there")
            continue
        opening = {
            "project": project,
            "id": identity,
            "name": spec.name,
            "directory": str(output_dir),
            "config": config_for_tracker(spec),
            "offline": offline.get(name),
            "first": first,
            "history": str(output_dir / METRICS),
        }
        try:
            yield start(name, opening)
        except OSError as error:
            log_line(f"{name}: no steps are logged there ({error.strerror}); training continues")


def config_for_tracker(spec: JobSpec) -> dict[str, Any]:
    """Return the keys of the job, with their values, for a tracker.

    The values of the job's environment variables, and everything that looks like a secret, are
    hidden.
    """
    tree = {name: value for name, value in job_to_dict(spec).items() if name not in _NOT_TOLD}
    known = [value for name, value in spec.env.items() if is_secret_name(name)]
    told: dict[str, Any] = mask_tree(tree, known)
    return {**told, "env": dict.fromkeys(spec.env, HIDDEN)}


TRACKED = "tracked_run.json"
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_LENGTH = 12


@dataclass(frozen=True)
class RunIdentity:
    """The `id` of a run at its trackers, and the directory of the `job` that began the run."""

    id: str
    job: str


def tracked_run(output_dir: Path, job: Path, *, continues: bool) -> RunIdentity:
    """Return the identity of the run in `output_dir`.

    If none exists, or if another job begins a new run in the directory, make a new identity. If
    `continues` is True, the job continues from a checkpoint and keeps the identity.

    Raises:
        OSError: the identity cannot be written.
    """
    path = output_dir / TRACKED
    found = _read(path)
    if found is not None and (continues or found.job == str(job)):
        return found
    new = RunIdentity("".join(secrets.choice(_LETTERS) for _ in range(_LENGTH)), str(job))
    partial = path.with_name(f".{TRACKED}.partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump({"id": new.id, "job": new.job}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return new


def _read(path: Path) -> RunIdentity | None:
    try:
        tree = json.loads(path.read_text("utf-8"))
        run = RunIdentity(tree["id"], tree["job"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    known = isinstance(run.id, str) and isinstance(run.job, str)
    return run if known and len(run.id) == _LENGTH and set(run.id) <= set(_LETTERS) else None

"""Kills a real zerotoolsd, and real supervisors, at every durable system call of a scenario.

    python -m harness.faults [--at N] [--most N] [--errors] [--scenario daemon|supervisor]

The daemon runs under `strace -e inject=...:signal=KILL:when=N`, which kills it exactly before its
N-th call, for N = 1, 2, ... until the scenario passes untouched. Then a fresh daemon starts, the
jobs come to their ends, and `harness.invariants` looks at what there is. With `--errors` the N-th
calls fail instead, with ENOSPC, EIO and EMFILE, and no job may fail for that. Programs are shell
scripts that write a line when they begin and one when they are done, so that a second run shows.

Needs strace; the checks of `tests` do the same at named points without it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.invariants import broken, failed
from harness.started import Started
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.states import TERMINAL
from zerotoolsd.attempts import reattach
from zerotoolsd.supervisor import entry
from zerotoolsd.supervisor.durable import write_json
from zerotoolsd.supervisor.plan import ATTEMPT, Plan

ROOT = Path(__file__).parents[1]
CALLS = ("pwrite64", "fdatasync", "fsync", "rename", "mkdir", "unlink")
"""strace counts each of them by itself."""
KILLED = b"killed by SIGKILL"
CONFIG = "[limits]\ncpu_ranks = 8\n[retry]\nfirst_seconds = 0.05\n[stop]\ngrace_seconds = 0.5\n"
ERRORS = ("ENOSPC", "EIO", "EMFILE")
SECONDS = 60.0
FEW = 4
"""So many calls, one after another, fail where errors are injected."""

DONE = "echo began >> done; echo done >> done"
RETRIED = "echo began >> retried; test -e once || { : > once; exit 5; }; echo done >> retried"
CANCELLED = "echo began >> cancelled; exec sleep 600"


@dataclass
class Totals:
    """What was found over all points."""

    points: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    orphaned: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, where: str, sentence: str) -> None:
        """Count one sentence of the checker."""
        kind = self.lost
        if "again" in sentence or "not over" in sentence:
            kind = self.doubled
        elif "runs outside" in sentence:
            kind = self.orphaned
        kind.append(f"{where}: {sentence}")

    def __str__(self) -> str:
        return (
            f"{self.points} kill points, {len(self.lost)} lost, {len(self.doubled)} doubled, "
            f"{len(self.orphaned)} orphaned, {len(self.failed)} failed by the machine"
        )

    @property
    def sentences(self) -> list[str]:
        """All that is wrong."""
        return [*self.lost, *self.doubled, *self.orphaned, *self.failed]


class FaultyDaemon:
    """One state directory, with a daemon that is killed or hindered."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.state = place / "state"
        self.client = DaemonClient(self.state / "api.sock", timeout_seconds=10)
        self.acknowledged: list[int] = []
        (place / "config.toml").write_text(CONFIG)

    def start(self, inject: str | None = None) -> Started:
        """A daemon; `inject` as strace takes it."""
        options = ("--state-dir", self.state, "--config", self.place / "config.toml")
        command: list[Any] = [sys.executable, "-m", "zerotoolsd", *options]
        if inject is not None:
            calls = ("-e", f"trace={inject.partition('=')[2].partition(':')[0]}", "-e", inject)
            trace = ("-q", "-o", self.place / "trace", *calls)
            command = ["strace", *trace, *command]
        with (self.place / "log").open("ab") as log:
            return Started(
                command,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def submit_all(self) -> None:
        """The jobs of the scenario that this daemon lives to acknowledge."""
        for name, program in (("done", DONE), ("retried", RETRIED), ("cancelled", CANCELLED)):
            tree = {
                "name": name,
                "engine": "script",
                "device": "cpu",
                "ranks": 1,
                "script": {
                    "command": ["/bin/sh", "-c", program],
                    "directory": str(self.place),
                    "launcher": "plain",
                },
            }
            job = job_from_dict(tree, source="job")
            self.acknowledged.append(self.client.submit(job, idempotency_key=name)["id"])

    def drive(self, process: Started) -> bool:
        """Submit, wait, cancel; False: the daemon did not live to see the end."""
        end = time.monotonic() + SECONDS
        submitted = cancelled = False
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(ZerotoolsError, OSError):
                if not submitted:
                    self.client.health()
                    self.acknowledged.clear()
                    self.submit_all()
                    submitted = True
                states = {job["name"]: job for job in self.client.jobs()}
                began = (self.place / "cancelled").exists()
                if began and not cancelled and "cancelled" in states:
                    job = states["cancelled"]
                    cancelled = job["state"] in TERMINAL
                    if not cancelled and job["state"] != "stopping":
                        self.client.cancel(job["id"])
                if len(states) == 3 and all(j["state"] in TERMINAL for j in states.values()):
                    return True
            time.sleep(0.02)
        return False

    def twice(self) -> Iterator[str]:
        """The programs that ran again after they were done."""
        for name in ("done", "retried"):
            path = self.place / name
            lines = path.read_text().split() if path.exists() else []
            if "began" in lines[lines.index("done") :] if "done" in lines else False:
                yield f"{name} ran again after it was done"


def at_daemon(place: Path, inject: str, where: str, totals: Totals) -> bool:
    """One point of the daemon; whether the scenario passed untouched."""
    place.mkdir()
    it = FaultyDaemon(place)
    first = it.start(inject)
    it.drive(first)
    acknowledged = list(it.acknowledged)
    untouched = not _was_killed(place)
    kill_family_alone(first)
    second = it.start()
    if not it.drive(second):
        log = (place / "log").read_text(errors="replace")
        totals.lost.append(f"{where}: the jobs came to no end: {log[-2000:]}")
    for sentence in (*broken(it.state, acknowledged), *it.twice()):
        totals.add(where, sentence)
    totals.failed += [f"{where}: job {job}: {why}" for job, why in failed(it.state).items()]
    second.terminate()
    second.wait(20)
    shutil.rmtree(place)
    return untouched


def _was_killed(place: Path) -> bool:
    return _kills(place) > 0


def _kills(place: Path) -> int:
    return _bytes(place / "trace").count(KILLED)


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def kill_family_alone(process: Started) -> None:
    """End strace and the daemon below it; the supervisors go on."""
    for pid in children(process.pid):
        with contextlib.suppress(OSError):
            if b"zerotoolsd\0--state-dir" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, 9)
    if process.poll() is None:
        process.kill()
    process.communicate()


def children(pid: int) -> list[int]:
    """Of one process."""
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def at_supervisor(place: Path, inject: str, where: str, totals: Totals) -> bool:
    """One point of a supervisor and of its keeper; whether neither was killed."""
    place.mkdir()
    run, token = place / "run", "f" * 32
    run.mkdir()
    plan = Plan(
        job_id=1,
        attempt=1,
        token=token,
        argv=("/bin/sh", "-c", f"echo began >> {place}/ran; : > {place}/done"),
        env={"ZEROTOOLS_TOKEN": token},
        cwd=str(place),
        umask=0o077,
        world_size=1,
        gpu_uuids=(),
        grace_seconds=1.0,
        straggler_seconds=1.0,
        log_limit_bytes=2**20,
        own_program=True,
    )
    write_json(run / ATTEMPT, plan.to_json())
    calls = ("-e", f"trace={inject.partition('=')[2].partition(':')[0]}", "-e", inject)
    trace = ("-f", "-q", "-o", place / "trace", *calls)
    with (place / "log").open("ab") as log:
        process = Started(
            ["strace", *trace, sys.executable, "-I", "-S", str(entry.__file__), str(run)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        process.wait(SECONDS)
    found = reattach.run_dir_status(run, token)
    ended = found.record.get("outcome") if isinstance(found, reattach.Over) else None
    # A rank that was killed before it had exited was not done, whatever it wrote; and of a keeper
    # and a supervisor that are killed in one moment nobody is left to know.
    unknown = _kills(place) > 1 or b'"killed": true' in _bytes(run / "exit.json")
    if (place / "done").exists() and ended != "finished" and not unknown:
        totals.doubled.append(f"{where}: the rank was done, and is {found}: it would run again")
    if reattach.kill_strays(token):
        totals.orphaned.append(f"{where}: a process of the attempt was left")
    untouched = not _was_killed(place)
    shutil.rmtree(place)
    return untouched


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 where anything was lost, doubled, orphaned or failed, 77 without strace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--at", type=int, default=1, help="the first N")
    parser.add_argument("--most", type=int, default=1000, help="the last N")
    parser.add_argument("--call", action="append", choices=CALLS, help="this one alone")
    parser.add_argument("--step", type=int, default=1, help="N, N + step, ...")
    parser.add_argument("--errors", action="store_true", help="let calls fail instead")
    parser.add_argument("--scenario", choices=("daemon", "supervisor"), default="daemon")
    options = parser.parse_args(arguments)
    if shutil.which("strace") is None:
        print("not run: strace is not installed")
        return 77
    totals = Totals()
    with tempfile.TemporaryDirectory() as directory:
        for call in options.call or CALLS:
            for number in range(options.at, options.most + 1, options.step):
                place = Path(directory) / f"{call}-{number}"
                if _points(options, place, call, number, totals):
                    break
    print(json.dumps({"points": totals.points, "wrong": totals.sentences}, indent=1))
    print(totals)
    return 1 if totals.sentences else 0


def _points(
    options: argparse.Namespace, place: Path, call: str, number: int, totals: Totals
) -> bool:
    """The points of the N-th `call`; whether there is no such call."""
    at = at_supervisor if options.scenario == "supervisor" else at_daemon
    if not options.errors:
        totals.points += 1
        inject = f"inject={call}:signal=KILL:when={number}"
        return at(place, inject, f"{options.scenario}, {call} {number}", totals)
    for error in ERRORS:
        totals.points += 1
        inject = f"inject={call}:error={error}:when={number}..{number + FEW}"
        at(place, inject, f"{options.scenario}, {error} of {call} {number}", totals)
    return False


if __name__ == "__main__":
    sys.exit(main())

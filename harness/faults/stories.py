"""Stories of the jobs of a daemon, which is killed or has failing calls.

Afterwards, a new daemon runs the jobs until they end, and `harness.invariants` checks the result.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness.faults.daemons import CONFIG, GONE, Place, Wanted
from harness.faults.points import Found
from harness.faults.tracing import CrashPoint, Injection, counted
from harness.invariants import broken, failed, unused_texts

STOP_SECONDS = 30.0
ONCE = "echo began >> $LINES; echo done >> $LINES"
FAILS_ONCE = (
    "echo began >> $LINES; test -e $LINES.once || { : > $LINES.once; exit 5; }; echo done >> $LINES"
)
UNTIL_STEP_2 = (
    "echo began >> $LINES; until grep -qx 'step 2' $OTHER; do sleep 0.02; done; echo done >> $LINES"
)
TWO_RANKS = CONFIG.replace("cpu_ranks = 8", "cpu_ranks = 2")
GROWS_AT_ONCE = TWO_RANKS + "[elastic]\nafter_seconds = 0\ngain = 1\nchange_seconds = 1\n"
PREEMPTS = (
    CONFIG.replace("cpu_ranks = 8", "cpu_ranks = 1")
    + "[preemption]\nenabled = true\nafter_seconds = 0\n"
)
SLEEPS = "echo began >> $LINES; exec sleep 600"

Jobs = Callable[[Place], dict[str, Wanted]]


@dataclass(frozen=True)
class DaemonStory:
    """Runs jobs with one daemon. `begin` makes the place with which the story begins."""

    name: str
    tensors: Path
    jobs: Jobs
    begin: Callable[[Path], Place] | None = None

    def run(self, path: Path, injection: Injection | None) -> Found:
        """Run the story; see `Story.run`."""
        place = self._place(path)
        jobs = self.jobs(place)
        victim = place.victim(injection)
        victim.go()
        said = place.drive(jobs, lambda: not victim.is_over())
        if injection is None:
            victim.started.send_signal(signal.SIGTERM)  # its end is a part of the story
            victim.wait(STOP_SECONDS)
        victim.end()
        found = Found(hit=victim.was_hit(), calls=counted(victim.trace))
        if injection is None and said is not None:
            found.wrong.append(f"untouched, and {said}: {place.log}")
        found.wrong += judge(place, jobs)
        return found

    def run_to(self, path: Path, crash: CrashPoint) -> Found:
        """Run the story once, with a daemon that kills itself at the point `crash` of its code."""
        place = self._place(path)
        jobs = self.jobs(place)
        daemon = place.daemon(crash)
        place.drive(jobs, daemon.is_running)
        hit = not daemon.is_running() and daemon.returncode == -signal.SIGKILL
        daemon.kill()
        daemon.wait(STOP_SECONDS)
        return Found(hit=hit, wrong=judge(place, jobs))

    def _place(self, path: Path) -> Place:
        return Place(path, self.tensors) if self.begin is None else self.begin(path)


def in_a_chain(place: Place) -> dict[str, Wanted]:
    """Return two jobs. The second one starts after the first has succeeded, and not before a
    certain time.
    """
    second = place.script("second", ONCE)
    return {
        "first": place.script("first", ONCE),
        "second": replace(second, terms={"after": [("first", "ok")], "begin": time.time() + 0.5}),
    }


def on_hold(place: Place) -> dict[str, Wanted]:
    """Return a job that is on hold until the client releases it, and a job without a hold.

    The first job has the higher priority.
    """
    held = replace(place.script("held", ONCE), terms={"hold": True, "priority": 3})
    return {"held": held, "plain": place.script("plain", ONCE)}


def several(place: Place) -> dict[str, Wanted]:
    """Return an array of two jobs, which are submitted together."""
    program = ONCE.replace("$LINES", "$LINES-$ZEROTOOLS_ARRAY_INDEX.lines")
    one = place.script("both", program)
    env = {"LINES": str(place.path / "both")}
    one = replace(one, tree={**one.tree, "env": env}, members=2)
    return {"both-0": one, "both-1": one}


def in_slices(place: Place) -> dict[str, Wanted]:
    """Return the jobs of `several` with very long job files, so that each job is written in its own
    transaction.
    """
    pad = {f"PAD{number}": "x" * 110_000 for number in range(2)}
    found = several(place)
    env = {**found["both-0"].tree["env"], **pad}
    return {name: replace(one, tree={**one.tree, "env": env}) for name, one in found.items()}


def retried(place: Place) -> dict[str, Wanted]:
    """Return the jobs of `in_slices`, on hold: they are cancelled, and then the whole array is
    retried.
    """
    held = {"hold": True}
    return {
        name: replace(one, terms=held, is_retried=True) for name, one in in_slices(place).items()
    }


def member_edited(place: Place) -> dict[str, Wanted]:
    """Return the jobs of `in_slices`, on hold: each one is edited, which makes its job file
    short.
    """
    found = {}
    for name, one in in_slices(place).items():
        lines = str(place.path / f"{name}.lines")
        edit = {"env.PAD0": "", "env.PAD1": "", "env.LINES": lines}
        script = place.script(name, ONCE).tree["script"]
        tree = {**one.tree, "script": script}
        found[name] = replace(one, tree=tree, terms={"hold": True}, edit=edit)
    return found


def removed(place: Place) -> dict[str, Wanted]:
    """Return the jobs of `in_slices`: each one is removed when it has ended."""
    return {name: replace(one, end=GONE) for name, one in in_slices(place).items()}


def edited(place: Place) -> dict[str, Wanted]:
    """Return a job, on hold, that can write its lines only after it was edited."""
    job = place.script("edited", ONCE, max_restarts=0)
    right = job.tree["env"]["LINES"]
    tree = {**job.tree, "env": {"LINES": "/nowhere/lines"}}
    return {"edited": replace(job, tree=tree, terms={"hold": True}, edit={"env.LINES": right})}


def growing(place: Place) -> dict[str, Wanted]:
    """Return an elastic job of one or two ranks, and a job that occupies the second rank at first.

    The elastic job grows when the other job ends. It ends only with both ranks.
    """
    other = {"LINES": str(place.path / "other.lines"), "OTHER": str(place.path / "t.lines")}
    first = place.script("other", UNTIL_STEP_2)
    ranks = {"min": 1, "max": 2}
    return {
        "other": replace(first, tree={**first.tree, "env": other}),
        "t": place.training("t", 4, env={"ALONE": "2"}, ranks=ranks),
    }


def making_room(place: Place) -> dict[str, Wanted]:
    """Return a job that yields after its second step to a job of higher priority, and then
    continues.
    """
    high = place.script("high", ONCE)
    env = {"WAIT": "2", "OTHER": str(place.path / "high.lines")}
    return {
        "t": place.training("t", 4, env=env),
        "high": replace(high, terms={"priority": 5}),
    }


def pausing(place: Place) -> dict[str, Wanted]:
    """Return a job that is held after its second step, and then released."""
    return {"t": replace(place.training("t", 4, env={"WAIT": "2"}), is_held=True)}


def judge(place: Place, jobs: Mapping[str, Wanted]) -> list[str]:
    """Run the jobs with a new daemon until they end, check the result, and return the errors."""
    acknowledged = {n for name, n in place.acknowledged.items() if jobs[name].end != GONE}
    acknowledged |= place.again
    second = place.daemon()
    try:
        said = place.drive(jobs, second.is_running)
    finally:
        second.terminate()
        status = second.wait(STOP_SECONDS)
    wrong = []
    if said is not None:
        wrong.append(f"{said or f'the daemon ended with {status}'}: {place.log}")
    wrong += broken(place.state, acknowledged)
    wrong += [f"job file {number} was left" for number in unused_texts(place.state)]
    wrong += place.wrong(jobs)
    for name, number in place.acknowledged.items():
        if jobs[name].end == GONE and (place.state / "jobs" / str(number)).exists():
            wrong.append(f"job {number} was removed, but its directory still exists")
    wrong += [f"job {job} failed: {why}" for job, why in failed(place.state).items()]
    return wrong


def daemon_stories(tensors: Path) -> list[DaemonStory]:
    """Return all stories that begin with a new state directory."""

    def story(name: str, jobs: Jobs) -> DaemonStory:
        return DaemonStory(name, tensors, jobs)

    return [
        story("submit", lambda p: {"once": p.script("once", ONCE)}),
        story("retry", lambda p: {"retried": p.script("retried", FAILS_ONCE)}),
        story("start after another", in_a_chain),
        story("hold and release", on_hold),
        story("array", several),
        story("array in slices", in_slices),
        story("retry of an array", retried),
        story("clean", removed),
        story("edit", edited),
        story("edit of an array's jobs", member_edited),
        story("cancel", lambda p: {"cancelled": p.script("cancelled", SLEEPS, "cancelled")}),
        DaemonStory("grow", tensors, growing, lambda path: Place(path, tensors, GROWS_AT_ONCE)),
        DaemonStory("make room", tensors, making_room, lambda path: Place(path, tensors, PREEMPTS)),
        story("pause", pausing),
        story("save and resume", lambda p: {"t": p.training("t", 3, env={"CRASH": "2"})}),
        story(
            "time limit",
            lambda p: {"t": p.training("t", 9, "stopped", {"WAIT": "1"}, time_limit=1)},
        ),
    ]

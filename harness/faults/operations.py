"""Random operations on a daemon and its jobs. The same seed gives the same operations.

No answer of a daemon affects the random choice, so the seed is enough to repeat the operations. How
they overlap depends on the speed of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from harness.faults.daemons import Place, Wanted
from zerotools.jobs.states import (
    ACTIVE,
    HELD,
    ON_HOLD,
    PAUSED,
    PAUSING,
    QUEUED,
    RUNNING,
    STATES,
    TERMINAL,
    WAITING,
    WAITING_RETRY,
)

OPEN = frozenset(STATES) - TERMINAL
CPU_RANKS = 4
CONFIG = (
    f"[limits]\ncpu_ranks = {CPU_RANKS}\n[retry]\nfirst_seconds = 0.05\nmost_seconds = 0.5\n"
    "[stop]\ngrace_seconds = 2\n[preemption]\nenabled = true\nafter_seconds = 0\n"
    "[elastic]\nafter_seconds = 0\ngain = 1\nchange_seconds = 1\n"
)

STAMP = 'stamp() { echo "$ZEROTOOLS_RUN_DIR $(date +%s.%N) $RANK $1" >> "$STAMPS"; }\n'
END = "end"
"""The last stamp of a program that has done all of its work."""

STEPS = "stamp begin; for i in 1 2 3 4 5 6 7 8; do sleep 0.1; stamp step; done; stamp end"
SAVES = (
    "trap 'stamp saved; exit 0' TERM\nstamp begin\n"
    "i=0; while [ $i -lt 8 ]; do sleep 0.15 & wait $!; i=$((i + 1)); done"
)
SCRIPTS: dict[str, list[str]] = {
    "once": ["sh", "-c", STAMP + "stamp begin; sleep 0.4; stamp end"],
    "steps in bash": ["bash", "-c", STAMP + STEPS],
    "steps in sh": ["sh", "-ec", STAMP + STEPS],
    "steps in a subshell": ["bash", "-c", STAMP + f"( {STEPS} )"],
    "in the background": ["bash", "-c", STAMP + f"f() {{ {STEPS}; }}; f & wait"],
    "saves, and then more": ["bash", "-c", STAMP + '(sh -c "$SAVES") && stamp more; stamp end'],
    "into a pipe": ["bash", "-c", STAMP + f"{{ {STEPS}; }} | tee -a /dev/null"],
    "ignores SIGTERM": ["sh", "-c", "trap '' TERM\n" + STAMP + "stamp begin; sleep 3; stamp end"],
    "fails at first": [
        *("sh", "-c"),
        STAMP + "stamp begin; case $ZEROTOOLS_RUN_DIR in *-1) exit 5;; esac; sleep 0.3; stamp end",
    ],
}
"""Programs of jobs. A program writes a stamp for each of its commands."""

REQUESTS = {
    "cancel": 8,
    "hold": 10,
    "release": 8,
    "pause": 3,
    "unpause": 2,
    "resume": 2,
    "retry": 5,
    "priority": 4,
    "edit": 4,
    "array": 4,
    "clean": 4,
    "drain": 1,
    "undrain": 2,
    "look": 2,
}
"""The requests of clients. A request with a larger number is chosen more often."""
MEANT = {
    "cancel": {RUNNING},
    "hold": {RUNNING, QUEUED, WAITING, WAITING_RETRY},
    "release": {ON_HOLD, PAUSED, PAUSING, HELD},
    "pause": {RUNNING},
    "unpause": {PAUSED, PAUSING},
    "resume": {HELD, *TERMINAL},
    "retry": TERMINAL,
    "priority": OPEN,
    "edit": OPEN - ACTIVE,
    "clean": TERMINAL,
}
"""For each request, the suitable states: usually it goes to a job in one of these states."""
KILLS = {
    "SIGKILL of the daemon": 3,
    "SIGTERM of the daemon": 1,
    "SIGKILL of a supervisor": 3,
    "SIGKILL of a keeper": 2,
    "SIGKILL of a supervisor and its keeper": 2,
    "SIGKILL of a rank": 3,
    "SIGKILL of daemon and supervisor": 1,
    "SIGSTOP of a supervisor": 1,
    "SIGSTOP of a rank": 1,
}
SUBMIT, ARRAY, AGAIN = "submit", "submit of an array", "submit once more"
SUBMITS = {SUBMIT: 15, ARRAY: 3, AGAIN: 3}
ARRAY_WISHES = ("cancel", "hold", "release", "pause", "unpause", "priority", "retry")
MOST_TOGETHER = 3
"""Up to this number of operations begin within a few milliseconds."""
LONGEST_DELAY = 0.25


@dataclass(frozen=True)
class Operation:
    """One operation, which begins `delay` seconds after the begin of its step.

    `job` selects the job: 0 is the newest job in a suitable state (`MEANT`), 1 the second newest,
    and so on.
    """

    name: str
    delay: float
    job: int
    number: int
    """The number of the operation. A submitted job has this number in its name."""
    draw: float
    """A number from 0 to 1 that determines the other choices of the operation."""

    def __str__(self) -> str:
        return f"{self.number}: {self.name}, job {self.job}, +{self.delay * 1e3:.0f} ms"

    def one_of(self, values: Any, salt: int = 0) -> Any:
        """Return one of `values`; the choice is always the same for this operation and `salt`.

        With another `salt`, the choice is independent.
        """
        return Random(f"{self.number} {self.draw} {salt}").choice(list(values))


def steps(seed: int) -> Iterator[list[Operation]]:
    """Yield, for each step, the operations that begin together. The sequence is infinite."""
    random, number = Random(seed), 0
    weights = {**SUBMITS, **REQUESTS, **KILLS}
    while True:
        step, rest = [], random.choice((0.0, random.uniform(0, LONGEST_DELAY)))
        for _ in range(random.randint(1, MOST_TOGETHER)):
            number += 1
            (name,) = random.choices(list(weights), list(weights.values()))
            job = min(int(random.expovariate(0.3)), 20)
            delay = rest + random.uniform(0, 0.04)
            step.append(Operation(name, delay, job, number, random.random()))
        yield step


def job_of(place: Place, operation: Operation) -> Wanted:
    """Return the job that the operation submits, with its options.

    Its option `after` has only conditions. The caller adds the job to which they apply.
    """
    name = f"n{operation.number}"
    more: dict[str, Any] = {"max_restarts": 500, "retry": "always"}
    if operation.one_of(range(6), 1) == 0:
        more["time_limit"] = 1
    devices = [{}, {}, {"device": "cuda", "gpus": 1, "ranks": None}]
    devices.append({"device": "cuda", "gpus": 2, "ranks": None})
    devices.append({"device": "cuda", "gpus": 1, "ranks": None, "memory": {"per_gpu": "30GiB"}})
    more |= operation.one_of(devices, 2)
    if operation.one_of(range(5), 3) == 0:
        if operation.one_of((True, False), 4):
            more |= {"device": "cpu", "gpus": None, "ranks": {"min": 1, "max": 2}, "memory": {}}
        env = {"PACE": "0.15", "EVERY": "2"}
        wanted = place.training(name, operation.one_of((4, 9), 5), env=env, **more)
    else:
        script = {
            "command": SCRIPTS[operation.one_of(SCRIPTS, 6)],
            "directory": str(place.path),
            "launcher": "plain",
        }
        env = {"STAMPS": str(place.path / "stamps"), "SAVES": STAMP + SAVES}
        tree = {"name": name, "engine": "script", "device": "cpu", "ranks": 1, "env": env}
        wanted = Wanted({**tree, "script": script, **more}, "")
    terms: dict[str, Any] = {"priority": operation.one_of((0, 0, 0, 3, 7), 7)}
    kind = operation.one_of(("now", "now", "now", "hold", "begin", "after", "after"), 8)
    if kind == "hold":
        terms["hold"] = True
    if kind == "begin":
        terms["begin"] = 0.5
    if kind == "after":
        terms["after"] = [operation.one_of(("ok", "any", "any"), 9)]
    return Wanted(wanted.tree, "", terms)

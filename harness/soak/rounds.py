"""The jobs of a round, and the check that each job ended in the expected state."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from random import Random
from typing import Any

from harness.faults.daemons import Place, Wanted
from harness.faults.stories import FAILS_ONCE, ONCE, SLEEPS
from harness.invariants import broken, failed
from zerotools.jobs.chaos.chaos_report import Tally

RESTARTS: dict[str, Any] = {"max_restarts": 200, "retry": "always"}
"""Settings for restarts of the jobs of a round. A killed rank counts as a crash, and a round kills
many ranks.
"""
MOST_STEPS = 200


def jobs_of(place: Place, number: int, random: Random, *, gpus: bool) -> dict[str, Wanted]:
    """Return the jobs of the round `number`, keyed by name. They are of all kinds."""
    found: dict[str, Wanted] = {}
    for index in range(8):
        name = f"r{number}-train-{index}"
        steps, pace = random.randrange(40, MOST_STEPS), random.choice((0.1, 0.2))
        env = {"PACE": str(pace), "EVERY": str(random.choice((5, 10, 20)))}
        on_gpu: dict[str, Any] = {"device": "cuda", "gpus": random.choice((1, 1, 2)), "ranks": None}
        more = on_gpu if gpus and index % 2 else {}
        found[name] = place.training(name, steps, env=env, **RESTARTS, **more)
    for index in range(3):
        for kind, program, end in (
            ("once", ONCE, "succeeded"),
            ("retried", FAILS_ONCE, "succeeded"),
            ("cancelled", SLEEPS, "cancelled"),
        ):
            name = f"r{number}-{kind}-{index}"
            found[name] = place.script(name, program, end, **RESTARTS)
    limited = f"r{number}-limited"
    env = {"PACE": "0.1", "EVERY": "5"}
    found[limited] = place.training(limited, 1000, "stopped", env, time_limit=4, **RESTARTS)
    return found


def pace_of(wanted: Wanted) -> float | None:
    """Return the seconds that a step of the job takes; None for a job that does not train."""
    pace = wanted.tree["env"].get("PACE")
    return None if pace is None else float(pace)


def count(place: Place, jobs: Mapping[str, Wanted], tally: Tally) -> None:
    """Add the finished jobs of a round to `tally`."""
    with closing(sqlite3.connect(place.state / "zerotools.db")) as database:
        times = {
            n: e - s for n, s, e in database.execute("SELECT name, started, ended FROM job") if s
        }
    for name, wanted in jobs.items():
        tally.jobs[name.split("-")[1]] += 1
        if (pace := pace_of(wanted)) is not None:
            tally.add(place.lines(name), pace)
            tally.idle += place.idle(name)
            tally.seconds += times.get(name, 0.0)


def wrong(place: Place, jobs: Mapping[str, Wanted]) -> Iterator[str]:
    """Yield a sentence for each error, after the last job of the round has ended."""
    yield from broken(place.state, [place.acknowledged[name] for name in jobs])
    yield from place.wrong(jobs, ranks_die=True)
    for job, why in failed(place.state).items():
        yield f"job {job} failed: {why}"

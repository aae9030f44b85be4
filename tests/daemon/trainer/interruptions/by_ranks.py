"""A job as the supervisor runs it, ended in each of three ways, without a daemon: its ranks are
forked from a process that has imported torch, which takes a tenth of the time."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.launching import Attempt, start
from tests.daemon.trainer.interruptions.compared import HOWS, Interrupted, begin, last_step
from zerotoolsd.trainer.rank.rank_errors import EXIT_STOPPED

STOP = "stop"


def interrupt(tree: Mapping[str, Any], place: Path, chance: random.Random) -> Interrupted:
    """Run `tree`, ended once in each way, in any order: by the file that asks for a stop, SIGTERM
    to one rank, SIGKILL to one rank; after a random step and up to 5 more events."""
    found, run_dir = begin(tree, place), place / "run"
    tree = {**tree, "output_dir": str(found.output)}
    part = (found.steps - 10) // len(HOWS)
    for number, how in enumerate(chance.sample(HOWS, len(HOWS))):
        until = chance.randint(number * part + 2, number * part + part)
        attempt = start(run_dir, tree)
        began = last_step(found.output) if number else 0
        attempt.mailbox.wait_for_count("step", max(1, until - began), more=chance.randint(0, 5))
        _end(attempt, how, chance)
        statuses = attempt.finish()
        assert any(statuses), f"{how} after step {until} came too late: {attempt.log()[-200:]}"
        if how != "SIGKILL":
            assert set(statuses) == {EXIT_STOPPED}, attempt.log()
        (run_dir / STOP).unlink(missing_ok=True)
        found.compare()
        found.ends.append(f"{_went_on(attempt)}{how} after {last_step(found.output)}")
    attempt = start(run_dir, tree)
    assert not any(attempt.finish()), attempt.log()
    found.ends.append(f"{_went_on(attempt)}end")
    found.compare_ends()
    return found


def _end(attempt: Attempt, how: str, chance: random.Random) -> None:
    if how == "cancel":
        (attempt.run_dir / STOP).write_text("cancel")
    else:
        rank = attempt.processes[chance.randrange(len(attempt.processes))]
        os.kill(rank.pid, signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL)


def _went_on(attempt: Attempt) -> str:
    resumed = attempt.events("resumed")
    return f"went on after {resumed[0]['step']}, " if resumed else ""

"""Runs jobs of all kinds under random faults, and checks the result after each round.

    python -m harness.soak [--minutes 30] [--seed N] [--every SECONDS]

In a round, 18 jobs run while daemon, supervisors, keepers and ranks are killed or stopped, the disk
fills, file descriptors run out and NVML fails. Then the faults stop, and all jobs must end.
`harness.invariants` checks the result. The next round begins with the same queue.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

from harness.faults.daemons import Place, Wanted, make_tensors
from harness.forked import close_servers
from harness.left_groups import remove_groups
from harness.soak import rounds
from harness.soak.trouble import Machine, nvml_library
from zerotools.jobs.chaos.chaos_report import Tally

CONFIG = (
    "[limits]\ncpu_ranks = 4\n[retry]\nfirst_seconds = 0.1\nmost_seconds = 1.0\n"
    "[stop]\ngrace_seconds = 2\n"
)
TROUBLE_SECONDS = 60.0
END_SECONDS = 120.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 1 if an invariant was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=2.0, help="mean seconds between two faults")
    options = parser.parse_args(arguments)
    memory = Path("/dev/shm")
    try:
        with tempfile.TemporaryDirectory(
            prefix="zerotools-", dir=memory if memory.is_dir() else None
        ) as directory:
            try:
                return soak(options, Path(directory))
            finally:
                remove_groups(Path(directory))
    finally:
        close_servers()


def soak(options: argparse.Namespace, directory: Path) -> int:
    """Run rounds until the time is over. Return the exit status."""
    place = Place(directory / "place", make_tensors(directory), CONFIG)
    library = nvml_library(directory)
    machine = Machine(place, options.seed, library)
    tally, breaks, began, number = Tally(), list[str](), time.monotonic(), 0
    try:
        while time.monotonic() - began < options.minutes * 60:
            number += 1
            found = one_round(
                place, machine, number, options.every, tally, gpus=library is not None
            )
            breaks += [f"round {number}: {sentence}" for sentence in found]
            for sentence in found:
                print(f"round {number}: {sentence}", file=sys.stderr, flush=True)
            print(f"round {number}: {summary(tally, machine)}", flush=True)
            if any("did not end" in sentence for sentence in found):
                print(place.log, file=sys.stderr)
                break
    finally:
        machine.close()
    print("\n".join(f"{count:5} {name}" for name, count in sorted(machine.done.items())))
    minutes = (time.monotonic() - began) / 60
    print(f"{minutes:.1f} minutes, {number} rounds, seed {options.seed}; {summary(tally, machine)}")
    print(f"{len(breaks)} invariant breaks")
    return 1 if breaks else 0


def one_round(
    place: Place, machine: Machine, number: int, every: float, tally: Tally, *, gpus: bool
) -> list[str]:
    """Run the round `number`, and return the errors."""
    jobs = rounds.jobs_of(place, number, machine.random, gpus=gpus)
    machine.calm.clear()
    trouble = threading.Thread(target=machine.make_trouble, args=(every,))
    trouble.start()
    calm = threading.Timer(TROUBLE_SECONDS, machine.calm.set)
    calm.start()
    said = place.drive(jobs, machine.keep_up, TROUBLE_SECONDS + END_SECONDS)
    calm.cancel()
    machine.calm.set()
    trouble.join()
    machine.keep_up()
    if said is None:
        said = place.drive(jobs, machine.keep_up, END_SECONDS)
    found = [] if said is None else [said]
    found += rounds.wrong(place, jobs)
    if said is None:
        rounds.count(place, jobs, tally)
        remove(place, jobs)
    return found


def remove(place: Place, jobs: dict[str, Wanted]) -> None:
    """Remove the jobs of a round with their files, because the disk is small."""
    ids = [place.acknowledged[name] for name in jobs]
    place.client.clean({"jobs": ids, "outputs": True})
    for name in jobs:
        (place.path / f"{name}.lines").unlink(missing_ok=True)
        (place.path / f"{name}.lines.once").unlink(missing_ok=True)


def summary(tally: Tally, machine: Machine) -> str:
    """Return a line with the numbers of faults and jobs so far."""
    return (
        f"{sum(machine.done.values())} faults, {sum(tally.jobs.values())} jobs, "
        f"{machine.restarts} daemons started again; {tally.steps_kept} of {tally.steps_run} steps "
        f"kept ({tally.kept:.1%}) in {tally.attempts} attempts of training "
        f"({tally.idle} of them had nothing left to do); effective training "
        f"time {tally.effective:.1%}"
    )


if __name__ == "__main__":
    sys.exit(main())

"""The options of a fault-injection test, and their limits."""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadRequest

LEAST_MINUTES, MOST_MINUTES = 0.1, 120
LEAST_EVERY, MOST_EVERY = 0.1, 600
MOST_JOBS = 64
MOST_SEED = 2**32 - 1
LEAST_ROOM = 64 << 20
END_SECONDS = 120.0
"""The time limit in seconds for the jobs to end after the last fault."""
TOY_PROGRAM = Path(__file__).with_name("toy_program.py")


@dataclass(frozen=True, kw_only=True)
class ChaosOptions:
    """The options of a fault-injection test.

    `every` is the average number of seconds between two faults. `jobs` is the number of jobs that
    run at a time, and `program` is the program that these jobs run. `directory` is the parent of
    the test's directory.
    """

    minutes: float = 2.0
    seed: int
    every: float = 3.0
    jobs: int = 4
    directory: Path
    keep: bool = False
    end_seconds: float = END_SECONDS
    program: Path = TOY_PROGRAM

    @property
    def trouble_seconds(self) -> float:
        """The time in seconds during which faults are injected."""
        return 60.0 * self.minutes


def make_request(
    *,
    minutes: float,
    seed: int | None,
    every: float,
    jobs: int,
    directory: Path | None,
    keep: bool,
) -> ChaosOptions:
    """Check the options of a fault-injection test, and return them. Raises BadRequest."""
    _check("--minutes", minutes, LEAST_MINUTES, MOST_MINUTES)
    _check("--every", every, LEAST_EVERY, MOST_EVERY)
    if every > 60 * minutes:
        raise BadRequest(
            f"--every {every}: is longer than the whole test (--minutes {minutes} = "
            f"{60 * minutes:g} s), so the test may inject no fault; choose a shorter interval"
        )
    _check("--jobs", jobs, 1, MOST_JOBS)
    if seed is None:
        seed = random.SystemRandom().randrange(10_000)
    _check("--seed", seed, 0, MOST_SEED)
    place = Path(tempfile.gettempdir()) if directory is None else directory.absolute()
    if not place.is_dir():
        raise BadRequest(f"--directory {place}: is not a directory; make it, or name another one")
    check_free_space(place, shutil.disk_usage(place).free)
    return ChaosOptions(
        minutes=minutes, seed=seed, every=every, jobs=jobs, directory=place, keep=keep
    )


def _check(option: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # also nan
        raise BadRequest(f"{option} {value}: must be between {least} and {most}")


def check_free_space(place: Path, free: int) -> None:
    """Raise BadRequest if the files of the test could fill the disk of the directory `place`,
    which has `free` bytes of free space.
    """
    if free < LEAST_ROOM:
        raise BadRequest(
            f"--directory {place}: {free >> 20} MiB are free there, but zerotools chaos needs "
            f"{LEAST_ROOM >> 20} MiB; free some space, or name another directory"
        )

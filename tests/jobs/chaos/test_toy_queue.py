"""The jobs of a drill, as they are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import DaemonError
from zerotools.jobs.chaos.chaos_options import ChaosOptions
from zerotools.jobs.chaos.toy_queue import LONGEST, ToyJob, ToyQueue
from zerotools.jobs.client.daemon_client import DaemonClient


def queue_in(place: Path, **changes: object) -> ToyQueue:
    place.mkdir()
    request = ChaosOptions(**{"seed": 3, "directory": place, **changes})
    return ToyQueue(place, DaemonClient(place / "no.sock"), request)


def filled(queue: ToyQueue) -> list[tuple[str, int, float, int]]:
    with pytest.raises(DaemonError):
        queue.fill()
    return [(job.name, job.steps, job.pace, job.every) for job in queue.jobs]


def test_a_seed_gives_the_same_jobs(tmp_path: Path) -> None:
    first, second = (filled(queue_in(tmp_path / name)) for name in ("a", "b"))
    assert first == second
    assert first != filled(queue_in(tmp_path / "c", seed=4))
    assert all(LONGEST / 2 - 0.1 <= steps * pace <= LONGEST + 0.1 for _, steps, pace, _ in first)


def test_jobs_that_are_not_acknowledged_are_told(tmp_path: Path) -> None:
    queue = queue_in(tmp_path / "a", jobs=2)
    filled(queue)
    assert queue.states_of_live() == "toy-1 is not acknowledged; toy-2 is not acknowledged"
    assert queue.live() == []


def test_the_seconds_of_a_job_are_those_from_its_first_start_to_its_end(tmp_path: Path) -> None:
    job = ToyJob("toy-1", 3, 0.1, 5, tmp_path / "notes")
    assert (job.is_over, job.seconds, job.lines()) == (False, 0.0, [])
    job.view = {"started": 10.0, "ended": 12.5}
    assert (job.is_over, job.seconds) == (True, 2.5)

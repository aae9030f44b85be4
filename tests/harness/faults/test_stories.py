"""A short part of `scripts/faults`, the same each time: real daemons that die at named points."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.faults.copies import Template, pruning, run_all
from harness.faults.daemons import Place
from harness.faults.stories import DaemonStory, daemon_stories
from harness.faults.tracing import CrashPoint
from zerotoolsd.attempts import crash_points

POINTS = [
    ("retry", crash_points.LAUNCHING_COMMITTED),
    ("cancel", crash_points.CANCEL_COMMITTED),
    ("save and resume", crash_points.END_SEEN),
    ("grow", crash_points.YIELD_COMMITTED),
    *(
        pytest.param(*each, marks=pytest.mark.full)
        for each in (
            ("make room", crash_points.YIELD_COMMITTED),
            ("pause", crash_points.YIELD_COMMITTED),
            ("time limit", crash_points.END_SEEN),
        )
    ),
]
"""Each kind of point once; `full` has more of the stories in which a daemon comes to one."""


@pytest.mark.parametrize(("name", "point"), POINTS)
def test_nothing_is_lost_or_doubled(tmp_path: Path, tensors: Path, name: str, point: str) -> None:
    (story,) = (each for each in daemon_stories(tensors) if each.name == name)
    found = story.run_to(tmp_path / "point", CrashPoint(point))
    assert found.wrong == []
    assert found.hit


@pytest.mark.dear(50, "it ends the fork server, whose ranks of other tests count here")
def test_a_removal_that_was_begun_is_finished(tmp_path: Path, tensors: Path) -> None:
    trained = Place(tmp_path / "trained", tensors)
    run_all(trained, {"t": trained.training("t", 2)})
    story = DaemonStory("prune", tensors, pruning, Template(trained).copied)
    found = story.run_to(tmp_path / "point", CrashPoint(crash_points.FILES_REMOVED))
    assert (found.wrong, found.hit) == ([], True)

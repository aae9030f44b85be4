"""A short part of `scripts/faults`, the same each time: real daemons that die at named points."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.faults.copies import Template, pruning, run_all
from harness.faults.daemons import Place
from harness.faults.stories import DaemonStory, daemon_stories
from harness.faults.tracing import CrashPoint
from zerotoolsd import crashpoints

POINTS = [
    ("retry", crashpoints.LAUNCHING_COMMITTED),
    ("cancel", crashpoints.CANCEL_COMMITTED),
    ("save and resume", crashpoints.END_SEEN),
    ("grow", crashpoints.YIELD_COMMITTED),
    ("make room", crashpoints.YIELD_COMMITTED),
    ("pause", crashpoints.YIELD_COMMITTED),
    ("time limit", crashpoints.END_SEEN),
]


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
    found = story.run_to(tmp_path / "point", CrashPoint(crashpoints.FILES_REMOVED))
    assert (found.wrong, found.hit) == ([], True)

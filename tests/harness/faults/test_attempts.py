"""A supervisor, its keeper and a rank are killed at a few calls, where there is an strace."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.faults import tracing
from harness.faults.attempts import BOTH, KEEPER, SUPERVISOR, AttemptStory, SaveStory
from harness.faults.tracing import Injection

pytestmark = pytest.mark.skipif(
    not tracing.is_installed(), reason="strace is not installed: 5 kill points are not run"
)
LAST = Injection("rename", 3)
"""The record's own."""


@pytest.mark.parametrize("victim", [SUPERVISOR, BOTH])
def test_a_rank_s_end_is_known_though_its_record_was_not_written(
    tmp_path: Path, tensors: Path, victim: str
) -> None:
    found = AttemptStory(victim).run(tmp_path / "point", LAST)
    assert (found.wrong, found.hit, found.unseen) == ([], True, 0)


def test_a_keeper_that_is_killed_leaves_the_supervisor_at_work(
    tmp_path: Path, tensors: Path
) -> None:
    story = AttemptStory(KEEPER, closes=True, alone=True)
    found = story.run(tmp_path / "point", Injection("rename", 1))
    assert (found.wrong, found.hit) == ([], True)


@pytest.mark.parametrize(
    "injection", [Injection("rename", 4), Injection("fsync", 12, "ENOSPC")], ids=str
)
def test_only_whole_checkpoints_have_names(
    tmp_path: Path, tensors: Path, injection: Injection
) -> None:
    found = SaveStory(tensors).run(tmp_path / "point", injection)
    assert (found.wrong, found.hit) == ([], True)

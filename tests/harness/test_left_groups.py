"""Groups of attempts that were killed whole are removed, and no others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.left_groups import remove_groups
from harness.started import Started
from tests.daemon.made_attempts import make_attempt, own_token
from zerotoolsd.supervisor.attempt_cgroup import AttemptGroup, NotDelegated, group_name, make_group


def left_by(run: Path, number: int) -> AttemptGroup:
    """The group of an attempt in `run`."""
    make_attempt(run, "", attempt=number)
    try:
        return make_group(group_name(1, number, own_token()), {}, own=())
    except (NotDelegated, OSError) as error:
        pytest.skip(f"no control group may be made here: {error}")


def test_those_of_the_attempts_in_a_directory_go_once_they_are_empty(tmp_path: Path) -> None:
    ours, elsewhere = tmp_path / "ours", tmp_path / "elsewhere"
    empty, used = left_by(ours / "a" / "run", 811), left_by(ours / "b" / "run", 812)
    strange = left_by(elsewhere / "run", 813)
    (ours / "garbled").mkdir()
    (ours / "garbled" / "attempt.json").write_text('{"token": 7}')
    inside = Started(["cat"], stdin=subprocess.PIPE)
    Path(used.procs_path).write_text(str(inside.pid))
    assert remove_groups(ours) == [empty.path]
    assert [group.path.is_dir() for group in (empty, used, strange)] == [False, True, True]
    inside.end()
    used.remove()
    assert remove_groups(tmp_path) == [strange.path]
    assert not used.path.exists()

"""One daemon for one state directory, and nobody else who can write there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest, DaemonRefused
from zerotoolsd.state_directory import LOCK, lock_state_dir, refuse_open_to_others

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="is of daemons of root")


@pytest.mark.parametrize("deleted", [False, True])
def test_a_second_daemon_is_refused_also_without_the_lock_file(
    tmp_path: Path, deleted: bool
) -> None:
    state = tmp_path / "state"
    held = lock_state_dir(state)
    if deleted:
        (state / LOCK).unlink()
    with pytest.raises(DaemonRefused, match="another zerotoolsd, pid "):
        lock_state_dir(state)
    for each in held:
        os.close(each)
    for each in lock_state_dir(state):
        os.close(each)


@AS_ROOT
@pytest.mark.parametrize(
    ("mode", "owner", "why"),
    [(0o777, 0, "has mode 0777"), (0o770, 0, "has mode 0770"), (0o700, 1234, "belongs to uid")],
)
def test_root_refuses_a_directory_that_others_can_change(
    tmp_path: Path, mode: int, owner: int, why: str
) -> None:
    for place in (tmp_path / "state", tmp_path / "parent" / "state"):
        place.mkdir(parents=True)
        place.chmod(0o700)
        changed = tmp_path / place.relative_to(tmp_path).parts[0]
        changed.chmod(mode)
        os.chown(changed, owner, -1)
        with pytest.raises(BadRequest, match=why) as refused:
            lock_state_dir(place)
        assert f"chown root {changed} && chmod go-w {changed}" in str(refused.value)
        assert not (place / LOCK).exists()
        refuse_open_to_others(place, 1000)  # who is not root takes what he is given


@AS_ROOT
def test_a_sticky_parent_will_do(tmp_path: Path) -> None:
    (tmp_path / "parent").mkdir()
    (tmp_path / "parent").chmod(0o1777)
    refuse_open_to_others(tmp_path / "parent" / "state", 0)

from __future__ import annotations

import pytest

from zerotools.io.files.source_stamps import lasting_inodes, written_apart

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:50 / /mnt/far rw shared:3 - fuse.sshfs me@far:/data rw,user_id=0
41 22 0:51 / /mnt/nfs rw - nfs4 server:/data rw
42 22 0:52 / /mnt/fuse\\040ext4 rw - cifs //server/data rw""".splitlines()


def test_inode_numbers_count_where_a_file_system_keeps_them() -> None:
    assert lasting_inodes(MOUNTS, "8:1")
    assert lasting_inodes(MOUNTS, "0:51")
    assert lasting_inodes(MOUNTS, "0:99")  # btrfs: not the number that mountinfo has
    assert not lasting_inodes(MOUNTS, "0:50")
    assert not lasting_inodes(MOUNTS, "0:52")


HOUR = 3600.0


def _times(*hours: float) -> dict[str, float]:
    return {f"rank_{n}": 1e9 + HOUR * hour for n, hour in enumerate(hours)}


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        ((0, 0.1, -3, 0.1), "rank_2: written 3.0 hours before the other files"),
        ((0, 0.1, 96), "rank_2: written 4.0 days after the other files"),
        ((0, 5), "rank_0: written 5.0 hours before the other files"),
        ((0, 0, 0, 0, 9, 9), "rank_4, rank_5: written 9.0 hours after"),
    ],
)
def test_files_that_were_not_written_with_the_others(hours: tuple[float, ...], said: str) -> None:
    found = written_apart(_times(*hours))
    assert found is not None
    assert found.sentence().startswith(said)


@pytest.mark.parametrize("hours", [(0,), (0, 0.5), (0, 0.4, 0.8, 1.9), (), (0, 0.2, 0.4, 4)])
def test_a_slow_save_is_one(hours: tuple[float, ...]) -> None:
    assert written_apart(_times(*hours)) is None


def test_times_that_are_not_known_say_nothing() -> None:
    assert written_apart({"a": 0.0, "b": 1e9}) is None

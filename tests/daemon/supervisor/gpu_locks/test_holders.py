"""Who holds a lock, by what /proc/locks says."""

from __future__ import annotations

import os
from pathlib import Path

from zerotoolsd.supervisor.gpu_locks.holders import holders_of, named

LOCKS = """1: FLOCK  ADVISORY  WRITE 71 00:1a:33 0 EOF
1: -> FLOCK  ADVISORY  WRITE 72 00:1a:33 0 EOF
2: FLOCK  ADVISORY  READ  73 00:1a:33 0 EOF
3: FLOCK  ADVISORY  READ  74 00:1a:34 0 EOF
4: POSIX  ADVISORY  WRITE 74 00:1a:33 0 EOF
5: FLOCK  ADVISORY  READ  75 00:1a:33 0 EOF
6: FLOCK  ADVISORY  READ  0 00:1a:33 0 EOF
"""


def machine(proc: Path, **uids: int) -> os.stat_result:
    """`proc` with these processes, and the file of inode 33 of device 0:1a."""
    (proc / "locks").write_text(LOCKS)
    for name, uid in uids.items():
        (proc / name.removeprefix("p")).mkdir()
        (proc / name.removeprefix("p") / "status").write_text(f"Name:\tx\nUid:\t{uid}\t0\t0\t0\n")
    return os.stat_result((0o100644, 33, os.makedev(0, 0x1A), 1, 8, 8, 0, 0, 0, 0))


def test_those_that_live_are_named_by_their_real_uid(tmp_path: Path) -> None:
    found = machine(tmp_path, p71=1002, p72=5, p73=1002, p74=6)
    assert holders_of(found, tmp_path) == {71: 1002, 73: 1002}
    assert named(found, tmp_path) == "pids 71, 73 of uid 1002"


def test_one_whose_taker_is_gone_is_said_to_be_unseen(tmp_path: Path) -> None:
    found = machine(tmp_path)
    assert named(found, tmp_path).startswith("a process that cannot be seen from here")
    assert holders_of(found, tmp_path / "nowhere") == {}

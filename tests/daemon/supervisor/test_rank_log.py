"""What the supervisor keeps of a rank's output."""

from __future__ import annotations

import os
from pathlib import Path

from zerotoolsd.supervisor.exit_record.first_failure import error_line
from zerotoolsd.supervisor.rank_log import TAIL_BYTES, RankLog


def test_the_error_is_found_in_a_line_that_is_longer_than_the_tail(tmp_path: Path) -> None:
    log = RankLog(tmp_path / "rank-0.log", limit=100)
    os.set_blocking(log.write_fd, False)
    for part in (b"step 1\nRuntimeError: too long ", *[b"y" * 40_000] * 4, b"\nbye\n"):
        os.write(log.write_fd, part)
        log.drain()
    assert str(error_line(log.tail())).startswith("RuntimeError: too long yyy")
    os.write(log.write_fd, b"short\n" * 10_000)
    log.drain()
    os.write(log.write_fd, b"short\n" * 10_000)
    log.drain()
    assert len(log.tail()) <= TAIL_BYTES + len("short\n")
    log.spawned()
    log.close()

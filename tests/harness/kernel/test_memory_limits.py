"""The kernel's OOM killer, provoked inside a limit of the test's own."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from harness.kernel.memory_limits import NoLimit, limited

MIB = 1 << 20


def test_the_kernel_ends_what_takes_more_and_counts_it(tmp_path: Path) -> None:
    try:
        with limited(128 * MIB, tmp_path) as group:
            process = group.start()
            assert process.take(16 * MIB)
            before = group.read()
            assert before.limit_bytes == 128 * MIB
            assert 64 * MIB < (before.left_bytes or 0) < 112 * MIB
            assert any(not process.take(16 * MIB) for _ in range(20))
            assert process.status() == -signal.SIGKILL
            after = group.read()
            assert after.ooms == (before.ooms or 0) + 1
            assert (after.reclaims or 0) > (before.reclaims or 0)
    except NoLimit as why:
        pytest.skip(str(why))


def test_what_stays_below_the_limit_ends_by_itself(tmp_path: Path) -> None:
    try:
        with limited(128 * MIB, tmp_path) as group:
            process = group.start()
            assert all(process.take(16 * MIB) for _ in range(3))
            assert process.status() == 0
            assert group.read().ooms == 0
    except NoLimit as why:
        pytest.skip(str(why))

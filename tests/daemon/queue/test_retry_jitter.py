"""Jobs that ended together do not start together, and the same one waits the same."""

from __future__ import annotations

from zerotoolsd.queue.retry_jitter import SPREAD, part_of_wait


def test_parts_lie_apart_and_are_always_the_same() -> None:
    parts = [part_of_wait(job, 1) for job in range(200)]
    assert all(1 - SPREAD <= part <= 1 for part in parts)
    assert len(set(parts)) == 200
    assert max(parts) - min(parts) > 0.9 * SPREAD
    assert part_of_wait(7, 1) == part_of_wait(7, 1) != part_of_wait(7, 2)

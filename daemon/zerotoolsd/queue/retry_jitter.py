"""Spreads the waits of jobs that ended together, so that they do not start together."""

from __future__ import annotations

import hashlib

SPREAD = 0.2
"""The largest part of a wait that is left out."""


def part_of_wait(job_id: int, attempt: int) -> float:
    """Return the fraction of its wait that a job uses after this attempt, from 1 - SPREAD to 1.

    It is always the same for the same two numbers, also after a restart of the daemon.
    """
    digest = hashlib.sha256(f"{job_id}/{attempt}".encode()).digest()
    return 1.0 - SPREAD * int.from_bytes(digest[:8], "big") / 2**64

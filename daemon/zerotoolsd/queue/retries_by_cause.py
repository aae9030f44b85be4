"""The causes that end attempts, and the rule by which an attempt is retried after each cause.

`docs/explanation/retries.md` has the same table for users; a test compares the two tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

USER_ERROR = "user_error"
BAD_CHECKPOINT = "bad_checkpoint"
RANK_DIED = "rank_died"
KILLED = "killed"
HANG = "hang"
GPU_MEMORY = "gpu_memory"
HOST_MEMORY = "host_memory"
GPU_PROGRAM = "gpu_program"
GPU_FAULT = "gpu_fault"
REBOOT = "reboot"
LOST = "lost"
MACHINE = "machine"


@dataclass(frozen=True, kw_only=True)
class CauseRule:
    """The retry rule of one cause.

    Attributes:
        retries: the largest number of restarts in a row without progress. None: as many as the
            job's `max_restarts` allows; any number if `counts` is False.
        counts: whether each restart counts against `max_restarts`.
        first: the first wait is `retry.first_seconds` of the daemon's configuration, multiplied by
            this number.
        factor: each later wait is the wait before it, multiplied by this number (None:
            `retry.factor`).
        fences: whether the faulty GPU gets no jobs for a while.
        words: the end of a sentence that begins "ended by".
    """

    words: str
    retries: int | None = None
    counts: bool = True
    first: float = 1.0
    factor: float | None = None
    fences: bool = False


USUAL = CauseRule(words="a crash")

RULES: Mapping[str, CauseRule] = MappingProxyType(
    {
        USER_ERROR: CauseRule(words="a mistake in the job or its program", retries=0),
        BAD_CHECKPOINT: CauseRule(words="a checkpoint that cannot be used", retries=0),
        RANK_DIED: CauseRule(words="a rank that failed"),
        KILLED: CauseRule(words="a signal from outside, or SIGKILL after its grace period"),
        HANG: CauseRule(words="ranks without progress", retries=2),
        GPU_MEMORY: CauseRule(words="GPU memory that ran out", retries=1, first=10),
        HOST_MEMORY: CauseRule(words="host memory that ran out", retries=1, first=30),
        GPU_PROGRAM: CauseRule(words="an XID that a program causes", retries=1),
        GPU_FAULT: CauseRule(
            words="an XID of a broken GPU", retries=3, counts=False, first=5, fences=True
        ),
        REBOOT: CauseRule(words="a restart of the machine", counts=False, first=5, factor=1),
        LOST: CauseRule(words="the loss of its supervisor"),
        MACHINE: CauseRule(words="a machine that was not ready", counts=False),
    }
)
"""The retry rule of each cause. For the cause `machine`, the longest wait is one minute."""


def rule_of(cause: str | None) -> CauseRule:
    """Return the retry rule of `cause`. An unknown cause has the rule of a crash."""
    return RULES.get(cause or "", USUAL)


SPREAD = 0.2
"""Largest fraction of a wait by which the wait can be shortened."""


def wait_factor(job_id: int, attempt: int) -> float:
    """Return the factor, from 1 - SPREAD to 1, for the wait of the job after this attempt.

    The factor differs between jobs, so that jobs that ended together do not start together. It
    depends only on `job_id` and `attempt`, so it stays the same after a restart of the daemon.
    """
    digest = hashlib.sha256(f"{job_id}/{attempt}".encode()).digest()
    return 1.0 - SPREAD * int.from_bytes(digest[:8], "big") / 2**64

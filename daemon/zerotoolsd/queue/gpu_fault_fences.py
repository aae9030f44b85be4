"""Fences of GPUs. After the driver reports a hardware fault of a GPU (an XID), no job gets the GPU
for a certain time, or until the machine boots again.

This module does no I/O; `store` keeps the fences.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from zerotools.sensors.snapshot import Snapshot
from zerotools.sensors.xids import GpuXid, describe, is_fault
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.rows import AttemptRow

XidsByGpu = Mapping[str, Sequence[GpuXid]]
"""The XIDs that the driver reported, keyed by the UUID of the GPU."""


@dataclass(frozen=True, kw_only=True)
class Fence:
    """A GPU that no job gets for a while.

    The fence ends at the time `until` (seconds since the epoch), or when the machine has booted
    again, so that its boot id is not `boot_id`. `why` is the reason in one sentence.
    """

    gpu_uuid: str
    since: float
    until: float
    boot_id: str | None
    job_id: int
    attempt: int
    why: str

    def is_up(self, now: Moment) -> bool:
        """Return whether no job may get the GPU at the time `now`."""
        rebooted = None not in (self.boot_id, now.boot_id) and self.boot_id != now.boot_id
        return not rebooted and now.time < self.until


def fences_of(attempt: AttemptRow, xids: XidsByGpu, now: float, seconds: float) -> Iterator[Fence]:
    """Yield a fence of `seconds` seconds for each GPU of `attempt` that had a hardware fault.

    `xids` has the errors (XIDs) that the driver reported for each GPU, keyed by UUID.
    """
    for uuid, found in xids.items():
        faults = [xid for xid in found if is_fault(xid.code)]
        if faults:
            yield Fence(
                gpu_uuid=uuid,
                since=now,
                until=now + seconds,
                boot_id=attempt.boot_id,
                job_id=attempt.job_id,
                attempt=attempt.number,
                why=f"the driver reported {codes_text(faults)}",
            )


def with_fences(snapshot: Snapshot, fences: Iterable[Fence], now: Moment) -> Snapshot:
    """Return a copy of the snapshot in which the `error` of each fenced GPU names the fence."""
    up = {fence.gpu_uuid: fence for fence in fences if fence.is_up(now)}
    if not up:
        return snapshot
    gpus = (
        replace(gpu, error=f"{gpu.error}; {_words(fence)}" if gpu.error else _words(fence))
        if (fence := up.get(gpu.uuid or "")) is not None
        else gpu
        for gpu in snapshot.gpus
    )
    return replace(snapshot, gpus=tuple(gpus))


def _words(fence: Fence) -> str:
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(fence.until))
    return (
        f"no job gets it until {until} or a restart of the machine, because {fence.why} in job "
        f"{fence.job_id}"
    )


def codes_text(xids: Sequence[GpuXid]) -> str:
    """Return the codes of `xids` with their names as text. Each code is named once."""
    return ", ".join(describe(code) for code in sorted({xid.code for xid in xids}))

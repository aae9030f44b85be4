"""GPUs that no job gets, because a job reported them as faulty."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from zerotools.sensors.snapshot import Snapshot
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.rows import Fence


def with_fences(snapshot: Snapshot, fences: Iterable[Fence], now: Moment) -> Snapshot:
    """Return the snapshot in which fenced GPUs have an `error` that names the fence."""
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
        f"it is fenced until {until} or a restart of the machine, because {fence.why} in job "
        f"{fence.job_id}"
    )

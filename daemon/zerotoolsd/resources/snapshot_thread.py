"""Takes snapshots of the machine for the event loop: in a thread, one at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from zerotools.sensors.excluded_and_preferred_gpus import GpuChoice
from zerotools.sensors.foreign_gpu_memory import is_in_first_pid_namespace, unaccounted_bytes
from zerotools.sensors.host_sensor import HostSensor
from zerotools.sensors.snapshot import Gpu, Host, Snapshot
from zerotools.sensors.xids import GpuXid

log = logging.getLogger(__name__)

LET_GO = "the queue is drained and nothing runs: the GPUs are not read, so that they can be reset"
PATIENCE_SECONDS = 3.0
"""Seconds that a caller waits for the GPUs' state; it usually takes a hundredth of a second."""


class SnapshotReader(Protocol):
    """A source of snapshots. `read` may block for some seconds."""

    def read(self) -> Snapshot:
        """Return the current state of the machine."""
        ...

    def close(self) -> None: ...


class SnapshotCache:
    """The newest snapshot of the machine. A new snapshot is taken if the newest one is older than
    the caller accepts.

    A caller waits no longer than it chooses, because the driver may not respond for minutes.
    Meanwhile the last known GPUs are returned, with an error that contains their age.
    """

    def __init__(
        self,
        source: SnapshotReader,
        read_host: Callable[[], Host] | None = None,
        clock: Callable[[], float] = time.monotonic,
        choice: GpuChoice | None = None,
    ) -> None:
        self._source = source
        self.choice = choice or GpuChoice()
        self._read_host = read_host or HostSensor().read
        self._clock = clock
        self._newest: Snapshot | None = None
        self._taken_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._asked: float | None = None
        """The time of the first request to the driver without an answer."""
        self._is_awaited = False
        self._is_noted = False
        self.lists_processes = is_in_first_pid_namespace()
        """Whether NVML lists processes on GPUs here. In a container it often lists none."""
        self.lets_go: Callable[[], bool] = lambda: False
        """Returns whether the GPUs must not be read, so that an administrator can reset them."""
        self.on_late_answer: Callable[[], None] = lambda: None
        """Called when the driver answers after the caller has stopped waiting."""

    async def snapshot(
        self, *, most_age_seconds: float = 1.0, patience_seconds: float | None = None
    ) -> Snapshot:
        """Return a snapshot that is at most `most_age_seconds` old.

        The method waits for the GPUs at most `patience_seconds` (default: PATIENCE_SECONDS). After
        that, the snapshot has the last known GPUs.
        """
        patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
        if self._reading is None and self._clock() - self._taken_at <= most_age_seconds:
            assert self._newest is not None
            return self._newest
        if self._reading is None:
            self._asked = self._clock() if self._asked is None else self._asked
            self._reading = asyncio.create_task(self._read())
        left = patience - (self._clock() - (self._asked or self._clock()))
        reading = self._reading
        await asyncio.wait((reading,), timeout=max(0.0, left))
        if not reading.done():
            return self._without_answer()
        reading.result()
        assert self._newest is not None
        return self._newest

    async def _read(self) -> None:
        try:
            if self.gpus and self.lets_go():  # read once, or a job for GPUs would be refused
                await asyncio.to_thread(self._source.close)
                found = replace(self._last_known(LET_GO), gpus_silent=False)
            else:
                found = self.choice.of(await asyncio.to_thread(self._source.read))
            self._note_unknown(found)
            self.lists_processes |= any(gpu.processes for gpu in found.gpus)
            self._taken_at = self._clock()
            if not found.gpus_silent:
                self._asked = None
            elif self._asked is not None:
                seconds = self._taken_at - self._asked
                found = replace(found, gpus_error=f"{_silence_text(seconds)} ({found.gpus_error})")
            self._newest = found
        finally:
            self._reading = None
        if self._is_awaited:
            self._is_awaited = False
            self.on_late_answer()

    def _note_unknown(self, found: Snapshot) -> None:
        """Log once which entries of the configuration match no GPU."""
        if self._is_noted or not found.gpus:
            return
        self._is_noted = True
        for entry in self.choice.unknown(found.gpus):
            log.warning("%s matches no GPU of this machine; see nvidia-smi -L", entry)

    def _without_answer(self) -> Snapshot:
        self._is_awaited = True
        now = self._clock()
        return self._last_known(_silence_text(now - (now if self._asked is None else self._asked)))

    def _last_known(self, error: str) -> Snapshot:
        now, before = self._clock(), self._newest
        age = None
        if before is not None and before.gpus_age_seconds is not None:
            age = before.gpus_age_seconds + now - self._taken_at
        return Snapshot(
            taken_at=time.time(),
            host=self._read_host(),
            gpus=() if before is None else before.gpus,
            gpus_error=error,
            gpus_age_seconds=age,
            gpus_silent=True,
        )

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of the newest snapshot; empty before the first one."""
        return () if self._newest is None else self._newest.gpus

    def xids_of(self, uuids: Sequence[str], since: float) -> dict[str, list[GpuXid]]:
        """Return the XIDs (driver errors) of these GPUs since the time `since` on CLOCK_MONOTONIC,
        from the newest snapshot.

        GPUs without XIDs are left out.
        """
        found = {
            gpu.uuid: [xid for xid in gpu.xids if xid.clock >= since]
            for gpu in self.gpus
            if gpu.uuid in uuids and gpu.uuid is not None
        }
        return {uuid: xids for uuid, xids in found.items() if xids}

    def unaccounted(self, uuids: Sequence[str]) -> dict[str, int]:
        """Return, for each of these GPUs, the bytes that no process held in the newest snapshot,
        keyed by UUID. GPUs for which this is unknown are left out.
        """
        gpus = () if self._newest is None else self._newest.gpus
        found = {gpu.uuid: unaccounted_bytes(gpu) for gpu in gpus if gpu.uuid in uuids}
        return {uuid: size for uuid, size in found.items() if uuid is not None and size is not None}

    def gpu_name(self, uuid: str) -> str:
        """Return the name of a GPU for messages: its last known index, or its UUID."""
        return next((f"GPU {gpu.index}" for gpu in self.gpus if gpu.uuid == uuid), uuid)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._source.close()


def _silence_text(seconds: float) -> str:
    return f"the NVIDIA driver has not answered for {seconds:.0f} s"

"""Jobs that use more of a GPU than they declared: reported once per attempt and GPU."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence

from zerotools.core.counts import bytes_of
from zerotools.sensors.snapshot import Snapshot
from zerotoolsd.config.config_tables import GpusConfig
from zerotoolsd.queue.rows import AttemptRow, Lease
from zerotoolsd.queue.store import Store
from zerotoolsd.resources.gpu_sharing.idle_gpus import IDLE, IdleGpus
from zerotoolsd.resources.gpu_sharing.measured_use import MeasuredUse, measure
from zerotoolsd.resources.machine_snapshot import SnapshotCache

LOOK_SECONDS = 10.0
BOOK_SECONDS = 60.0
"""Interval in seconds between bookings of GPU use; the end of an attempt is booked separately."""
OVER_DECLARED = "over_declared"
"""Kind of the event."""
GIB = 2**30

log = logging.getLogger(__name__)


class OverUse:
    """The leases that exceed their declaration and `context` bytes. `name` returns the name of a
    GPU for people."""

    def __init__(self, context: int, name: Callable[[str], str] = str) -> None:
        self._context = context
        self._name = name
        self._said: dict[tuple[int, int, str], str] = {}

    def look(self, leases: Sequence[Lease], use: MeasuredUse) -> list[tuple[Lease, str]]:
        """Return the leases that newly exceed it, with a sentence for each."""
        found = []
        leased = {(lease.job_id, lease.attempt, lease.gpu_uuid) for lease in leases}
        self._said = {key: said for key, said in self._said.items() if key in leased}
        for lease in leases:
            key = (lease.job_id, lease.attempt, lease.gpu_uuid)
            used = use.of_attempts.get(key[:2], {}).get(lease.gpu_uuid, 0)
            if lease.bytes is None or key in self._said or used <= lease.bytes + self._context:
                continue
            self._said[key] = (
                f"it uses {used / GIB:.1f} GiB of {self._name(lease.gpu_uuid)}, and declared "
                f"memory.per_gpu = {lease.bytes / GIB:.1f} GiB (and {self._context / GIB:.1f} "
                "for the CUDA context): other jobs there may run out of memory"
            )
            found.append((lease, self._said[key]))
        return found

    def why(self, job_id: int) -> str | None:
        """Return the sentence on a job."""
        said = [what for (job, _, _), what in self._said.items() if job == job_id]
        return "; ".join(said) or None


class SharedGpus:
    """The GPUs that several of our jobs share. `live` gives the attempts known to run. `over` is
    called with a lease that newly exceeds its declaration, `idle` with one of a newly idle job."""

    def __init__(
        self,
        *,
        store: Store,
        machine: SnapshotCache,
        config: GpusConfig,
        live: Callable[[], Sequence[tuple[AttemptRow, object]]],
        over: Callable[[Lease, str], None],
        idle: Callable[[Lease, str], None] = lambda lease, what: None,
    ) -> None:
        self._store = store
        self._machine = machine
        self._live = live
        self._tell, self._tell_idle = over, idle
        self._context = bytes_of(config.context_memory)
        self.idle = IdleGpus(config.idle_seconds, machine.gpu_name)
        self.over = OverUse(self._context, machine.gpu_name)

    def _running(self) -> list[AttemptRow]:
        return [attempt for attempt, _ in self._live()]

    def own_use(self, snapshot: Snapshot | None) -> Mapping[str, int]:
        """Return our jobs' use of their shares, by UUID, if known.

        A use beyond the share counts as that of strangers, so it is not available to others.
        """
        shares = [lease for lease in self._store.leases() if lease.bytes is not None]
        shared = {lease.gpu_uuid for lease in shares}
        if snapshot is None or not shared:
            return {}
        use = measure([gpu for gpu in snapshot.gpus if gpu.uuid in shared], self._running())
        own = dict.fromkeys(use.own, 0)
        for lease in shares:
            held = use.of_attempts.get((lease.job_id, lease.attempt), {}).get(lease.gpu_uuid, 0)
            if lease.gpu_uuid in own:
                own[lease.gpu_uuid] += min(held, (lease.bytes or 0) + self._context)
        return own

    def use_of_jobs(self, snapshot: Snapshot | None) -> MeasuredUse:
        """Return each attempt's use of the leased GPUs, if known."""
        leased = {lease.gpu_uuid for lease in self._store.leases()}
        if snapshot is None or not leased:
            return MeasuredUse()
        return measure([gpu for gpu in snapshot.gpus if gpu.uuid in leased], self._running())

    async def keep_up(self) -> None:
        """Check every LOOK_SECONDS if GPUs are shared, and book the users' use of GPUs."""
        booked = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            leases = self._store.leases()
            if leases and time.monotonic() - booked >= BOOK_SECONDS:
                booked = time.monotonic()
                self._book()
            if not leases:
                continue
            snapshot = await self._machine.snapshot()
            leases = self._store.leases()
            if any(lease.bytes is not None for lease in leases):
                use = measure(snapshot.gpus, self._running())
                for lease, what in self.over.look(leases, use):
                    self._note(lease, OVER_DECLARED, what, self._tell)
            if not snapshot.gpus_silent:
                for lease, what in self.idle.look(leases, snapshot.gpus, time.monotonic()):
                    self._note(lease, IDLE, what, self._tell_idle)

    def _book(self) -> None:
        try:
            self._store.book_gpu_use()
        except sqlite3.OperationalError as error:  # the next booking has it all
            log.error("the use of the GPUs cannot be recorded now: %s", error)

    def _note(self, lease: Lease, kind: str, what: str, tell: Callable[[Lease, str], None]) -> None:
        log.warning("job %d: %s", lease.job_id, what)
        try:
            self._store.note(lease, kind, what, time.time())
            tell(lease, what)
        except sqlite3.OperationalError as error:
            log.error("the queue cannot be written now: %s", error)

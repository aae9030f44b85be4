"""Measures how much of each GPU jobs use. Reports jobs that use too much memory of a GPU, and jobs
that leave a GPU idle.

A report is made once per attempt and GPU.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.core.counts_and_sizes import bytes_of
from zerotools.sensors.snapshot import Gpu, Snapshot
from zerotoolsd.config.config_tables import GpusConfig
from zerotoolsd.queue.rows import AttemptRow, Lease
from zerotoolsd.queue.store import Store
from zerotoolsd.resources.snapshot_thread import SnapshotCache
from zerotoolsd.supervisor.attempt_plan import RUN
from zerotoolsd.supervisor.durable_files import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.procfs import Process, boot_id, read_process
from zerotoolsd.supervisor.signal_process import is_of_uid
from zerotoolsd.users.open_as_user import opened_run_directory, owner_of

LOOK_SECONDS = 10.0
BOOK_SECONDS = 60.0
"""Interval in seconds between bookings of GPU use; the end of an attempt is booked separately."""
OVER_DECLARED = "over_declared"
"""Kind of the event for a job that uses too much."""
GIB = 2**30

log = logging.getLogger(__name__)


class GpuOveruse:
    """Finds jobs that use more memory of a shared GPU than they declared. Each job may use
    `context` bytes in addition to its declaration.

    `name` returns the name of a GPU for messages.
    """

    def __init__(self, context: int, name: Callable[[str], str] = str) -> None:
        self._context = context
        self._name = name
        self._reported: dict[tuple[int, int, str], str] = {}

    def check(self, leases: Sequence[Lease], use: MeasuredUse) -> list[tuple[Lease, str]]:
        """Return the leases that exceed their declared memory for the first time, each with a
        sentence.
        """
        found = []
        leased = {(lease.job_id, lease.attempt, lease.gpu_uuid) for lease in leases}
        self._reported = {key: said for key, said in self._reported.items() if key in leased}
        for lease in leases:
            key = (lease.job_id, lease.attempt, lease.gpu_uuid)
            used = use.of_attempts.get(key[:2], {}).get(lease.gpu_uuid, 0)
            if lease.bytes is None or key in self._reported or used <= lease.bytes + self._context:
                continue
            self._reported[key] = (
                f"it uses {used / GIB:.1f} GiB of {self._name(lease.gpu_uuid)}, but declared only "
                f"memory.per_gpu = {lease.bytes / GIB:.1f} GiB (plus {self._context / GIB:.1f} GiB "
                "for the CUDA context): other jobs on this GPU may run out of memory"
            )
            found.append((lease, self._reported[key]))
        return found

    def why(self, job_id: int) -> str | None:
        """Return a sentence if the job uses more GPU memory than it declared, else None."""
        said = [what for (job, _, _), what in self._reported.items() if job == job_id]
        return "; ".join(said) or None


class SharedGpus:
    """Checks the GPUs that several jobs of this daemon share.

    `live` returns the running attempts. `over` is called with the lease of a job that has begun to
    exceed its declaration, and `idle` with the lease of a job that has become idle.
    """

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
        self._on_over, self._on_idle = over, idle
        self._context = bytes_of(config.context_memory)
        self.idle = IdleGpus(config.idle_seconds, machine.gpu_name)
        self.over = GpuOveruse(self._context, machine.gpu_name)

    def _running(self) -> list[AttemptRow]:
        return [attempt for attempt, _ in self._live()]

    def own_use(self, snapshot: Snapshot | None) -> Mapping[str, int]:
        """Return, for each shared GPU, the bytes that jobs of this daemon use inside their declared
        parts, keyed by UUID. GPUs with unknown use are left out.

        Memory that a job uses beyond its part counts as memory of other programs, so that no job
        gets it.
        """
        shares = [lease for lease in self._store.leases() if lease.bytes is not None]
        shared = {lease.gpu_uuid for lease in shares}
        if snapshot is None or not shared:
            return {}
        use = measure_gpu_use([gpu for gpu in snapshot.gpus if gpu.uuid in shared], self._running())
        own = dict.fromkeys(use.own, 0)
        for lease in shares:
            held = use.of_attempts.get((lease.job_id, lease.attempt), {}).get(lease.gpu_uuid, 0)
            if lease.gpu_uuid in own:
                own[lease.gpu_uuid] += min(held, (lease.bytes or 0) + self._context)
        return own

    def use_of_jobs(self, snapshot: Snapshot | None) -> MeasuredUse:
        """Return the memory that each attempt uses on its leased GPUs, if known."""
        leased = {lease.gpu_uuid for lease in self._store.leases()}
        if snapshot is None or not leased:
            return MeasuredUse()
        return measure_gpu_use(
            [gpu for gpu in snapshot.gpus if gpu.uuid in leased], self._running()
        )

    async def run_forever(self) -> None:
        """Check the leased GPUs every LOOK_SECONDS, and record the GPU time of users."""
        booked = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            leases = self._store.leases()
            if leases and time.monotonic() - booked >= BOOK_SECONDS:
                booked = time.monotonic()
                self._record_use()
            if not leases:
                continue
            snapshot = await self._machine.snapshot()
            leases = self._store.leases()
            if any(lease.bytes is not None for lease in leases):
                use = measure_gpu_use(snapshot.gpus, self._running())
                for lease, what in self.over.check(leases, use):
                    self._report(lease, OVER_DECLARED, what, self._on_over)
            if not snapshot.gpus_silent:
                for lease, what in self.idle.check(leases, snapshot.gpus, time.monotonic()):
                    self._report(lease, IDLE, what, self._on_idle)

    def _record_use(self) -> None:
        try:
            self._store.book_gpu_use()
        except sqlite3.OperationalError as error:  # the next booking has it all
            log.error("the use of the GPUs cannot be recorded now: %s", error)

    def _report(
        self, lease: Lease, kind: str, what: str, notify: Callable[[Lease, str], None]
    ) -> None:
        log.warning("job %d: %s", lease.job_id, what)
        try:
            self._store.note(lease, kind, what, time.time())
            notify(lease, what)
        except sqlite3.OperationalError as error:
            log.error("the queue cannot be written now: %s", error)


IDLE = "gpus_idle"
"""Kind of the event for an idle job."""


class IdleGpus:
    """Finds jobs that have whole GPUs and do not use them for `after_seconds` (0: never).

    `name` returns the name of a GPU for messages.
    """

    def __init__(self, after_seconds: float, name: Callable[[str], str] = str) -> None:
        self._after = after_seconds
        self._name = name
        self._since: dict[Owner, float] = {}
        self._reported: dict[Owner, str] = {}

    def check(
        self, leases: Sequence[Lease], gpus: Sequence[Gpu], now: float
    ) -> list[tuple[Lease, str]]:
        """Return a lease of each job that has just become idle, with a sentence. `now` is a
        monotonic time in seconds.
        """
        busy = {gpu.uuid: gpu.utilization_percent for gpu in gpus if gpu.uuid is not None}
        held: dict[Owner, list[Lease]] = {}
        for lease in leases:
            if lease.held_by is None:
                held.setdefault((lease.job_id, lease.attempt), []).append(lease)
        idle = {owner for owner, those in held.items() if _is_idle(those, busy)}
        self._since = {owner: self._since.get(owner, now) for owner in idle}
        self._reported = {owner: said for owner, said in self._reported.items() if owner in idle}
        found = []
        for owner, since in sorted(self._since.items()):
            if not 0 < self._after <= now - since:
                continue
            is_new = owner not in self._reported
            names = ", ".join(self._name(lease.gpu_uuid) for lease in held[owner])
            minutes = (now - since) / 60
            which = "it" if len(held[owner]) == 1 else "them"
            said = f"it holds {names}, but has not used {which} for {minutes:.0f} min"
            self._reported[owner] = said
            if is_new:
                found.append((held[owner][0], self._reported[owner]))
        return found

    def why(self, job_id: int) -> str | None:
        """Return a sentence if the job is idle; None if it is not."""
        return next((said for (job, _), said in self._reported.items() if job == job_id), None)


def _is_idle(leases: Sequence[Lease], busy: dict[str, int | None]) -> bool:
    return all(lease.bytes is None and busy.get(lease.gpu_uuid) == 0 for lease in leases)


Owner = tuple[int, int]
"""An attempt: (job id, number)."""
Read = Callable[[int], Process | None]
_DEEPEST = 64


@dataclass(frozen=True)
class MeasuredUse:
    """The bytes that attempts use on GPUs, keyed by the UUID of the GPU.

    `of_attempts` has them for each attempt, and `own` the sum over all attempts. GPUs for which the
    driver does not report the use are left out.
    """

    of_attempts: Mapping[Owner, Mapping[str, int]] = field(default_factory=dict)
    own: Mapping[str, int] = field(default_factory=dict)


def measure_gpu_use(
    gpus: Iterable[Gpu], attempts: Iterable[AttemptRow], read: Read = read_process
) -> MeasuredUse:
    """Return the memory that `attempts` use on `gpus` now."""
    roots = {root: (a.job_id, a.number) for a in attempts for root in roots_of(a)}
    of_attempts: dict[Owner, dict[str, int]] = {}
    own: dict[str, int] = {}
    for gpu in gpus:
        if gpu.uuid is None or not gpu.processes:
            continue
        found = [(_owner(p.pid, roots, read), p.memory_used_bytes) for p in gpu.processes]
        if any(used is None or owner is None for owner, used in found):
            continue
        own[gpu.uuid] = 0
        for owner, used in found:
            if isinstance(owner, tuple):
                of_gpus = of_attempts.setdefault(owner, {})
                of_gpus[gpu.uuid] = of_gpus.get(gpu.uuid, 0) + (used or 0)
                own[gpu.uuid] += used or 0
    return MeasuredUse(of_attempts, own)


def _owner(pid: int, roots: Mapping[tuple[int, int], Owner], read: Read) -> Owner | bool | None:
    """Return the attempt to which a process belongs. Return False if it belongs to no attempt, and
    None if it does not exist.
    """
    process = read(pid)
    if process is None:
        return None
    for _ in range(_DEEPEST):
        if (process.pid, process.start_ticks) in roots:
            return roots[process.pid, process.start_ticks]
        parent = read(process.parent) if process.parent > 1 else None
        if parent is None:
            return False
        process = parent
    return False


def roots_of(attempt: AttemptRow) -> list[tuple[int, int]]:
    """Return (pid, start time) of the supervisor and of the keeper of the attempt.

    For an attempt of another user, only processes of this user count, because the user can write
    into the record.
    """
    run_dir = Path(attempt.run_dir)
    try:
        with opened_run_directory(run_dir) as base:
            run = read_json(base / RUN, LARGEST_RECORD) or {}
    except (OSError, ValueError):
        return []
    uid = owner_of(run_dir)
    if run.get("token") != attempt.token or run.get("boot_id") != boot_id():
        return []
    found = []
    for tree in (run, run.get("keeper")):
        named = tree if isinstance(tree, Mapping) else {}
        pid, start = named.get("pid"), named.get("start_ticks")
        if type(pid) is int and type(start) is int and (uid is None or is_of_uid(pid, uid)):
            found.append((pid, start))
    return found

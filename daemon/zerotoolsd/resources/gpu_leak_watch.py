"""The loop that checks the GPUs of ended attempts, and keeps them leased until they are free.

    seconds after the end
    2    the first check: usually the GPU is free; if not, further checks follow after 4, 8, 16
         and 32 seconds
    8    the memory is still in use: the GPU is kept (a lease with `held_by`), with an event of the
         job and a line in the log
    60   memory that cannot be distinguished from that of others is not checked any more

A kept GPU is checked every five seconds until it is free. A new daemon needs no state of the
previous one: leases are in the queue, and the GPUs of attempts that ended in the last minutes are
checked again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from zerotools.sensors.foreign_gpu_memory import foreign_bytes
from zerotools.sensors.snapshot import Gpu, Snapshot
from zerotoolsd.attempts.attempt_watcher import Guard
from zerotoolsd.file_checks.file_checker_pool import Ask
from zerotoolsd.queue import clocks, fault_isolation
from zerotoolsd.queue.rows import AttemptRow, Lease
from zerotoolsd.queue.store import Store
from zerotoolsd.resources.check_gpu_use_of_jobs import roots_of
from zerotoolsd.resources.leaked_gpu_memory import (
    FREE,
    GIB,
    UNKNOWN,
    LeakedMemory,
    LeakVerdict,
    Suspects,
    can_be_seen,
    find_suspects,
    holders_phrase,
    memory_left,
)
from zerotoolsd.resources.snapshot_thread import SnapshotCache
from zerotoolsd.supervisor.procfs import read_process

RESIDUE = "gpu_residue"
"""Kind of the event for memory that remains on a GPU."""
FIRST_SECONDS, SURE_SECONDS, LONGEST_SECONDS = 2.0, 6.0, 60.0
KEPT_SECONDS = 5.0
"""Seconds between two checks of a GPU that is kept."""
PATIENCE_SECONDS, PROC_SECONDS = 1.0, 5.0
"""Seconds to wait for the driver, and for /proc; a call without a response is repeated."""
LATELY_SECONDS = 600.0
"""When the daemon starts, attempts that ended within this many seconds are checked again."""
CHANGE = 0.1
"""The memory that is left is reported again when it has changed by this fraction."""

log = logging.getLogger(__name__)


@dataclass
class _GpuCheck:
    """The repeated check of one GPU after the end of an attempt.

    Attributes:
        kept: the lease with `held_by`; None if the GPU is not kept leased.
        for_process: whether `held_by` names a process that survived SIGKILL and has ended now.
    """

    attempt: AttemptRow
    uuid: str
    since: float
    due: float
    kept: Lease | None = None
    for_process: bool = False
    seen: LeakedMemory = field(default=FREE)

    def put_off(self, now: float) -> None:
        waits = KEPT_SECONDS if self.kept is not None else max(FIRST_SECONDS, now - self.since)
        self.due = now + waits

    @property
    def key(self) -> tuple[int, int, str]:
        return self.attempt.job_id, self.attempt.number, self.uuid


class LeakWatch:
    """Checks GPUs after the end of their attempts.

    `live` returns the running attempts. `limit` returns how many bytes of a GPU may be in use
    before it gets no more jobs. `announce` is called after leases have changed. `ask` calls
    a function in another process, to read /proc.
    """

    def __init__(
        self,
        *,
        store: Store,
        machine: SnapshotCache,
        guard: Guard,
        live: Callable[[], Sequence[AttemptRow]],
        limit: Callable[[Gpu], int],
        announce: Callable[[], None],
        ask: Ask,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._machine, self._guard = store, machine, guard
        self._live, self._limit, self._announce = live, limit, announce
        self._ask, self._clock = ask, clock
        self._checks: dict[tuple[int, int, str], _GpuCheck] = {}
        self._new = asyncio.Event()

    def add_recently_ended(self) -> None:
        """Check the GPUs of attempts that ended while the previous daemon was running."""
        for attempt in self._store.outlived.ended_since(time.time() - LATELY_SECONDS):
            if attempt.boot_id in (None, clocks.read_clocks().boot_id):
                self.add_ended(attempt)

    def add_ended(self, attempt: AttemptRow) -> None:
        """Begin to check the GPUs of an attempt that has ended."""
        now = self._clock()
        for uuid in attempt.gpu_uuids:
            found = _GpuCheck(attempt, uuid, now, now + FIRST_SECONDS)
            self._checks.setdefault(found.key, found)
        self._new.set()

    def settle(self, lease: Lease) -> None:
        """Release this lease as soon as no memory of the attempt is left on its GPU.

        Call this when the process that survived SIGKILL has ended, or for a lease of the previous
        daemon.
        """
        key = lease.job_id, lease.attempt, lease.gpu_uuid
        known = self._checks.get(key)
        if known is not None and known.kept is not None:
            return
        attempt = self._store.attempts(lease.job_id)[lease.attempt - 1]
        named = bool((attempt.result or {}).get("unkillable"))
        now = self._clock()
        self._checks[key] = _GpuCheck(attempt, lease.gpu_uuid, now, now, lease, named)
        self._new.set()

    async def run_forever(self) -> None:
        """Check the GPUs again and again, until this task is cancelled."""
        while True:
            if not self._checks:
                self._new.clear()
                await self._new.wait()
            pause = min(each.due for each in self._checks.values()) - self._clock()
            try:
                await asyncio.wait_for(self._new.wait(), max(0.0, pause))
            except TimeoutError:
                await self._check_due()
            self._new.clear()

    async def _check_due(self) -> None:
        try:
            snapshot = await self._machine.snapshot(
                most_age_seconds=0.0, patience_seconds=PATIENCE_SECONDS
            )
            await self.check(snapshot)
        except sqlite3.OperationalError as error:
            log.error("the queue cannot be written now: %s", error)
        except Exception:  # out of memory, or a defect: the next check is independent
            log.exception("memory left on GPUs cannot be checked now")
        finally:
            now = self._clock()
            for each in self._checks.values():
                if each.due <= now:  # it was not checked
                    each.put_off(now)

    async def check(self, snapshot: Snapshot) -> None:
        """Check all GPUs that are due for a check."""
        now = self._clock()
        due = [each for each in self._checks.values() if each.due <= now]
        gpus = {gpu.uuid: gpu for gpu in snapshot.gpus if gpu.uuid is not None}
        if snapshot.gpus_error is not None or snapshot.gpus_silent:
            gpus = {}
            due = [] if snapshot.gpus_silent or snapshot.gpus else due
        found = await self._suspects([each for each in due if self._may_be_left(each, gpus)])
        for each in due:
            if self._checks.get(each.key) is not each:  # its lease was looked up meanwhile
                continue
            with self._guard(each.attempt.job_id, fault_isolation.RELEASING) as reach:
                reach()
                who = found.get(each.attempt.token)
                self._settle_one(each, gpus.get(each.uuid), who, now)

    def _may_be_left(self, each: _GpuCheck, gpus: Mapping[str, Gpu]) -> bool:
        """Return whether more memory is in use than allowed, so that the processes that hold it
        must be found.
        """
        gpu = gpus.get(each.uuid)
        return gpu is not None and can_be_seen(gpu) and foreign_bytes(gpu) > self._limit(gpu)

    async def _suspects(self, due: Sequence[_GpuCheck]) -> Mapping[str, Suspects]:
        """Return the processes that may hold GPU memory, keyed by the token of the attempt.

        Attempts for which /proc does not respond in time are left out.
        """
        found = dict[str, Suspects]()
        for attempt in {each.attempt.token: each.attempt for each in due}.values():
            others = [each for each in self._live() if each.token != attempt.token]
            roots = [root for each in others for root in roots_of(each)]
            try:
                tree = await self._ask(
                    *(PROC_SECONDS, find_suspects, attempt.run_dir, attempt.token),
                    *(roots, os.getpid()),
                )
            except (TimeoutError, OSError, RuntimeError) as error:  # the next check is independent
                log.warning(
                    "job %d: the processes that hold its GPU memory cannot be read now: %s",
                    *(attempt.job_id, str(error) or "/proc does not answer"),
                )
            else:
                found[attempt.token] = Suspects.from_json(tree)
        return found

    def _settle_one(
        self, each: _GpuCheck, gpu: Gpu | None, who: Suspects | None, now: float
    ) -> None:
        left = self._remaining_memory(each, gpu, who)
        if not self._store.attempts(each.attempt.job_id):  # the job was removed
            del self._checks[each.key]
        elif left.verdict is LeakVerdict.FREE or (
            left.verdict is LeakVerdict.UNKNOWN and each.for_process
        ):
            self._free(each)
        elif left.verdict is LeakVerdict.LEFT and gpu is not None and who is not None:
            if not left.pids and self._is_kept_by_another(each):
                self._free(each)
            elif each.kept is not None or now - each.since >= SURE_SECONDS:
                self._keep_leased(each, gpu, left, who)
        elif each.kept is None and now - each.since >= LONGEST_SECONDS:
            self._give_up(each, gpu)
        each.put_off(now)

    def _remaining_memory(
        self, each: _GpuCheck, gpu: Gpu | None, who: Suspects | None
    ) -> LeakedMemory:
        here = clocks.read_clocks().boot_id
        if each.attempt.boot_id not in (None, here) and here is not None:
            return FREE  # the machine was restarted
        if gpu is None:  # it is gone, or the driver fails: no job starts on it in any case
            return FREE if each.for_process else UNKNOWN
        if not can_be_seen(gpu):  # the owner can never be determined, or no job gets the GPU
            return UNKNOWN if each.kept is not None and gpu.error is not None else FREE
        baseline = each.attempt.gpu_baseline.get(each.uuid)
        if who is None:
            limit = self._limit(gpu)
            free = foreign_bytes(gpu) <= limit
            return memory_left(gpu, (), limit, baseline) if free else UNKNOWN
        given = any(
            lease.gpu_uuid == each.uuid and lease.held_by is None for lease in self._store.leases()
        )
        return memory_left(
            *(gpu, who.ours.keys(), self._limit(gpu), baseline),
            given=given,
            lists=self._machine.lists_processes,
        )

    def _is_kept_by_another(self, each: _GpuCheck) -> bool:
        """Return whether another attempt is known to have left the memory of this GPU that no
        process holds.
        """
        kept = (lease for lease in self._store.outlived.leases() if lease.gpu_uuid == each.uuid)
        first = next(kept, None)
        mine = each.attempt.job_id, each.attempt.number
        return first is not None and (first.job_id, first.attempt) != mine

    def _free(self, each: _GpuCheck) -> None:
        if each.kept is not None:
            self._store.release(each.kept, time.time())
            log.info("%s is free again", self._machine.gpu_name(each.uuid))
            self._announce()
        self._checks.pop(each.key, None)

    def _keep_leased(self, each: _GpuCheck, gpu: Gpu, left: LeakedMemory, who: Suspects) -> None:
        """Keep the GPU leased for the remaining memory, and report the memory if it has changed."""
        before, held = each.seen, holders_phrase(left, who, gpu)
        same = left.pids == before.pids and abs(left.size - before.size) <= CHANGE * before.size
        if each.kept is not None and (same or held == each.kept.held_by):
            return
        name = self._machine.gpu_name(each.uuid)
        lease = each.kept or Lease(
            gpu_uuid=each.uuid,
            job_id=each.attempt.job_id,
            attempt=each.attempt.number,
            host=each.attempt.host,
        )
        lease = replace(lease, held_by=held)
        why = f"{name} gets no job after attempt {each.attempt.number}: it is in use by {held}"
        self._store.outlived.keep(lease, RESIDUE, why, time.time())
        each.kept, each.seen, each.for_process = lease, left, False
        log.warning("job %d: %s", each.attempt.job_id, why)
        self._announce()

    def _give_up(self, each: _GpuCheck, gpu: Gpu | None) -> None:
        """Stop checking this GPU. If memory is held by processes that cannot be seen, report this
        memory.

        Such processes may belong to the attempt or to other programs.
        """
        self._checks.pop(each.key, None)
        unseen = [p for p in (gpu.processes if gpu else ()) if read_process(p.pid) is None]
        if gpu is None or not unseen:
            return
        name, used = self._machine.gpu_name(each.uuid), (gpu.memory_used_bytes or 0) / GIB
        pids = ", ".join(str(process.pid) for process in unseen[:4])
        why = (
            f"{name} has {used:.1f} GiB in use after attempt {each.attempt.number}, by pid "
            f"{pids}, which cannot be seen from here (another container?): its owner is not "
            "known"
        )
        lease = Lease(gpu_uuid=each.uuid, job_id=each.attempt.job_id, attempt=each.attempt.number)
        self._store.note(lease, RESIDUE, why, time.time())
        log.warning("job %d: %s", each.attempt.job_id, why)
        self._announce()

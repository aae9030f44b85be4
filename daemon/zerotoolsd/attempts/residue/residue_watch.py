"""The loop that looks at the GPUs of attempts that are over, and keeps them until they are free.

    seconds after the end
    2    the first look: nothing is left, mostly, and that was all; else there are others after 4,
         8, 16 and 32 seconds
    8    what is left still is left: the GPU is kept (a lease with `held_by`), and it is said, by an
         event of the job and in the log
    60   what cannot be told apart from what others there hold is looked at no more

A kept GPU is looked at every five seconds until what is left is gone. It needs nothing of a daemon
before: leases are in the queue, and ends of the last minutes are looked at again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from zerotools.sensors.foreign_memory import foreign_bytes
from zerotools.sensors.snapshot import Gpu, Snapshot
from zerotoolsd.attempts.residue.attribution import (
    GIB,
    Suspects,
    held_by,
    look_for_suspects,
)
from zerotoolsd.attempts.residue.memory_left import (
    FREE,
    UNKNOWN,
    MemoryLeft,
    ResidueVerdict,
    can_be_seen,
    memory_left,
)
from zerotoolsd.attempts.watcher import Guard
from zerotoolsd.gpu_sharing.measured_use import roots_of
from zerotoolsd.looking.lookers import Ask
from zerotoolsd.machine import SnapshotCache
from zerotoolsd.queue import clocks, parking
from zerotoolsd.queue.rows import AttemptRow, Lease
from zerotoolsd.queue.store import Store
from zerotoolsd.supervisor.procfs import read_process

RESIDUE = "gpu_residue"
"""Kind of the event."""
FIRST_SECONDS, SURE_SECONDS, LONGEST_SECONDS = 2.0, 6.0, 60.0
KEPT_SECONDS = 5.0
"""Between two looks at a GPU that is kept."""
PATIENCE_SECONDS, PROC_SECONDS = 1.0, 5.0
"""How long the driver is waited for, and /proc: who does not answer is asked again."""
LATELY_SECONDS = 600.0
"""Ends that are not older are looked at when the daemon starts."""
CHANGE = 0.1
"""What is left is said anew when it has changed by this part."""

log = logging.getLogger(__name__)


@dataclass
class _Looked:
    """A GPU of an attempt that is over. `kept`: its lease has `held_by`, and `for_process` that for
    a process which SIGKILL had not ended, and which is gone now."""

    attempt: AttemptRow
    uuid: str
    since: float
    due: float
    kept: Lease | None = None
    for_process: bool = False
    seen: MemoryLeft = field(default=FREE)

    def put_off(self, now: float) -> None:
        """It was looked at: the next time is later."""
        waits = KEPT_SECONDS if self.kept is not None else max(FIRST_SECONDS, now - self.since)
        self.due = now + waits

    @property
    def key(self) -> tuple[int, int, str]:
        """Which GPU of which attempt."""
        return self.attempt.job_id, self.attempt.number, self.uuid


class ResidueWatch:
    """`live` gives the attempts that run, `limit` is how many bytes of a GPU may be in use while it
    is still given away, `announce` is called where leases have changed. `ask` looks at /proc."""

    def __init__(
        self,
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
        self._looked: dict[tuple[int, int, str], _Looked] = {}
        self._new = asyncio.Event()

    def begin(self) -> None:
        """Take up what an earlier daemon has seen last."""
        for attempt in self._store.outlived.ended_since(time.time() - LATELY_SECONDS):
            if attempt.boot_id in (None, clocks.now().boot_id):
                self.ended(attempt)

    def ended(self, attempt: AttemptRow) -> None:
        """The attempt is over, and its GPUs are given back."""
        now = self._clock()
        for uuid in attempt.gpu_uuids:
            found = _Looked(attempt, uuid, now, now + FIRST_SECONDS)
            self._looked.setdefault(found.key, found)
        self._new.set()

    def settle(self, lease: Lease) -> None:
        """What SIGKILL had not ended is gone, or this lease is of an earlier daemon: release it
        once nothing is left."""
        key = lease.job_id, lease.attempt, lease.gpu_uuid
        known = self._looked.get(key)
        if known is not None and known.kept is not None:
            return
        attempt = self._store.attempts(lease.job_id)[lease.attempt - 1]
        named = bool((attempt.result or {}).get("unkillable"))
        now = self._clock()
        self._looked[key] = _Looked(attempt, lease.gpu_uuid, now, now, lease, named)
        self._new.set()

    async def keep_up(self) -> None:
        """Look until cancelled."""
        while True:
            if not self._looked:
                self._new.clear()
                await self._new.wait()
            pause = min(each.due for each in self._looked.values()) - self._clock()
            try:
                await asyncio.wait_for(self._new.wait(), max(0.0, pause))
            except TimeoutError:
                await self._look_at_due()
            self._new.clear()

    async def _look_at_due(self) -> None:
        try:
            snapshot = await self._machine.snapshot(
                most_age_seconds=0.0, patience_seconds=PATIENCE_SECONDS
            )
            await self.look(snapshot)
        except sqlite3.OperationalError as error:
            log.error("the queue cannot be written now: %s", error)
        except Exception:  # of memory, or a defect: the next look is another one
            log.exception("what is left on GPUs cannot be looked at now")
        finally:
            now = self._clock()
            for each in self._looked.values():
                if each.due <= now:  # it was not looked at
                    each.put_off(now)

    async def look(self, snapshot: Snapshot) -> None:
        """At all that are due."""
        now = self._clock()
        due = [each for each in self._looked.values() if each.due <= now]
        gpus = {gpu.uuid: gpu for gpu in snapshot.gpus if gpu.uuid is not None}
        if snapshot.gpus_error is not None or snapshot.gpus_silent:
            gpus = {}
            due = [] if snapshot.gpus_silent or snapshot.gpus else due
        found = await self._suspects([each for each in due if self._may_be_left(each, gpus)])
        for each in due:
            if self._looked.get(each.key) is not each:  # its lease was looked up meanwhile
                continue
            with self._guard(each.attempt.job_id, parking.RELEASING) as reach:
                reach()
                who = found.get(each.attempt.token)
                self._settle_one(each, gpus.get(each.uuid), who, now)

    def _may_be_left(self, each: _Looked, gpus: Mapping[str, Gpu]) -> bool:
        """Whether somebody has to be looked for: more is in use than may be."""
        gpu = gpus.get(each.uuid)
        return gpu is not None and can_be_seen(gpu) and foreign_bytes(gpu) > self._limit(gpu)

    async def _suspects(self, due: Sequence[_Looked]) -> Mapping[str, Suspects]:
        """By token; of none for which /proc does not answer in time."""
        found = dict[str, Suspects]()
        for attempt in {each.attempt.token: each.attempt for each in due}.values():
            others = [each for each in self._live() if each.token != attempt.token]
            roots = [root for each in others for root in roots_of(each)]
            try:
                tree = await self._ask(
                    *(PROC_SECONDS, look_for_suspects, attempt.run_dir, attempt.token),
                    *(roots, os.getpid()),
                )
            except (TimeoutError, OSError, RuntimeError) as error:  # the next look is another one
                log.warning(
                    "job %d: whose memory is left cannot be seen now: %s",
                    *(attempt.job_id, str(error) or "/proc does not answer"),
                )
            else:
                found[attempt.token] = Suspects.from_json(tree)
        return found

    def _settle_one(self, each: _Looked, gpu: Gpu | None, who: Suspects | None, now: float) -> None:
        left = self._left(each, gpu, who)
        if not self._store.attempts(each.attempt.job_id):  # the job was removed
            del self._looked[each.key]
        elif left.verdict is ResidueVerdict.FREE or (
            left.verdict is ResidueVerdict.UNKNOWN and each.for_process
        ):
            self._free(each)
        elif left.verdict is ResidueVerdict.LEFT and gpu is not None and who is not None:
            if not left.pids and self._is_kept_by_another(each):
                self._free(each)
            elif each.kept is not None or now - each.since >= SURE_SECONDS:
                self._keep(each, gpu, left, who)
        elif each.kept is None and now - each.since >= LONGEST_SECONDS:
            self._give_up(each, gpu)
        each.put_off(now)

    def _left(self, each: _Looked, gpu: Gpu | None, who: Suspects | None) -> MemoryLeft:
        here = clocks.now().boot_id
        if each.attempt.boot_id not in (None, here) and here is not None:
            return FREE  # the machine was restarted
        if gpu is None:  # it is gone, or there is no driver: nothing starts on it in any case
            return FREE if each.for_process else UNKNOWN
        if not can_be_seen(gpu):  # nobody will ever know, or it is given to nobody
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

    def _is_kept_by_another(self, each: _Looked) -> bool:
        """Whether what no process holds there is known as what an earlier attempt left."""
        kept = (lease for lease in self._store.outlived.leases() if lease.gpu_uuid == each.uuid)
        first = next(kept, None)
        mine = each.attempt.job_id, each.attempt.number
        return first is not None and (first.job_id, first.attempt) != mine

    def _free(self, each: _Looked) -> None:
        if each.kept is not None:
            self._store.release(each.kept, time.time())
            log.info("%s is free again", self._machine.gpu_name(each.uuid))
            self._announce()
        self._looked.pop(each.key, None)

    def _keep(self, each: _Looked, gpu: Gpu, left: MemoryLeft, who: Suspects) -> None:
        """Say what is left, where that is new, and keep the GPU for it."""
        before, held = each.seen, held_by(left, who, gpu)
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
        why = f"{name} is kept free after attempt {each.attempt.number}: it is in use by {held}"
        self._store.outlived.hold(lease, RESIDUE, why, time.time())
        each.kept, each.seen, each.for_process = lease, left, False
        log.warning("job %d: %s", each.attempt.job_id, why)
        self._announce()

    def _give_up(self, each: _Looked, gpu: Gpu | None) -> None:
        """What is in use there may be of others, or of the attempt: say so, where nobody can be
        seen."""
        self._looked.pop(each.key, None)
        unseen = [p for p in (gpu.processes if gpu else ()) if read_process(p.pid) is None]
        if gpu is None or not unseen:
            return
        name, used = self._machine.gpu_name(each.uuid), (gpu.memory_used_bytes or 0) / GIB
        pids = ", ".join(str(process.pid) for process in unseen[:4])
        why = (
            f"{name} has {used:.1f} GiB in use after attempt {each.attempt.number}, by pid {pids}, "
            "which cannot be seen from here (another container?): whose it is cannot be said"
        )
        lease = Lease(gpu_uuid=each.uuid, job_id=each.attempt.job_id, attempt=each.attempt.number)
        self._store.note(lease, RESIDUE, why, time.time())
        log.warning("job %d: %s", each.attempt.job_id, why)
        self._announce()

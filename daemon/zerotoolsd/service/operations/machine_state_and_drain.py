"""The state of the daemon and of the machine, each user's share of the GPUs, and drains."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import zerotools
from zerotools.jobs.client.daemon_compatibility import API_VERSION
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.interface.api_types import Unavailable
from zerotoolsd.interface.prometheus_text import render_metrics
from zerotoolsd.interface.start_conditions import Drain
from zerotoolsd.monitoring.prometheus_metrics import MetricsMoment, metric_families
from zerotoolsd.queue import clocks
from zerotoolsd.queue.gpu_fault_fences import with_fences
from zerotoolsd.queue.group_commit import when_free
from zerotoolsd.service.make_job_view import share_view
from zerotoolsd.users.account import user_name

METRICS_AGE_SECONDS, METRICS_PATIENCE_SECONDS = 10.0, 0.2  # of the state of the GPUs


class MachineState:
    """Answers requests about the machine.

    The uptime is counted from the creation of this object.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._started = time.monotonic()

    async def machine(self) -> dict[str, Any]:
        """Return the machine's state; see `JobRequests.machine`."""
        snapshot = await self._dispatcher.machine.snapshot()
        snapshot = with_fences(snapshot, self._store.fences(), clocks.read_clocks())
        leases = [
            {
                "gpu_uuid": lease.gpu_uuid,
                "job_id": lease.job_id,
                "attempt": lease.attempt,
                "held_by": lease.held_by,
                "bytes": lease.bytes,
                "uid": self._owner(lease.job_id),
            }
            for lease in self._store.leases()
        ]
        launch, choice = self._dispatcher.spawner.to_json(), self._dispatcher.machine.choice
        return {
            "snapshot": snapshot.to_json(),
            "leases": leases,
            "launch": launch,
            "warm_start": self._dispatcher.warm.to_json(),
            "gpu_locks": self._dispatcher.arbiter.to_json(),
            "gpu_choice": {"unknown": list(choice.unknown(snapshot.gpus)) if snapshot.gpus else []},
            "numa": self._dispatcher.placer.topology().to_json(),
        }

    async def metrics(self, *, openmetrics: bool) -> str:
        """Return the metrics as text; see `JobRequests.metrics`."""
        engine, now = self._dispatcher, clocks.read_clocks()
        snapshot = await engine.machine.snapshot(
            most_age_seconds=METRICS_AGE_SECONDS, patience_seconds=METRICS_PATIENCE_SECONDS
        )
        moment = MetricsMoment(
            jobs=self._store.state_counts(),
            leases=self._store.leases(),
            fenced=[each.gpu_uuid for each in self._store.fences() if each.is_up(now)],
            snapshot=snapshot,
            uptime_seconds=time.monotonic() - self._started,
            outbox=self._store.outbox.counts(),
            stalled=len(engine.notifier.progress.stalled),
        )
        return render_metrics(metric_families(engine.tally, moment), openmetrics=openmetrics)

    def shares(self) -> dict[str, Any]:
        """Return the users' shares; see `JobRequests.shares`."""
        engine = self._dispatcher
        waiting, gpus = engine.placement.pending.waiting_for_gpus(), dict[int, float]()
        for lease in self._store.leases():
            uid = self._store.job(lease.job_id).uid
            gpus[uid] = gpus.get(uid, 0) + 1
        users = engine.shares.view({*waiting, *gpus}, time.time())
        return {
            "half_life_seconds": engine.shares.half_life,
            "fair": engine.config.shares.fair,
            "users": [share_view(each, gpus, waiting) for each in users],
        }

    def health(self) -> dict[str, Any]:
        """Return the state of the daemon; see `JobRequests.health`."""
        drain = self._dispatcher.placing.drained
        return {
            "version": zerotools.__version__,
            "pid": os.getpid(),
            "schema": self._store.schema,
            "uptime_seconds": time.monotonic() - self._started,
            "api_versions": [API_VERSION],
            "last_event": self._store.last_change,
            "drain": replace(drain, user=user_name(drain.uid)).to_json() if drain else None,
        }

    def _owner(self, job_id: int) -> int | None:
        try:
            return self._store.of_user.owner(job_id)
        except KeyError:
            return None


class Draining:
    """Starts and ends a drain of the queue, in which no job starts."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def drain(self, why: str | None, uid: int) -> None:
        """Stop starting jobs; see `JobRequests.drain`."""
        now = time.time()
        await self._set(lambda: Drain(since=now, uid=uid, why=why), uid)

    async def undrain(self, uid: int) -> None:
        """End the drain, so that waiting jobs may start; see `JobRequests.undrain`."""
        await self._set(lambda: None, uid)

    async def _set(self, make: Callable[[], Drain | None], uid: int) -> None:
        async def change() -> None:
            drain = make()
            self._dispatcher.store.set_drain(drain, f"by {user_name(uid)}", time.time())
            self._dispatcher.placing.drained = drain
            self._dispatcher.announce()

        try:
            await when_free(change)
        except sqlite3.OperationalError as error:
            why = f"the drain cannot be recorded: writing the queue failed: {error}"
            raise Unavailable(why) from None

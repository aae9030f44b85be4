"""A `JobRequests` in memory, and jobs to put into it."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.http.api.made_views import JOB, SHARE, a_job, a_view
from zerotools.core.errors import BadRequest
from zerotools.jobs.job_arrays import remove_key, set_key
from zerotools.jobs.jobfile.parse import job_from_dict, job_to_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.states import SUCCEEDED, TERMINAL, predicate
from zerotools.sensors.snapshot import GpuProcess
from zerotools.sensors.snapshot_source import SnapshotSource
from zerotoolsd.attempts.metric_counters import MetricCounters
from zerotoolsd.interface.api_types import (
    AdoptedView,
    Adoption,
    ArrayRequest,
    ArrayView,
    CheckedJob,
    Cleaned,
    CleanedJob,
    CleanRequest,
    Conflict,
    Event,
    JobView,
    KeptJob,
    NotFound,
)
from zerotoolsd.interface.prometheus_text import render_metrics
from zerotoolsd.interface.start_conditions import PLAIN_TERMS, Drain, JobEdit, QueueTerms
from zerotoolsd.monitoring.prometheus_metrics import MetricsMoment, metric_families
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.downsample_curves import RunCurves, read_records
from zerotoolsd.service.explain_job import (
    Holder,
    QueuePlace,
    Waiting,
    explain_job,
)
from zerotoolsd.service.read_checkpoints_and_predictions import checkpoint_tree, prediction_rows

ADOPTABLE = 4711  # the one process that can be watched


class FakeService:
    """Jobs in a dict; tests change them as the daemon's loop would."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.views: dict[int, JobView] = {}
        self.keys: dict[str, int] = {}
        self.uids: list[int] = []
        self.feed: list[Event] = []
        self.leases: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.notes: list[str] = []
        self.sample: dict[str, Any] = {
            "examples": [
                {
                    "place": "a.jsonl, line 1",
                    "parts": [
                        {"text": "<|user|>a\x1b\n<|assistant|>", "trained": False},
                        {"text": "b\n\nc<|end|>", "trained": True},
                    ],
                    "text_cut": True,
                    "tokens": 9,
                    "trained_tokens": 4,
                    "tokens_lost": 2,
                }
            ],
            "looked_at": 3,
            "empty": 1,
            "duplicates": 2,
            "tokens": 40,
            "trained_tokens": 10,
            "lengths": [[9, 12, 2], [13, 16, 0], [17, 19, 1]],
            "packed": {"sequences": 2, "length": 24, "filled": 0.8333},
            "epoch": {"tokens": 40_000, "sequences": 2000, "steps": 250, "operations": 7.2e17},
            "memory": "state of a rank: 12.0 MiB on the device",
        }
        self.drained: Drain | None = None
        self.gpus = 2
        self.past: dict[str, Any] | None = None
        self.document = ""
        self.cleans: list[CleanRequest] = []
        self.during_check: Callable[[], Awaitable[None]] | None = None

    def add(self, **changes: Any) -> JobView:
        """Put a job in."""
        job_id = len(self.views) + 1
        self.views[job_id] = a_view(job_id, a_job(), **changes)
        return self.views[job_id]

    def change(self, job_id: int, **changes: Any) -> JobView:
        """Replace fields of a job."""
        self.views[job_id] = replace(self.views[job_id], **changes)
        return self.views[job_id]

    def write(self, job_id: int, name: str, data: bytes, *, attempt: int = 1) -> None:
        """Append to a file of an attempt."""
        directory = self.run_dir(job_id, attempt)
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / name).open("ab") as file:
            file.write(data)

    async def submit(
        self,
        spec: JobSpec,
        *,
        uid: int,
        idempotency_key: str | None,
        terms: QueueTerms = PLAIN_TERMS,
    ) -> tuple[JobView, bool]:
        if self.error is not None:
            raise self.error
        if idempotency_key is not None and idempotency_key in self.keys:
            return self.views[self.keys[idempotency_key]], False
        job_id = len(self.views) + 1
        self.uids.append(uid)
        after = tuple({"job": each.job_id, "condition": each.condition} for each in terms.after)
        waits = terms.begin is not None or after
        self.views[job_id] = a_view(
            job_id,
            spec,
            uid=uid,
            priority=terms.priority or 0,
            begin=terms.begin,
            after=after,
            state="on_hold" if terms.hold else "waiting" if waits else "queued",
        )
        if idempotency_key is not None:
            self.keys[idempotency_key] = job_id
        return self.views[job_id], True

    async def submit_array(
        self,
        members: Sequence[tuple[JobSpec, str]],
        *,
        uid: int,
        idempotency_key: str | None,
        terms: QueueTerms = PLAIN_TERMS,
    ) -> list[JobView]:
        first, found = len(self.views) + 1, []
        for index, (spec, label) in enumerate(members):
            view, _ = await self.submit(spec, uid=uid, idempotency_key=None, terms=terms)
            place = {"id": first, "index": index, "size": len(members), "label": label}
            found.append(self.change(view.id, array=place))
        return found

    async def check(
        self,
        spec: JobSpec,
        *,
        uid: int,
        model: bool = False,
        show: int = 0,
        terms: QueueTerms = PLAIN_TERMS,
    ) -> CheckedJob:
        if self.error is not None:
            raise self.error
        if self.during_check is not None:
            await self.during_check()
        return CheckedJob(self.notes if model else [], self.sample if show else None)

    async def jobs(
        self,
        *,
        states: Collection[str] | None = None,
        limit: int = 100,
        after: int | None = None,
        name: str | None = None,
        array: int | None = None,
        uid: int | None = None,
        whole: Callable[[int], bool] | None = None,
        by_priority: bool = False,
    ) -> list[JobView]:
        def place(view: JobView) -> tuple[int, int]:
            return (-view.priority, view.id) if by_priority else (0, -view.id)

        found = [
            view
            for view in sorted(self.views.values(), key=place)
            if (states is None or view.state in states)
            and (after is None or place(view) > place(self.views[after]))
            and (name is None or view.name == name)
            and (array is None or (view.array or {}).get("id") == array)
            and (uid is None or view.uid == uid)
        ]
        return found[:limit]

    async def job(self, job_id: int) -> JobView:
        if job_id not in self.views:
            raise NotFound(f"job {job_id} does not exist")
        return self.views[job_id]

    def owner(self, job_id: int) -> int:
        if job_id not in self.views:
            raise NotFound(f"job {job_id} does not exist")
        return self.views[job_id].uid

    async def cancel(self, job_id: int, *, uid: int) -> JobView:
        view = await self.job(job_id)
        if view.state in TERMINAL:
            raise Conflict(f"job {job_id} {predicate(view.state)}")
        state = "stopping" if view.attempts else "cancelled"
        return self.change(job_id, state=state)

    async def set_priority(self, job_id: int, priority: int, *, uid: int) -> JobView:
        view = await self.job(job_id)
        if view.state in TERMINAL:
            raise Conflict(f"job {job_id} {predicate(view.state)}")
        return self.change(job_id, priority=priority)

    async def hold(self, job_id: int, *, uid: int, lose_steps: bool = False) -> JobView:
        view = await self.job(job_id)
        if view.state in TERMINAL:
            raise Conflict(f"job {job_id} {predicate(view.state)}")
        state = "pausing" if view.state == "running" else "on_hold"
        said = "held by uid" if not lose_steps else "held, whatever is lost, by uid"
        return self.change(job_id, state=state, reason=f"{said} {uid}")

    async def release(self, job_id: int, *, uid: int) -> JobView:
        view = await self.job(job_id)
        if view.state not in ("on_hold", "paused", "pausing", "held"):
            raise Conflict(f"job {job_id} is not held: it is {view.state}")
        return self.change(job_id, state="queued", reason=None)

    async def pause(self, job_id: int, *, uid: int, lose_steps: bool = False) -> JobView:
        view = await self.job(job_id)
        if view.state in TERMINAL:
            raise Conflict(f"job {job_id} {predicate(view.state)}")
        said = "paused by uid" if not lose_steps else "paused, whatever is lost, by uid"
        return self.change(job_id, state="pausing", reason=f"{said} {uid}")

    async def unpause(self, job_id: int, *, uid: int) -> JobView:
        view = await self.job(job_id)
        if view.state not in ("paused", "pausing"):
            raise Conflict(f"job {job_id} is not paused: it is {view.state}")
        return self.change(job_id, state="queued", reason=None)

    async def resume(self, job_id: int, *, uid: int) -> JobView:
        view = await self.job(job_id)
        if view.state not in TERMINAL:
            raise Conflict(f"job {job_id} is not over: it is {view.state}")
        again = self.add(output_dir=view.output_dir)
        return self.change(again.id, spec={**view.spec, "resume_from": view.output_dir})

    async def metrics(self, *, openmetrics: bool) -> str:
        moment = MetricsMoment(
            jobs={}, leases=(), fenced=(), snapshot=None, uptime_seconds=1.0, outbox={}
        )
        return render_metrics(metric_families(MetricCounters(), moment), openmetrics=openmetrics)

    async def explain(self, job_id: int) -> dict[str, Any]:
        view = await self.job(job_id)
        row = JobRow(
            id=view.id,
            uid=view.uid,
            name=view.name,
            spec_text=json.dumps(JOB),
            given_text=None,
            spec_version="0.1.0",
            output_dir=view.output_dir,
            standing=JobStatus(state=view.state, reason=view.reason),
            created=view.created,
            started=view.started,
            ended=view.ended,
        )
        place = QueuePlace(position=1, of=2, what="GPUs", needs=2)
        holder = Holder(what="GPU 0", job_id=3, attempt=1, since=1.0, until=2.0)
        return explain_job(row, (), view, self.feed, waiting=Waiting(place=place, holders=[holder]))

    async def edit(self, job_id: int, edit: JobEdit, *, uid: int) -> JobView:
        view = await self.job(job_id)
        if view.state not in ("queued", "waiting", "on_hold"):
            raise Conflict(f"job {job_id} is {view.state}")
        tree = copy.deepcopy(dict(view.spec))
        for key in edit.unset:
            remove_key(tree, key)
        for key, value in edit.set.items():
            set_key(tree, key, value)
        spec = job_to_dict(job_from_dict(tree, source="job"))
        begin = view.begin if edit.begin is None else edit.begin or None
        return self.change(job_id, spec=spec, name=spec["name"], begin=begin)

    def _members(self, view: JobView) -> list[JobView]:
        if view.array is None:
            raise Conflict(f"job {view.id} is not part of an array")
        number = view.array["id"]
        return [one for one in self.views.values() if one.array and one.array["id"] == number]

    async def change_array(self, job_id: int, request: ArrayRequest, *, uid: int) -> ArrayView:
        members = self._members(await self.job(job_id))
        changes: dict[str, dict[str, Any]] = {
            "cancel": {"state": "cancelled"},
            "hold": {"state": "on_hold"},
            "release": {"state": "queued"},
            "pause": {"state": "paused"},
            "unpause": {"state": "queued"},
            "priority": {"priority": request.priority},
        }
        open_ones = [one for one in members if one.state not in TERMINAL]
        if not open_ones:
            raise Conflict(f"all {len(members)} jobs of the array are over")
        kept = [one.id for one in open_ones if request.do == "hold" and one.state == "running"]
        asked = [
            self.change(one.id, **changes[request.do]) for one in open_ones if one.id not in kept
        ]
        said = tuple((number, f"job {number} is running") for number in kept)
        return ArrayView(jobs=tuple(asked), kept=said)

    async def retry_array(
        self, job_id: int, *, uid: int, output_dir: str | None = None, from_start: bool = True
    ) -> list[JobView]:
        members = self._members(await self.job(job_id))
        members = [one for one in members if from_start or one.state != SUCCEEDED]
        new = [
            await self.retry(one.id, uid=uid, output_dir=output_dir, from_start=from_start)
            for one in members
        ]
        arrays = ({**(one.array or {}), "id": new[0].id} for one in members)
        return [self.change(one.id, array=array) for one, array in zip(new, arrays, strict=True)]

    async def adopt(self, wanted: Adoption, *, uid: int) -> AdoptedView:
        if wanted.pid != ADOPTABLE:
            raise BadRequest(f"process {wanted.pid} does not exist on this machine")
        view = self.add(uid=uid, name=wanted.name or "train", reason=None)
        return AdoptedView(job=view, below=(ADOPTABLE + 1,), gpu_uuids=("GPU-a",))

    async def retry(
        self, job_id: int, *, uid: int, output_dir: str | None = None, from_start: bool = True
    ) -> JobView:
        if not from_start:
            return await self.resume(job_id, uid=uid)
        view = await self.job(job_id)
        if view.state not in TERMINAL:
            raise Conflict(f"job {job_id} is not over: it is {view.state}")
        return self.add(name=view.name, **({"output_dir": output_dir} if output_dir else {}))

    async def drain(self, why: str | None, *, uid: int) -> dict[str, Any]:
        self.drained = Drain(since=1.7e9, uid=uid, why=why)
        return self.health()

    async def test_notices(
        self, places: Collection[str], kinds: Collection[str]
    ) -> list[dict[str, Any]]:
        known = {"lab": ("slack", True, "status 200"), "me": ("email", False, "status 75")}
        if unknown := sorted(set(places) - {*known}):
            raise BadRequest(f"place {unknown[0]} is not in the configuration")
        return [
            {
                "place": name,
                "service": known[name][0],
                "notice": kind,
                "delivered": known[name][1],
                "answer": known[name][2],
            }
            for name in places or known
            for kind in kinds or ("failed",)
        ]

    async def undrain(self, *, uid: int) -> dict[str, Any]:
        self.drained = None
        return self.health()

    async def clean(self, request: CleanRequest, *, uid: int, of: int | None) -> Cleaned:
        self.cleans.append(request)
        gone: list[CleanedJob] = []
        kept: list[KeptJob] = []
        for job_id in request.jobs or sorted(self.views):
            view = self.views.get(job_id)
            if view is not None and of not in (None, view.uid):
                why = f"it belongs to uid {view.uid}"
                kept += [KeptJob(id=job_id, name="", why=why)] if request.jobs else []
                continue
            if view is None:
                why = f"job {job_id} does not exist"
                kept.append(KeptJob(id=job_id, name="", why=why, gone=True))
            elif view.state not in TERMINAL:
                if request.jobs:
                    why = f"it is {view.state}; only a finished job can be removed"
                    kept.append(KeptJob(id=job_id, name=view.name, why=why))
            else:
                outputs = (view.output_dir,) if request.outputs else ()
                gone.append(
                    CleanedJob(
                        id=view.id,
                        name=view.name,
                        state=view.state,
                        ended=view.ended,
                        size_bytes=3 << 20,
                        outputs=outputs,
                    )
                )
                if not request.dry_run:
                    del self.views[job_id]
        return Cleaned(jobs=tuple(gone), kept=tuple(kept))

    async def events(self, since: int, wait: float) -> list[Event]:
        found = [event for event in self.feed if event.seq > since]
        if not found and wait:
            await asyncio.sleep(min(wait, 0.05))
        return found

    async def curves(self, job_id: int, points: int) -> dict[str, Any]:
        job = await self.job(job_id)
        run = RunCurves()
        run.add(job_id, 1, 2, read_records(self.run_dir(job_id, 1)))
        tree = run.to_json(points)
        return {"job": job_id, **tree, "follow": tree["follow"] if job.attempts else None}

    async def checkpoints(self, job_id: int) -> dict[str, Any]:
        return checkpoint_tree((await self.job(job_id)).output_dir)

    async def predictions(
        self, job_id: int, step: int | None, first: int, count: int
    ) -> dict[str, Any]:
        return prediction_rows((await self.job(job_id)).output_dir, step, first, count)

    async def examples(self, job_id: int, show: int, wait: float) -> dict[str, Any]:
        job = await self.job(job_id)
        found: dict[str, Any] = {"notes": [], "sample": None, "problem": None}
        return {"job": job.id, "ready": wait > 0, **found}

    def run_dir(self, job_id: int, attempt: int) -> Path:
        return self.state_dir / "jobs" / str(job_id) / f"attempt-{attempt}"

    async def machine(self) -> dict[str, Any]:
        busy = fake_gpu(0, used_gib=61.2, processes=[GpuProcess(812, 60 << 30)])
        snapshot = SnapshotSource(FakeProbe([busy, *map(fake_gpu, range(1, self.gpus))])).read()
        return {"snapshot": snapshot.to_json(), "leases": self.leases}

    async def history(self, seconds: int, points: int) -> dict[str, Any]:
        if self.past is not None:
            return self.past
        columns = {"mean": [0.5, None], "most": [1.0, None]}
        times = [seconds, seconds + points]
        return {
            "step_seconds": 1,
            "times": times,
            "series": {"host.cpu_percent": columns},
            "trouble": None,
        }

    async def picture(self, job_id: int, step: int) -> str:
        if self.error is not None:
            raise self.error
        return self.document or f"<!doctype html><title>{job_id} at {step}</title>"

    def peaks(self, job_id: int | None, limit: int) -> list[dict[str, Any]]:
        peak = {"attempt": 1, "ended": None, "host_bytes": 5, "gpu_bytes": None}
        more = {"uid": 7, "name": "secret", "gpu_reported_bytes": None}
        return [{"job_id": job_id or 1, **peak, **more}][:limit]

    def shares(self) -> dict[str, Any]:
        users = [{**SHARE, "uid": 7, "name": "anna"}, {**SHARE, "factor": 0.25, "used": 1.0}]
        return {"half_life_seconds": 604800.0, "fair": True, "users": users}

    def health(self) -> dict[str, Any]:
        drain = None if self.drained is None else self.drained.to_json()
        newest = self.feed[-1].seq if self.feed else 0
        known = {"version": "0", "pid": 1, "schema": 1, "uptime_seconds": 2.0}
        return {**known, "last_event": newest, "drain": drain}

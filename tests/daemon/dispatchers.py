"""An engine in the test's own event loop: GPUs that are only told of, ranks that only pretend."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict, Unpack

from harness.fake_gpu_probe import FakeProbe
from tests.daemon.asking import ask_thread
from tests.daemon.fake_daemon import check_python, command
from tests.daemon.forked_supervisors import spawn_forked
from tests.daemon.made_attempts import own_token
from tests.daemon.run_files import check_names
from tests.daemon.waiting import wait_async
from zerotools.io.files.mounts import ReadMounts, read_mounts
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.sensors.numa import NumaTopology, ReadTopology
from zerotools.sensors.snapshot_source import SnapshotSource
from zerotoolsd.attempts import recover_lost_attempts
from zerotoolsd.attempts.backends.choose_systemd_or_child import CHILDREN, LaunchBackend
from zerotoolsd.attempts.make_attempt_plan import LaunchSettings, RankCommand
from zerotoolsd.attempts.start_attempt import HostReaders
from zerotoolsd.config.config_tables import GpusConfig, LimitsConfig
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.queue.fault_isolation import Touch
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.queue.store import Store
from zerotoolsd.resources.snapshot_thread import SnapshotCache
from zerotoolsd.service.admission.run_rank_checks import run_rank_checks
from zerotoolsd.service.answer_requests import JobRequests
from zerotoolsd.service.submission import Rehearsal
from zerotoolsd.supervisor.attempt_plan import REQUEST
from zerotoolsd.supervisor.durable_files import write_json
from zerotoolsd.users.served_users import OWN_ONLY, ServedUsers

CONFIG = replace(Config(), limits=LimitsConfig(cpu_ranks=8), gpus=GpusConfig(locks=""))


@dataclass
class Running:
    """An engine that runs, its service, and what its probe sees."""

    engine: Dispatcher
    service: JobRequests
    probe: FakeProbe

    async def reach(self, job_id: int, *states: str) -> JobView:
        """The job, once it is in one of these states."""

        async def reached() -> JobView | None:
            if self.engine.store.job(job_id).state not in states:
                return None  # a view takes milliseconds, and is asked for many times
            job = await self.service.job(job_id)
            return job if job.state in states else None

        found = await wait_async(reached, f"job {job_id} to be {' or '.join(states)}")
        assert found is not None
        return found

    async def waits(self, job_id: int) -> str:
        """Why the job waits, once that is said."""

        async def said() -> str | None:
            return self.engine.waits.get(job_id)

        return str(await wait_async(said, f"job {job_id} to wait"))

    async def waits_for_release(self, job_id: int) -> None:
        """Its first rank does what stands before `release`, and waits."""
        await self.reach(job_id, "running")

        async def waiting() -> bool:
            return (self.service.run_dir(job_id, 1) / "waiting-0").exists()

        await wait_async(waiting, f"job {job_id} to wait for its release")

    def release(self, job_id: int, attempt: int = 1) -> None:
        """Let the ranks that wait for it go on."""
        (self.service.run_dir(job_id, attempt) / "release").touch()


def one_node(*, cores: bool = False) -> NumaTopology:
    """So that nothing is said of nodes, whatever machine the tests run on."""
    return NumaTopology()


class Parts(TypedDict, total=False):
    """What a test may put in the place of the daemon's own."""

    touch: Touch
    command: RankCommand
    way: LaunchBackend
    users: ServedUsers
    mounted: ReadMounts
    topology: ReadTopology


@asynccontextmanager
async def running(
    state: Path,
    probe: FakeProbe | None = None,
    config: Config | None = None,
    *,
    leave: bool = False,
    rehearse: Rehearsal = run_rank_checks,
    rebuild: bool = False,
    **parts: Unpack[Parts],
) -> AsyncIterator[Running]:
    """An engine on `state`; in the end its attempts are killed, unless they are to be left."""
    state.mkdir(exist_ok=True)
    probe = probe or FakeProbe(error="no NVML")
    store = Store(state, rebuild=rebuild)
    recover_lost_attempts.add_missing_from_runs(state, store, time.time())
    machine = SnapshotCache(SnapshotSource(probe))
    machine.lists_processes = True  # also where these tests run in a container
    engine = Dispatcher(
        state_dir=state,
        store=store,
        machine=machine,
        ask=ask_thread,
        launch=LaunchSettings(
            config=config or CONFIG,
            command=parts.get("command", command),
            umask=0o022,
            backend=parts.get("way", CHILDREN),
            spawn=spawn_forked,
        ),
        touch=parts.get("touch", lambda job_id, doing: None),
        users=parts.get("users", OWN_ONLY),
        host=HostReaders(
            mounts=parts.get("mounted", read_mounts), topology=parts.get("topology", one_node)
        ),
    )
    stop = asyncio.Event()
    task = asyncio.create_task(engine.run(stop))
    service = JobRequests(engine, check_python=check_python, rehearse=rehearse, ask=ask_thread)
    try:
        yield Running(engine, service, probe)
    finally:
        stop.set()
        await task
        if not leave:
            _end_attempts(store)
        store.close()
        machine.close()
    check_names(state / "jobs")


def _end_attempts(store: Store) -> None:
    for job in store.jobs():
        for attempt in store.attempts(job.id):
            if not Path(attempt.run_dir).exists():
                continue
            request: Mapping[str, object] = {"reason": "the test is over", "grace_seconds": 0}
            write_json(Path(attempt.run_dir) / REQUEST, request)


def leave_attempt(
    state: Path,
    spec: JobSpec,
    *,
    attempt_state: str = "running",
    gpu_uuids: tuple[str, ...] = (),
    token: str | None = None,
) -> Path:
    """The next job of an earlier daemon, with an attempt in this state; its empty run directory."""
    state.mkdir(exist_ok=True)
    store = Store(state)
    job, _ = store.submit(
        uid=0,
        name=spec.name,
        spec=spec,
        output_dir=None,
        default_output=state / "jobs",
        idempotency_key=None,
        now=1.0,
    )
    run = state / "jobs" / str(job.id) / "attempt-1"
    run.mkdir(parents=True)
    attempt = AttemptRow(
        job_id=job.id,
        number=1,
        token=token or own_token(),
        state=attempt_state,
        run_dir=str(run),
        gpu_uuids=gpu_uuids,
        resumed_from=None,
        started=1.0,
        ended=None,
        result=None,
    )
    with store.change(job, JobStatus(state=attempt_state), "admit", now=1.0, attempt=1) as change:
        change.add_attempt(attempt)
    store.close()
    return run

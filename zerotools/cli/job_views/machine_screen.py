"""The machine as text: GPUs with their processes, host memory, pressure, running jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zerotools.cli.job_views.describe import Job, ranks, steps, title, watched_process
from zerotools.cli.job_views.process_owners import Owners, find_owners
from zerotools.cli.output import render
from zerotools.core.errors import DaemonError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import ACTIVE
from zerotools.jobs.tables.adopted import AdoptedProcess
from zerotools.sensors.snapshot import Gpu, Host, Snapshot, Stall
from zerotools.sensors.source import SnapshotSource

HEADERS = ("GPU", "name", "used GiB", "free GiB", "of GiB", "busy", "temp", "power", "leased to")
RIGHT = ("GPU", "used GiB", "free GiB", "of GiB", "busy", "temp", "power")


@dataclass(frozen=True)
class MonitorView:
    """What is drawn. `daemon` says who answered; `leases` maps a GPU's UUID to a job's title."""

    snapshot: Snapshot
    daemon: str
    jobs: Sequence[Job] = ()
    leases: dict[str, str] = field(default_factory=dict)


def observe(source: SnapshotSource, client: DaemonClient) -> tuple[MonitorView, dict[str, Any]]:
    """The machine, with the daemon's jobs if one answers; as a view and as JSON."""
    snapshot = source.read()
    tree: dict[str, Any] = {"snapshot": snapshot.to_json(), "jobs": None, "leases": None}
    try:
        jobs = {job["id"]: job for state in ACTIVE for job in client.jobs(state=state)}
        leases = client.machine()["leases"]
    except DaemonError as error:
        return MonitorView(snapshot, daemon=_no_daemon(error, client)), {
            **tree,
            "daemon_error": str(error),
        }
    titles = {job_id: title(job) for job_id, job in jobs.items()}
    held = {
        lease["gpu_uuid"]: titles.get(lease["job_id"], f"job {lease['job_id']}") for lease in leases
    }
    listed = [jobs[job_id] for job_id in sorted(jobs)]
    view = MonitorView(snapshot, daemon="none is running", jobs=listed, leases=held)
    return view, {**tree, "jobs": listed, "leases": leases, "daemon_error": None}


def _no_daemon(error: DaemonError, client: DaemonClient) -> str:
    if isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError):
        return f"no daemon answers at {client.socket}"
    return str(error)


def owners_now(jobs: Sequence[Job]) -> Owners:
    """Whose the processes of the machine are at this moment."""
    run_dirs = {job["attempt"]["run_dir"]: title(job) for job in jobs if job["attempt"]}
    return find_owners(run_dirs, _watched(jobs))


def _watched(jobs: Sequence[Mapping[str, Any]]) -> dict[str, AdoptedProcess]:
    """Processes that jobs watch, by the run directory of the attempt."""
    return {
        job["attempt"]["run_dir"]: watched
        for job in jobs
        if job["attempt"] and (watched := watched_process(job)) is not None
    }


def draw(view: MonitorView, owners: Owners, columns: int | None) -> list[str]:
    """Lines of the screen; `owners` says whose the processes are."""
    lines = _gpus(view, owners, columns)
    lines += ["", *_host(view.snapshot.host), "", *_jobs(view, owners)]
    return lines if columns is None else [render.shorten(line, columns) for line in lines]


def _gpus(view: MonitorView, owners: Owners, columns: int | None) -> list[str]:
    snapshot = view.snapshot
    if not snapshot.gpus:
        return [f"GPUs  {snapshot.gpus_error or 'NVML answers, and reports none'}"]
    lines = []
    if snapshot.gpus_error:
        age = render.duration(snapshot.gpus_age_seconds)
        lines.append(f"GPUs  as of {age} ago: {render.clean(snapshot.gpus_error)}")
    listed = render.table(
        HEADERS,
        [_gpu_row(gpu, view.leases) for gpu in snapshot.gpus],
        right=RIGHT,
        columns=columns,
    )
    lines.append(listed[0])
    for gpu, line in zip(snapshot.gpus, listed[1:], strict=True):
        lines.append(line)
        lines += [f"     {text}" for text in _details(gpu, owners)]
    return lines


def _gpu_row(gpu: Gpu, leases: dict[str, str]) -> tuple[str, ...]:
    return (
        str(gpu.index),
        gpu.name or "?",
        render.gib(gpu.memory_used_bytes),
        render.gib(gpu.memory_free_bytes),
        render.gib(gpu.memory_total_bytes),
        _with_unit(gpu.utilization_percent, "%"),
        _with_unit(gpu.temperature_celsius, "°C"),
        _with_unit(gpu.power_watts, "W"),
        leases.get(gpu.uuid or "", render.UNKNOWN),
    )


def _details(gpu: Gpu, owners: Owners) -> list[str]:
    if gpu.error:
        return [render.clean(gpu.error)]
    held = sorted(gpu.processes, key=lambda process: -(process.memory_used_bytes or 0))
    note = [render.clean(gpu.unmeasured)] if gpu.unmeasured else []
    return note + [
        f"pid {process.pid}  {render.size(process.memory_used_bytes)}  "
        f"{render.clean(owners.of(process.pid))}"
        for process in held
    ]


def _with_unit(value: float | None, unit: str) -> str:
    return render.UNKNOWN if value is None else f"{value:.0f} {unit}"


def _host(host: Host) -> list[str]:
    memory = (
        f"{render.size(host.memory_used_bytes)} used, "
        f"{render.size(host.memory_available_bytes)} available, "
        f"of {render.size(host.memory_total_bytes)}"
    )
    swap = "none"
    if host.swap_total_bytes:
        swap = f"{render.size(host.swap_used_bytes)} of {render.size(host.swap_total_bytes)} used"
    busy = "" if host.cpu_percent is None else f"{host.cpu_percent:.0f} % busy, "
    load = ", ".join(f"{value:.2f}" for value in host.load_average)
    return render.fields(
        [
            ("host memory", memory),
            ("swap", swap),
            ("CPU", f"{busy}{host.cpu_count} cores, load {load}"),
            ("pressure", _pressure(host)),
        ]
    )


def _pressure(host: Host) -> str:
    if host.pressure is None:
        return host.missing.get("pressure", "unknown")
    stalls = {
        "memory": host.pressure.memory,
        "CPU": host.pressure.cpu,
        "disk": host.pressure.io,
    }
    parts = [f"{name} {_stall(stall)}" for name, stall in stalls.items() if stall is not None]
    return f"{', '.join(parts)} (time lost waiting, last 10 s)"


def _stall(stall: Stall) -> str:
    return f"{stall.some_avg10_percent:.1f} %"


def _jobs(view: MonitorView, owners: Owners) -> list[str]:
    if not view.jobs:
        return [f"jobs  {render.clean(view.daemon)}"]
    rows = [
        (
            title(job),
            job["state"].replace("_", " "),
            ranks(job),
            steps(job),
            render.size(owners.host_bytes(job["attempt"]["run_dir"]) if job["attempt"] else None),
        )
        for job in view.jobs
    ]
    headers = ("job", "state", "ranks", "step", "host memory")
    return render.table(headers, rows, right=("ranks", "step", "host memory"))

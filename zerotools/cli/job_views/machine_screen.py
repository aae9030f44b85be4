"""The machine as text: GPUs with their processes, host memory, pressure, running jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zerotools.cli.job_views.describe import Job, ranks, steps, title
from zerotools.cli.job_views.process_owners import Owners
from zerotools.cli.output import render
from zerotools.sensors.snapshot import Gpu, Host, Snapshot, Stall

HEADERS = ("GPU", "name", "used GiB", "free GiB", "of GiB", "busy", "temp", "power", "leased to")
RIGHT = ("GPU", "used GiB", "free GiB", "of GiB", "busy", "temp", "power")


@dataclass(frozen=True)
class MonitorView:
    """What is drawn. `daemon` says who answered; `leases` maps a GPU's UUID to a job's title."""

    snapshot: Snapshot
    daemon: str
    jobs: Sequence[Job] = ()
    leases: dict[str, str] = field(default_factory=dict)


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

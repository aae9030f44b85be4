"""`zerotools monitor`: GPUs with their processes, host memory, pressure and running jobs, printed
once or repeatedly."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

from zerotools.cli.job_views.describe_job import (
    Job,
    paint_state,
    ranks,
    state_text,
    steps,
    title,
    watched_process,
)
from zerotools.cli.job_views.process_owners import Owners, find_owners
from zerotools.cli.output import render
from zerotools.cli.output.colours import paint
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import DaemonError, DaemonUnreachable, ZerotoolsError
from zerotools.jobs.client.daemon_address import machine_behind
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile_tables.script import AdoptedProcess
from zerotools.jobs.states import ACTIVE
from zerotools.sensors.snapshot import Gpu, Host, Snapshot, Stall
from zerotools.sensors.snapshot_source import SnapshotSource

SLOWED, LEASED = "slowed by", "leased to"
RIGHT = ("GPU", "used GiB", "free GiB", "of GiB", "busy", "temp", "power", "clock")
GIVING_WAY = ("clock", SLOWED, "name", "free GiB", "power", "of GiB", "temp")
"""If the table is too wide, these columns are left out, the first one first."""
PIPED_COLUMNS = 80
"""The width of the table without a terminal. Its texts are not cut then."""
FEWEST_TITLE, LONGEST_TITLE = 16, 32
"""On a terminal, the name of a job is cut to at least this many columns. Columns are left out for
the longer number of columns of a name, and not for more.
"""
CALM = ("power limit", "clocks set by hand", "display clocks")
"""Reasons for slow clocks that are not problems, such as the power limit of a busy GPU."""
MOST_XIDS = 4
FRESH_SECONDS = 30.0
"""A daemon's snapshot that is older than this many seconds is not used. An idle daemon takes
snapshots less often.
"""


@dataclass(frozen=True)
class MonitorView:
    """The values that one screen shows. If there are no jobs, the screen shows the text `daemon`
    instead, such as the reason why no daemon answers. `leases` maps the UUID of a GPU to the title
    of the job that uses it."""

    snapshot: Snapshot
    daemon: str
    jobs: Sequence[Job] = ()
    leases: dict[str, str] = field(default_factory=dict)


def observe(source: SnapshotSource, client: DaemonClient) -> tuple[MonitorView, dict[str, Any]]:
    """Read the state of the machine, and the jobs if a daemon answers. Return both, as a view and
    as JSON.
    """
    is_here = machine_behind(client.socket) is None
    if is_here:
        source.begin()
    try:
        jobs = {job["id"]: job for state in ACTIVE for job in client.jobs(state=state)}
        machine = client.machine()
    except DaemonError as error:
        if not is_here:
            raise
        own = source.read()
        alone = {"snapshot": own.to_json(), "jobs": None, "leases": None}
        view = MonitorView(own, daemon=daemon_trouble(error, client))
        return view, {**alone, "daemon_error": str(error)}
    snapshot = snapshot_of(source.read() if is_here else None, machine)
    leases = machine["leases"]
    titles = {job_id: title(job) for job_id, job in jobs.items()}
    held = {
        lease["gpu_uuid"]: titles.get(lease["job_id"], f"job {lease['job_id']}") for lease in leases
    }
    listed = [jobs[job_id] for job_id in sorted(jobs)]
    view = MonitorView(snapshot, daemon="none is running", jobs=listed, leases=held)
    tree = {"snapshot": snapshot.to_json(), "jobs": listed, "leases": leases}
    return view, {**tree, "daemon_error": None}


def snapshot_of(own: Snapshot | None, machine: Mapping[str, Any]) -> Snapshot:
    """Return a snapshot of the machine that the daemon describes in its response `machine`.

    `own` is the snapshot that this process took; None if the daemon is on another machine. Missing
    values of `own` are filled in from the daemon's snapshot.

    Raises:
        DaemonUnreachable: the daemon is on another machine, and has no snapshot yet.
    """
    found = machine.get("snapshot")
    if found is not None:
        theirs = Snapshot.from_json(found)
        return theirs if own is None else filled_in(own, theirs)
    if own is None:
        raise DaemonUnreachable("the daemon has not measured its machine yet; try again")
    return own


def filled_in(own: Snapshot, theirs: Snapshot) -> Snapshot:
    """Return the snapshot `own`, with missing values filled in from `theirs`, the snapshot of
    another process.

    These values are measurements of the host that need two readings, and earlier XIDs of GPUs. If
    this process has no NVML, all GPUs are taken from `theirs`: the other process may have found
    NVML by another `LD_LIBRARY_PATH`. If the two snapshots are too far apart in time, `theirs` is
    ignored.
    """
    if abs(own.taken_at - theirs.taken_at) > FRESH_SECONDS:
        return own
    known = {
        name: value
        for name in own.host.missing
        if (value := getattr(theirs.host, name, None)) is not None
    }
    missing = {name: why for name, why in own.host.missing.items() if name not in known}
    if own.gpus_error is not None and not own.gpus_silent and theirs.gpus_error is None:
        own = replace(own, gpus=theirs.gpus, gpus_error=None)
    xids = {gpu.uuid: gpu.xids for gpu in theirs.gpus}
    gpus = tuple(
        replace(gpu, xids=max(gpu.xids, xids.get(gpu.uuid, ()), key=len)) for gpu in own.gpus
    )
    return replace(own, host=replace(own.host, **known, missing=missing), gpus=gpus)


def daemon_trouble(error: ZerotoolsError, client: DaemonClient) -> str:
    """Return a sentence with the reason why the daemon does not answer."""
    if isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError):
        return f"no daemon answers at {client.socket}"
    return str(error)


def owners_now(jobs: Sequence[Job]) -> Owners:
    """Return the current owners of all processes on the machine."""
    run_dirs = {job["attempt"]["run_dir"]: title(job) for job in jobs if job["attempt"]}
    return find_owners(run_dirs, _watched(jobs))


def _watched(jobs: Sequence[Mapping[str, Any]]) -> dict[str, AdoptedProcess]:
    """Return the processes that jobs watch, keyed by the run directory of the job's attempt."""
    return {
        job["attempt"]["run_dir"]: watched
        for job in jobs
        if job["attempt"] and (watched := watched_process(job)) is not None
    }


def draw(view: MonitorView, owners: Owners, columns: int | None) -> list[str]:
    """Return the lines of the screen. `owners` has the job or user of each process."""
    lines = [_painted(*line, columns) for line in _gpus(view, owners, columns)]
    host = [_painted(line, "", columns) for line in _host(view.snapshot.host, columns)]
    return [*lines, "", *host, "", *_jobs(view, owners, columns)]


def _painted(text: str, meaning: str, columns: int | None) -> str:
    """Return a line in the colour of its meaning, cut at the width of the terminal."""
    shown = text if columns is None else render.shorten(text, columns)
    return paint(shown, meaning, sys.stdout) if meaning else shown


def _gpus(view: MonitorView, owners: Owners, columns: int | None) -> list[tuple[str, str]]:
    """Return the lines about GPUs and their processes, each with the meaning that selects its
    colour, such as `warning` ("": no colour)."""
    snapshot = view.snapshot
    if not snapshot.gpus:
        return [(f"GPUs  {snapshot.gpus_error or 'NVML works, but reports no GPU'}", "")]
    lines = list[tuple[str, str]]()
    if snapshot.gpus_error:
        age = render.duration(snapshot.gpus_age_seconds)
        lines.append((f"GPUs  as of {age} ago: {render.clean(snapshot.gpus_error)}", "warning"))
    rows = [_gpu_row(gpu, view.leases) for gpu in snapshot.gpus]
    names, most = list(rows[0]), columns or PIPED_COLUMNS
    for given in ("", *GIVING_WAY):
        names = [name for name in names if name != given]
        texts = [[row[name] for name in names] for row in rows]
        longest = LONGEST_TITLE if columns else most
        short = [[*cells[:-1], render.shorten(cells[-1], longest)] for cells in texts]
        if all(render.width(line) <= most for line in render.table(names, short, right=RIGHT)):
            break
    listed = render.table(names, texts, right=RIGHT, columns=columns)
    lines.append((listed[0], "quiet"))
    for gpu, line in zip(snapshot.gpus, listed[1:], strict=True):
        lines.append((line, ""))
        bad = ", ".join(reason for reason in gpu.throttle_reasons or () if reason not in CALM)
        lines += [(f"     slowed by {bad}", "warning")] if bad and SLOWED not in names else []
        lines += [(f"     {text}", meaning) for text, meaning in _details(gpu, owners)]
    return lines


def _gpu_row(gpu: Gpu, leases: dict[str, str]) -> dict[str, str]:
    """Return the cells of a GPU keyed by the name of their column, from left to right."""
    return {
        "GPU": str(gpu.index),
        "name": gpu.name or "?",
        "used GiB": render.gib(gpu.memory_used_bytes),
        "free GiB": render.gib(gpu.memory_free_bytes),
        "of GiB": render.gib(gpu.memory_total_bytes),
        "busy": _with_unit(gpu.utilization_percent, "%"),
        "temp": _with_unit(gpu.temperature_celsius, "°C"),
        "power": _with_unit(gpu.power_watts, "W"),
        "clock": _with_unit(gpu.sm_clock_mhz, "MHz"),
        SLOWED: ", ".join(gpu.throttle_reasons or ()) or render.UNKNOWN,
        LEASED: leases.get(gpu.uuid or "", render.UNKNOWN),
    }


def _details(gpu: Gpu, owners: Owners) -> list[tuple[str, str]]:
    """Return the problems and the processes of a GPU as lines, in the form of `_gpus`."""
    if gpu.error:
        return [(render.clean(gpu.error), "bad")]
    held = sorted(gpu.processes, key=lambda process: -(process.memory_used_bytes or 0))
    notes = [(render.clean(gpu.unmeasured), "")] if gpu.unmeasured else []
    if gpu.xids:
        codes = ", ".join(f"XID {xid.code}" for xid in gpu.xids[-MOST_XIDS:])
        notes.append((f"the driver reported {codes}; the newest comes last", "bad"))
    if gpu.ecc_uncorrected_errors:
        errors = count_text(gpu.ecc_uncorrected_errors, "uncorrected error")
        notes.append((f"{errors} of GPU memory (ECC) since the driver was loaded", "bad"))
    for process in held:
        size, owner = render.size(process.memory_used_bytes), render.clean(owners.of(process.pid))
        notes.append((f"pid {process.pid}  {size}  {owner}", ""))
    return notes


def _with_unit(value: float | None, unit: str) -> str:
    return render.UNKNOWN if value is None else f"{value:.0f} {unit}"


def _host(host: Host, columns: int | None) -> list[str]:
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
            ("network", _network(host)),
            ("pressure", _pressure(host)),
        ],
        columns=columns,
    )


def _network(host: Host) -> str:
    came, went = host.network_received_bytes_per_second, host.network_sent_bytes_per_second
    if came is None or went is None:
        return ""
    return f"{render.size(came)}/s received, {render.size(went)}/s sent"


def _pressure(host: Host) -> str:
    if host.pressure is None:
        return host.missing.get("pressure", "unknown")
    stalls = {
        "memory": host.pressure.memory,
        "CPU": host.pressure.cpu,
        "disk": host.pressure.io,
    }
    parts = [f"{name} {_stall(stall)}" for name, stall in stalls.items() if stall is not None]
    return f"{', '.join(parts)} (time waiting, last 10 s)"


def _stall(stall: Stall) -> str:
    return f"{stall.some_avg10_percent:.1f} %"


def _jobs(view: MonitorView, owners: Owners, columns: int | None) -> list[str]:
    if not view.jobs:
        return [_painted(f"jobs  {render.clean(view.daemon)}", "", columns)]
    rows = [
        (
            title(job),
            state_text(job),
            ranks(job),
            steps(job),
            render.size(owners.host_bytes(job["attempt"]["run_dir"]) if job["attempt"] else None),
        )
        for job in view.jobs
    ]
    headers = ("job", "state", "ranks", "step", "host memory")
    right = ("ranks", "step", "host memory")
    if columns is not None:
        others = render.table(headers[1:], [row[1:] for row in rows], right=right)
        room = max(FEWEST_TITLE, columns - 2 - max(map(render.width, others)))
        rows = [(render.shorten(row[0], room), *row[1:]) for row in rows]
    listed = render.table(headers, rows, right=right)
    if columns is not None and any(render.width(line) > columns for line in listed):
        return [render.shorten(line, columns) for line in listed]
    states = {"state": lambda state: paint_state(state, sys.stdout)}
    header, *lines = render.table(headers, rows, right=right, paint=states)
    return [paint(header, "quiet", sys.stdout), *lines]


ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"


def show_once(source: SnapshotSource, client: DaemonClient, *, as_json: bool) -> None:
    """Read the machine once and print the result."""
    view, tree = observe(source, client)
    if as_json:
        render.print_json(tree)
    else:
        render.print_lines(lines_of(view, render.terminal_columns()))


def lines_of(view: MonitorView, columns: int | None) -> list[str]:
    """Read the owners of all processes, and return the lines of the screen."""
    return draw(view, owners_now(view.jobs), columns)


def watch(source: SnapshotSource, client: DaemonClient, interval: float, *, as_json: bool) -> None:
    """Read the machine every `interval` seconds and print the result, until Ctrl-C. With `as_json`,
    each result is one line of JSON.
    """
    stream = sys.stdout
    redraw = stream.isatty() and not as_json
    with _alternate_screen(stream) if redraw else _plainly():
        while True:
            view, tree = observe(source, client)
            if as_json:
                render.print_json_line(tree)
            elif redraw:
                _redraw(stream, lines_of(view, render.terminal_columns(stream)), view.snapshot)
            else:
                stream.write("\n".join([*lines_of(view, None), "", ""]))
            stream.flush()
            time.sleep(interval)


@contextmanager
def _plainly() -> Iterator[None]:
    yield


@contextmanager
def _alternate_screen(stream: TextIO) -> Iterator[None]:
    """Show the alternate screen of the terminal, and at the end show the former contents again."""
    stream.write(ENTER)
    try:
        yield
    finally:
        stream.write(LEAVE)
        stream.flush()


def _redraw(stream: TextIO, lines: list[str], snapshot: Snapshot) -> None:
    """Write the new lines over the old ones. The screen is not cleared first, because it would
    flicker.
    """
    size = shutil.get_terminal_size()
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.taken_at))
    shown = [render.shorten(f"zerotools monitor  {clock}  (Ctrl-C ends it)", size.columns), ""]
    shown += lines
    if len(shown) > size.lines:
        shown = [*shown[: size.lines - 1], f"… {len(shown) - size.lines + 1} more lines"]
    stream.write("\x1b[H" + "\x1b[K\r\n".join(shown) + "\x1b[K\x1b[J")

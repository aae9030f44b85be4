"""`zerotools doctor`: find problems of this machine that could stop jobs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from zerotools.cli.job_views.machine_screen import snapshot_of
from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.cli.output import render
from zerotools.core.errors import BadRequest, DaemonError
from zerotools.jobs.client.daemon_address import default_socket, default_state_dir, machine_behind
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.client.daemon_compatibility import why_no_daemon
from zerotools.jobs.doctor.bug_report import bug_report, write_report
from zerotools.jobs.doctor.daemon_and_service_manager import (
    check_daemon_package,
    check_drain,
    check_fork_servers,
    check_service,
    manager_group,
)
from zerotools.jobs.doctor.directories_and_locks import check_free_space, check_locks, check_state
from zerotools.jobs.doctor.finding import LEVELS, OK, PROBLEM, DoctorFinding
from zerotools.jobs.doctor.gpus import (
    check_fences,
    check_gpu_choice,
    check_gpu_locks,
    check_gpus,
    check_memory_nodes,
)
from zerotools.jobs.doctor.kernel_and_clock import check_kernel
from zerotools.jobs.doctor.python_and_compilers import ask_python, check_compilers, check_python
from zerotools.sensors.snapshot import Snapshot
from zerotools.sensors.snapshot_source import SnapshotSource

EXIT_PROBLEMS = 1
DAEMON_SECONDS = 2.0


@click.command("doctor")
@click.option(
    "--python",
    metavar="PATH",
    default=sys.executable,
    help="The Python interpreter of your jobs.  [default: the interpreter that runs zerotools]",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write a bug report: versions, machine and findings as JSON, without secrets.",
)
@socket_option
@json_option
def command(python: str, report: Path | None, socket: Path | None, as_json: bool) -> int:
    """Find problems of this machine that could stop jobs, with advice for each.

    The command checks GPUs, memory nodes, cgroups, the launch of processes, memory pressure, the
    clock, free space and inodes of the disks, permissions, the daemon, torch, NCCL, compilers,
    remaining processes and locks. It changes nothing. The exit status is 1 if there is a problem.
    If there are only warnings, it is 0.
    """
    socket = socket or default_socket()
    told = _machine(socket)
    with SnapshotSource() as source:
        snapshot = source.read()
    if machine_behind(socket) is None:
        snapshot = snapshot_of(snapshot, told)
    health = _health(socket)
    findings = list(examine(python, socket, snapshot=snapshot, machine=told, health=health))
    if report is not None:
        _write(report, findings, python=python, snapshot=snapshot, health=health)
    if as_json:
        render.print_json({"findings": [finding.to_json() for finding in findings]})
    else:
        render.print_lines(lines_of(findings))
    return EXIT_PROBLEMS if any(finding.level == PROBLEM for finding in findings) else 0


def examine(
    python: str,
    socket: Path,
    *,
    snapshot: Snapshot,
    machine: Mapping[str, Any],
    health: Mapping[str, Any],
) -> Iterator[DoctorFinding]:
    """Yield a finding for each problem of this machine, and for each part without a problem.

    `machine` has the daemon's facts about the machine, and `health` its facts about itself. Both
    are empty if no daemon answers.
    """
    state_dir = default_state_dir()
    if not machine:
        yield from check_daemon_package(why_no_daemon())
    yield from check_drain(health.get("drain"))
    leased = frozenset(str(lease["gpu_uuid"]) for lease in machine.get("leases", ()))
    seen = machine.get("snapshot", {}).get("gpus", ())
    excluded = frozenset(str(gpu.get("uuid")) for gpu in seen if gpu.get("excluded"))
    yield from check_gpus(snapshot, leased, excluded)
    yield from check_gpu_choice(machine.get("gpu_choice"))
    yield from check_fences(machine.get("leases", ()))
    yield from check_memory_nodes(snapshot.gpus, machine.get("numa"))
    if snapshot.gpus:
        yield from check_gpu_locks(machine.get("gpu_locks"))
    launch, uid = machine.get("launch"), os.geteuid()
    yield from check_kernel(manager=manager_group(launch, uid))
    yield from check_service(launch, uid)
    yield from check_fork_servers(machine.get("warm_start"), launch)
    places = {
        "the queue": state_dir,
        "this directory": Path.cwd(),
        "temporary files": Path(tempfile.gettempdir()),
        "your home": Path(os.environ.get("HOME", "/")),
    }
    yield from check_free_space(places)
    yield from check_state(state_dir, socket, os.geteuid())
    has_gpus = bool(snapshot.gpus)
    yield from check_python(python, ask_python(python), has_gpus=has_gpus)
    yield from check_compilers(has_gpus=has_gpus)
    yield from check_locks(os.environ)


def _write(
    path: Path,
    findings: Sequence[DoctorFinding],
    *,
    python: str,
    snapshot: Snapshot,
    health: Mapping[str, Any],
) -> None:
    report = bug_report(
        findings,
        python=python,
        snapshot=snapshot,
        daemon_version=health.get("version"),
        environment=os.environ,
    )
    try:
        write_report(path, report)
    except FileExistsError:
        raise BadRequest(f"{path} exists; name another file for the report") from None
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}; name another file") from None
    click.echo(f"wrote {path}; read it before you publish it", err=True)


def _machine(socket: Path) -> Mapping[str, Any]:
    """Return the daemon's facts about the machine; empty if no daemon answers."""
    try:
        return DaemonClient(socket, timeout_seconds=DAEMON_SECONDS).machine()
    except DaemonError:
        return {}


def _health(socket: Path) -> Mapping[str, Any]:
    try:
        return DaemonClient(socket, timeout_seconds=DAEMON_SECONDS).health()
    except DaemonError:
        return {}


def lines_of(findings: Sequence[DoctorFinding]) -> list[str]:
    """Return the lines to print: first the problems, each with advice, then a line for each part
    without a problem."""
    lines, columns = list[str](), render.terminal_columns()
    for level in reversed(LEVELS[1:]):
        for each in findings:
            if each.level == level:
                said = f"{level}: {each.what}: {render.clean(each.found)}"
                lines += render.folded(said, columns, 4)
                lines += render.folded(f"    {render.clean(each.do or '')}", columns, 4)
    well = [(each.what, each.found) for each in findings if each.level == OK]
    if lines and well:
        lines.append("")
    return lines + render.fields([(f"ok  {what}", found) for what, found in well], columns=columns)

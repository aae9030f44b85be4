"""`zerotools show`: everything about one job."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from zerotools.cli import render
from zerotools.cli.describe import Job, checkpoint_path, is_over, loss, plan, steps, title
from zerotools.cli.options import job_argument, json_option, socket_option
from zerotools.jobs.client import DaemonClient

ATTEMPT_HEADERS = (
    "attempt",
    "state",
    "started",
    "lasted",
    "steps",
    "peak host",
    "peak GPU",
    "exit",
    "why it ended",
)


@click.command("show")
@job_argument
@socket_option
@json_option
def command(job_id: int, socket: Path | None, as_json: bool) -> None:
    """Show one job: its state and why, its attempts with their peaks of memory, its checkpoints.

    Values of environment variables are never shown.
    """
    job = DaemonClient(socket).job(job_id)
    if as_json:
        render.print_json(job)
    else:
        render.print_lines(page(job, render.terminal_columns(sys.stdout)))


def page(job: Job, columns: int | None) -> list[str]:
    """Lines of the page."""
    lines = [f"{title(job)}: {str(job['state']).replace('_', ' ')}"]
    lines += render.fields(_facts(job), indent=2)
    if job["attempts"]:
        rows = [_attempt_row(attempt) for attempt in job["attempts"]]
        right = ("attempt", "lasted", "steps", "peak host", "peak GPU")
        lines += ["", *render.table(ATTEMPT_HEADERS, rows, right=right, columns=columns)]
    lines += ["", "job file"]
    return lines + render.fields(flatten(job["spec"]), indent=2)


def _facts(job: Job) -> Iterator[tuple[str, str]]:
    yield "why", job["reason"] or ""
    yield "plan", plan(job)
    if job["progress"]:
        yield "progress", f"step {steps(job)}, loss {loss(job['progress'])}"
    yield "queued", render.moment(job["created"])
    if job["started"]:
        yield "started", render.moment(job["started"])
    if job["ended"]:
        yield "ended", render.moment(job["ended"])
    yield "output", str(job["output_dir"])
    yield "checkpoint", checkpoint_path(job) or "none yet"
    yield "user", f"uid {job['uid']}"
    yield "log", f"zerotools logs {'' if is_over(job) else '-f '}{job['id']}"


def _attempt_row(attempt: Mapping[str, Any]) -> tuple[str, ...]:
    lasted = None
    if attempt["started"] and attempt["ended"]:
        lasted = attempt["ended"] - attempt["started"]
    return (
        str(attempt["number"]),
        str(attempt["state"]),
        render.moment(attempt["started"]),
        render.duration(lasted),
        str(attempt["steps_done"]),
        render.size(attempt["peak_host_bytes"]),
        render.size(attempt["peak_gpu_bytes"]),
        _exit(attempt),
        attempt["cause"] or "",
    )


def _exit(attempt: Mapping[str, Any]) -> str:
    if attempt["signal"] is not None:
        return f"signal {attempt['signal']}"
    return render.UNKNOWN if attempt["exit_code"] is None else str(attempt["exit_code"])


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`train.steps` and `40` for every key, as a job file would have it."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, json.dumps(value, ensure_ascii=False)

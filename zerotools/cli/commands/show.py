"""`zerotools show`: show the facts about one job, or its curves."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from zerotools.cli.job_actions.job_reference import find_job, jobs_client, shown_jobs_argument
from zerotools.cli.job_actions.wait_for_jobs import waits_for_user
from zerotools.cli.job_views import job_curves
from zerotools.cli.job_views.describe_job import (
    Job,
    checkpoint_path,
    exported_model,
    has_no_heartbeat,
    has_old_step,
    is_over,
    keys_set_by_author,
    loss,
    paint_state,
    plan,
    ranks,
    reason_text,
    since_step,
    state_text,
    steps,
    title,
    uploaded,
    user_of,
    verification,
)
from zerotools.cli.job_views.job_curves import curves_of
from zerotools.cli.job_views.progress_line import evaluation, figures, remaining_time, speed
from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.cli.output import render
from zerotools.cli.output.messages import command_name
from zerotools.core.errors import BadRequest
from zerotools.jobs import states
from zerotools.jobs.client.daemon_address import machine_behind
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile_tables.eval import PREDICTIONS
from zerotools.jobs.states import SUCCEEDED
from zerotools.jobs.text.expand_home import expand_home

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
@shown_jobs_argument
@click.option(
    "--spec", "whole_spec", is_flag=True, help="Also print the job file with every default."
)
@click.option("--plot", is_flag=True, help="Draw the loss, the learning rate and the memory.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --plot: draw into a .png, .svg or .pdf.",
)
@socket_option
@json_option
def command(
    references: tuple[str, ...],
    whole_spec: bool,
    plot: bool,
    output: Path | None,
    socket: Path | None,
    as_json: bool,
) -> None:
    """Show one job: its state with the reason, its attempts with their peak memory, its
    checkpoints.

    JOB is a number or a name; without it, the newest job is meant.

    With --plot, draw the loss, learning rate and memory of each step in the terminal, or with -o as
    a picture (with matplotlib). If the job resumes an earlier job, the steps of that job come
    first. Several JOBs are drawn in one plot.

    Values of environment variables are never shown.
    """
    _check_options(references, plot, output, as_json)
    client = jobs_client(socket, references)
    jobs = [find_job(client, reference) for reference in references or (None,)]
    job = jobs[0]
    if plot and not isinstance(client, DaemonClient):
        raise BadRequest(
            "--plot draws the records of a daemon, but this job has no daemon; read the numbers "
            "in metrics.jsonl in its output_dir"
        )
    if plot:
        assert isinstance(client, DaemonClient)
        job_curves.plot([(title(each), curves_of(client, each)) for each in jobs], output)
    elif as_json:
        render.print_json({"jobs": [job]})
    else:
        columns = render.terminal_columns(sys.stdout)
        is_here = not isinstance(client, DaemonClient) or machine_behind(client.socket) is None
        locks = suspects(job) if is_here else ()
        render.print_lines(page(job, columns, whole_spec=whole_spec, locks=locks))


def _check_options(
    references: tuple[str, ...], plot: bool, output: Path | None, as_json: bool
) -> None:
    if len(references) > 1 and not plot:
        raise BadRequest("--plot is needed for several jobs; add --plot, or name one job")
    if output is not None and not plot:
        raise BadRequest(f"-o {output}: needs --plot; give both")
    if plot and as_json:
        raise BadRequest(
            "--plot draws a chart and prints no JSON; leave --json out, or read the numbers in "
            "metrics.jsonl in the output_dir"
        )
    if output is not None:
        job_curves.check_name(output)


def page(
    job: Job, columns: int | None, *, whole_spec: bool = False, locks: Iterable[str] = ()
) -> list[str]:
    """Return the lines to print. `locks` are lines about lock files that the job may be waiting
    for."""
    state = paint_state(state_text(job), sys.stdout)
    if job.get("masked"):
        seen = render.fields(_seen_by_others(job), indent=2, columns=columns)
        return [f"job {job['id']}: {state}", *seen]
    lines = [f"{title(job)}: {state}"]
    lines += render.fields(_facts(job, locks), indent=2, columns=columns)
    if job["attempts"]:
        lines += ["", *_attempts(job, columns)]
    spec = job["spec"] if whole_spec else keys_set_by_author(job)
    lines += ["", "job file" if whole_spec else "job file (its defaults: --spec)"]
    return lines + render.fields(flatten(spec), indent=2, columns=columns)


def _attempts(job: Job, columns: int | None) -> list[str]:
    headers: tuple[str, ...] = ATTEMPT_HEADERS
    rows = [_attempt_row(attempt) for attempt in job["attempts"]]
    if job.get("sizes"):
        headers = (*headers[:2], "ranks", *headers[2:])
        sizes = [str(each.get("world_size") or render.UNKNOWN) for each in job["attempts"]]
        rows = [(*row[:2], size, *row[2:]) for row, size in zip(rows, sizes, strict=True)]
    right = ("attempt", "ranks", "lasted", "steps", "peak host", "peak GPU")
    return render.table_and_remarks(headers, rows, right=right, columns=columns)


def _facts(job: Job, locks: Iterable[str]) -> Iterator[tuple[str, str]]:
    yield "why", reason_text(job)
    for lock in locks:
        yield "a lock", lock
    yield "plan", plan(job)
    for line in (job["attempt"] or {}).get("binding") or ():  # None from an older daemon
        yield "NUMA", render.clean(_bound_ranks(line, job) + _binding(line))
    if job["progress"]:
        yield "progress", f"step {steps(job)}, loss {loss(job['progress'])}"
        yield "last step", figures(job["progress"])
        old = f", {since_step(job)} ago" if has_old_step(job) and speed(job["progress"]) else ""
        yield "speed", speed(job["progress"]) + old
        if not is_over(job) and not has_old_step(job):
            yield "left", remaining_time(job["progress"])
    if found := job.get("evaluation"):  # of an older daemon: not there
        yield "evaluated", f"step {found.get('step')}: {evaluation(found)}"
    if found := job.get("evaluated_by"):
        yield "tasks", _tasks(found)
    if not job["progress"] and has_no_heartbeat(job):
        yield (
            "heartbeat",
            "none: the program reports no steps; call zerotools.worker in the program",
        )
    if array := job.get("array"):
        label = f": {array['label']}" if array["label"] else ""
        yield "array", f"@{array['id']}, {array['index'] + 1} of {array['size']}{label}"
    yield "priority", str(job.get("priority") or "")
    yield from _times(job)
    yield "output", str(job["output_dir"])
    yield "checkpoint", checkpoint_path(job) or "none yet"
    yield "verified", verification(job)
    yield "copied", uploaded(job)
    if job["started"] and job["spec"].get("eval", {}).get("predict_with_generate"):
        yield "predictions", f"{job['output_dir']}/{PREDICTIONS}"
    yield "model", exported_model(job)
    yield from _whose(job)
    yield from _slurm(job)
    yield "environment", str(job.get("environment") or "")
    if taken := job["spec"].get("captured_env"):
        count = len(taken)
        what = "1 variable" if count == 1 else f"{count} variables"
        yield (
            "environment",
            f"{what} of its submitter (--spec shows them), and the variables of [env]",
        )
    done = job["state"] == SUCCEEDED and not job["reason"]  # with one, its export has failed
    if is_over(job) and not done and job["latest_checkpoint"]:
        yield "go on", f"{command_name()} retry {job['id']}"
    if waits_for_user(job):
        yield "go on", f"{command_name()} release {job['id']}"
    yield "log", f"{command_name()} logs {'' if is_over(job) else '-f '}{job['id']}"


def _tasks(found: Mapping[str, Any]) -> str:
    """Return the scores of the job's evaluation, as `step 120: hellaswag/acc 0.31 (job 8)`. If
    there are no scores yet, return the state of the job that computes them.
    """
    by = f"job {found['job']}"
    if found["step"] is None:
        return f"evaluated by {by} ({states.display_text(found['state'])})"
    return f"step {found['step']}: {evaluation(found['scores'])} ({by})"


def _bound_ranks(line: Mapping[str, Any], job: Job) -> str:
    """Return the beginning of a line about bindings: `ranks 0-3: `, or `torchrun and its ranks: `
    for ranks that a launcher starts. Return an empty string for a job with a single rank.
    """
    launcher, ranks = (job["spec"].get("script") or {}).get("launcher", "plain"), str(line["ranks"])
    if launcher != "plain":
        return f"{launcher} and its ranks: "
    if job["world_size"] == 1:
        return ""
    return f"rank{'' if ranks.isdecimal() else 's'} {ranks}: "


def _binding(line: Mapping[str, Any]) -> str:
    """Return the memory node and the processors of a binding, as `memory node 0, processors
    0-15,32-47`.
    """
    nodes, cpus = line["memory_nodes"], line["cpus"]
    parts = [f"memory node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"] if nodes else []
    parts += [f"processors {cpus}"] if cpus else []
    parts += [line["why"] if cpus else f"not bound: {line['why']}"] if line["why"] else []
    return ", ".join(parts)


def _times(job: Job) -> Iterator[tuple[str, str]]:
    yield "queued", render.moment(job["created"])
    if job["started"]:
        yield "started", render.moment(job["started"])
    if job["ended"]:
        yield "ended", render.moment(job["ended"])


def _slurm(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the facts that Slurm has about a job which was submitted to Slurm without a daemon."""
    slurm = job.get("slurm")
    if not slurm:
        return
    where = f" on {slurm['nodes_now']}" if slurm["nodes_now"] else ""
    yield "Slurm", f"job {slurm['id'] or render.UNKNOWN}, {slurm['state'] or 'not listed'}{where}"
    yield "its log", str(slurm["log"])
    yield "records", str(slurm["directory"])


def _whose(job: Job) -> Iterator[tuple[str, str]]:
    yield "user", f"{user_of(job)} (uid {job['uid']})" if job.get("user") else user_of(job)


def _seen_by_others(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the facts about a job that users other than its owner may see."""
    yield from _whose(job)
    yield "ranks", f"{ranks(job)} ({job['device']})"
    yield from _times(job)
    if job["attempt"]:
        yield "GPUs", ", ".join(job["attempt"]["gpu_uuids"])
    yield "the rest", "only the job's owner and administrators see the rest"


def _attempt_row(attempt: Mapping[str, Any]) -> tuple[str, ...]:
    lasted = None
    if attempt["started"] and attempt["ended"]:
        lasted = attempt["ended"] - attempt["started"]
    return (
        str(attempt["number"]),
        str(attempt["state"]),
        _without_year(attempt["started"]),
        render.duration(lasted),
        str(attempt["steps_done"]),
        render.size(attempt["peak_host_bytes"]),
        render.size(attempt["peak_gpu_bytes"]),
        _exit(attempt),
        _cause(attempt),
    )


def _cause(attempt: Mapping[str, Any]) -> str:
    kind, sentence = attempt.get("cause_kind"), attempt["cause"] or ""
    return f"{str(kind).replace('_', ' ')}: {sentence.removeprefix('lost: ')}" if kind else sentence


def _without_year(unix_seconds: float | None) -> str:
    """Return the time without its year, so that the row fits into 80 columns. An earlier line of
    the page has the year.
    """
    return render.UNKNOWN if unix_seconds is None else render.moment(unix_seconds)[5:]


def _exit(attempt: Mapping[str, Any]) -> str:
    if attempt["signal"] is not None:
        return f"signal {attempt['signal']}"
    return render.UNKNOWN if attempt["exit_code"] is None else str(attempt["exit_code"])


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each setting of a nested config as key and value, such as `train.steps` and `40`."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, json.dumps(value, ensure_ascii=False)


OLD_SECONDS = 60.0


def suspects(
    job: Job, environment: Mapping[str, str] = os.environ, now: float | None = None
) -> Iterator[str]:
    """Yield a line for each old lock file of torch's compiler that the job may be waiting for, with
    its age.

    If a compiler is killed, its lock file remains, and programs then wait for it forever. A job is
    examined only if it runs the user's own program on this machine and makes no progress, because
    zerotools' own trainer does not wait for such locks. Only directories of this user are opened.
    """
    phase = job.get("phase") or {}
    if job.get("uid") != os.geteuid() or not phase.get("quiet") or not job["spec"].get("script"):
        return
    now = time.time() if now is None else now
    for path in _locks(environment):
        try:
            age = now - path.lstat().st_mtime
        except OSError:  # it is gone
            continue
        if age > OLD_SECONDS:
            yield (
                f"{path}, {render.duration(age)} old: torch waits until this lock is gone; if no "
                "process is compiling, remove the lock, which a killed process left"
            )


def _locks(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the lock files in the directories in which torch builds extensions. Source:
    torch/utils/cpp_extension.py, `_get_build_directory`.
    """
    if given := environment.get("TORCH_EXTENSIONS_DIR"):
        yield from sorted(Path(given).glob("*/lock"))
        return
    try:
        cache = environment.get("XDG_CACHE_HOME") or str(expand_home("~/.cache"))
    except BadRequest:  # a user without a home directory
        return
    yield from sorted((Path(cache) / "torch_extensions").glob("*/*/lock"))

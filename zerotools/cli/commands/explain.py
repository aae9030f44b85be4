"""`zerotools explain`: show why a job waits, stopped or restarted."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from zerotools.cli.job_actions.job_reference import find_job, job_argument
from zerotools.cli.job_views.describe_job import Job, paint_state, reason_text, state_text, title
from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.cli.output import render
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import display_text
from zerotools.sensors.cpu_lists import cpu_list

SHOWN_EVENTS = 12


@click.command("explain")
@job_argument
@socket_option
@json_option
def command(reference: str | None, socket: Path | None, as_json: bool) -> None:
    """Show why a job waits, stopped or restarted, with numbers and events.

    For a waiting job: its position in the queue, and the jobs that hold its resources, since when,
    and for how long at most. For a finished or restarted job: the cause, the first rank that
    failed, the last step, the rule for restarts, and the number of restarts that remain. JOB is a
    number or a name; without it, the newest job is meant.
    """
    client = DaemonClient(socket)
    job = find_job(client, reference)
    tree = client.explain(int(job["id"]))
    if as_json:
        render.print_json(tree)
    else:
        render.print_lines(page(job, tree, time.time(), render.terminal_columns()))


def page(job: Job, tree: Mapping[str, Any], now: float, columns: int | None = None) -> list[str]:
    """Return the lines to print. `now` is in seconds since 1970. `columns` is the width of the
    terminal; if it is None, long lines are not wrapped."""
    job = {
        **job,
        "state": tree["state"],
        "reason": tree["why"],
        "phase": tree.get("phase", job.get("phase")),
    }
    state = paint_state(state_text(job, now), sys.stdout)
    lines = [f"{title(dict(job))}: {state}"]
    lines += render.fields(_facts(tree, reason_text(job, now), now), indent=2, columns=columns)
    events = tree["events"][-SHOWN_EVENTS:]
    if events:
        lines += ["", "events"]
    for event in events:
        lines += render.folded(f"  {_event(event)}", columns, indent=6)
    return lines


def _facts(tree: Mapping[str, Any], said: str, now: float) -> Iterator[tuple[str, str]]:
    yield "why", render.clean(said)
    if tree.get("size"):  # an older daemon does not send it
        yield "size", render.clean(str(tree["size"]))
    place = tree["place"]
    if place:
        jobs = "1 waiting job" if place["of"] == 1 else f"{place['of']} waiting jobs"
        yield "place", f"{place['position']} of {jobs} for {place['what']}; needs {place['needs']}"
    yield from _holders(tree["holders"], now)
    for room in tree.get("room", ()):  # an older daemon does not send it
        yield (
            "preempted" if room["job_id"] == tree["id"] else "preemption",
            _describe_preemption(room, tree["id"]),
        )
    yield from _retries(tree["retries"], now)
    yield from _end(tree["end"])
    if tree["resumed_from"]:
        yield "resumed", f"from {render.clean(str(tree['resumed_from']))}"
    for notice in tree["notifications"]:
        yield "not sent yet", _notice(notice, now)


def _notice(notice: Mapping[str, Any], now: float) -> str:
    told = f"{notice['notice']} by {notice['channel']}"
    if notice.get("place"):  # an older daemon does not send it
        told += f" {render.clean(str(notice['place']))}"
    if not notice["tries"]:
        return f"{told}: being sent"
    left = render.duration(max(0.0, notice["next_try"] - now))
    tries = "1 try" if notice["tries"] == 1 else f"{notice['tries']} tries"
    return f"{told}: {tries} failed, the next is in {left}: {render.clean(str(notice['trouble']))}"


def _holders(holders: Iterable[Mapping[str, Any]], now: float) -> Iterator[tuple[str, str]]:
    """Yield a line for each job or process that uses GPUs. GPUs with the same text share a line."""
    by_text: dict[str, list[str]] = {}
    for holder in holders:
        by_text.setdefault(_holder(holder, now), []).append(str(holder["what"]))
    for text, names in by_text.items():
        numbers = [name.removeprefix("GPU ") for name in names]
        if len(names) > 1 and all(map(str.isdecimal, numbers)):
            yield f"GPUs {cpu_list(map(int, numbers)).replace(',', ', ')}", text
        else:
            yield ", ".join(names), text


def _holder(holder: Mapping[str, Any], now: float) -> str:
    who = f"job {holder['job_id']}"
    if holder.get("user"):  # an older daemon does not send it
        who += f" ({render.clean(str(holder['user']))})"
    if holder["attempt"]:
        who += f", attempt {holder['attempt']}"
    if holder["process"]:
        return f"{who}: {render.clean(str(holder['process']))} still runs after the attempt ended"
    since = "" if holder["since"] is None else f", since {render.moment(holder['since'])}"
    if holder["until"] is None:
        return f"{who}{since}; it has no time limit, so its end is not known"
    left = render.duration(max(0.0, holder["until"] - now))
    return f"{who}{since}; ends at {render.moment(holder['until'])} at the latest (in {left})"


_PURPOSES = {
    "pause": "for a pause",
    "resize": "to continue with another number of ranks",
    "relieve": "because host memory ran out",
    "relieve_gpu": "because GPU memory ran out",
}


def _describe_preemption(room: Mapping[str, Any], own: int) -> str:
    whose = "" if room["job_id"] == own else f"of job {room['job_id']}, "
    said = f"{whose}attempt {room['attempt']}, {render.moment(room['asked'])}"
    if room["for_job"] not in (None, own):
        said += f", for job {room['for_job']}"
    elif room["for_job"] is None:
        said += f", {_PURPOSES.get(room['purpose'], '')}"
    if room["ended"] is None:
        return f"{said}: the attempt is saving"
    if room["steps_lost"] is not None:
        saved = "" if room["saved_step"] is None else f"step {room['saved_step']} saved, "
        lost = "1 step lost" if room["steps_lost"] == 1 else f"{room['steps_lost']} steps lost"
        said += f": {saved}{lost}"
    said += f"; ended after {room['ended'] - room['asked']:.1f} s"
    if room["first_step"] is not None:
        said += f", and job {room['for_job']} made its first step after "
        said += f"{room['first_step'] - room['asked']:.1f} s"
    return said


def _retries(retries: Mapping[str, Any], now: float) -> Iterator[tuple[str, str]]:
    if retries["cause"] is None and not retries["used"]:
        return
    used = f"{retries['used']} of {retries['max']} used since the last progress"
    if not retries["counts"]:
        used += f"; a restart after {retries['after']} is not counted"
    if retries["cause_max"] is not None:
        most = retries["cause_max"]
        limit = "no restart follows" if most == 0 else f"at most {most} restarts follow"
        ends = "1 such end" if retries["cause_ends"] == 1 else f"{retries['cause_ends']} such ends"
        used += f"; after {retries['after']}, {limit} ({ends} so far)"
    yield "restarts", used
    if retries["rule"] == "always":
        yield "rule", 'retry = "always": a restart follows every crash, up to max_restarts'
    if retries["next_try"] is not None:
        left = render.duration(max(0.0, retries["next_try"] - now))
        yield "next try", f"{render.moment(retries['next_try'])} (in {left})"


def _end(end: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if end is None:
        return
    kind = f"{str(end['cause_kind']).replace('_', ' ')}: " if end["cause_kind"] else ""
    yield "last end", f"attempt {end['attempt']}: {kind}{render.clean(str(end['cause'] or ''))}"
    if end["rank"] is not None:
        yield "first", f"rank {end['rank']} failed first"
    saved = "nothing saved" if end["saved_step"] is None else f"saved step {end['saved_step']}"
    yield "reached", f"step {end['steps_done']}, {saved}"


def _event(event: Mapping[str, Any]) -> str:
    change = " -> ".join(
        display_text(event[key]) for key in ("from_state", "to_state") if event[key]
    )
    attempt = f" attempt {event['attempt']}" if event["attempt"] else ""
    why = f": {render.clean(str(event['why']))}" if event["why"] else ""
    head = f"#{event['seq']} {render.moment(event['time'])} {event['kind'].replace('_', ' ')}"
    return f"{head}{attempt}{change and f' {change}'}{why}"

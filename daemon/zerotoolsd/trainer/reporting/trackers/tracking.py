"""The trackers of a job, and the data that they get. It contains no secret of the job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zerotools.io.telemetry.metrics_jsonl import METRICS
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.preflight.tracker_login import is_switched_off, offline_reasons
from zerotools.jobs.tables.spec import JobSpec
from zerotools.jobs.text.secrets import HIDDEN, is_secret_name, mask_tree
from zerotoolsd.trainer.reporting.trackers.identity import tracked_run
from zerotoolsd.trainer.reporting.trackers.tracker_feed import TrackerFeed

_NOT_TOLD = ("captured_env", "notify", "script")
Start = Callable[[str, Mapping[str, Any]], TrackerFeed]


def start_tracking(
    spec: JobSpec,
    run_dir: Path,
    done: int | None,
    say: Callable[[str], None],
    start: Start = TrackerFeed,
) -> list[TrackerFeed]:
    """Start a process for each tracker of the job, which has done `done` steps (None: it begins).

    Failures are reported, and training continues.
    """
    trackers = spec.metrics.trackers
    if not trackers:
        return []
    output_dir = Path(spec.output_dir or "")
    try:
        run = tracked_run(output_dir, run_dir.parent, goes_on=done is not None)
    except OSError as error:
        names = " and ".join(trackers)
        say(f"{names}: not logged to, training continues: {error.filename}: {error.strerror}")
        return []
    return list(_started(spec, output_dir, run.id, (done or 0) + 1, say, start))


def _started(
    spec: JobSpec,
    output_dir: Path,
    identity: str,
    first: int,
    say: Callable[[str], None],
    start: Start,
) -> Iterator[TrackerFeed]:
    offline = offline_reasons(spec.metrics, os.environ)
    for name, project in spec.metrics.trackers.items():
        if is_switched_off(name, os.environ):
            say(f"{name}: is switched off by WANDB_MODE: no step is logged there")
            continue
        opening = {
            "project": project,
            "id": identity,
            "name": spec.name,
            "directory": str(output_dir),
            "config": told_of(spec),
            "offline": offline.get(name),
            "first": first,
            "history": str(output_dir / METRICS),
        }
        try:
            yield start(name, opening)
        except OSError as error:
            say(f"{name}: not logged to, training continues: {error.strerror}")


def told_of(spec: JobSpec) -> dict[str, Any]:
    """Return the keys of the job, without the values of its environment and all that look
    secret."""
    tree = {name: value for name, value in job_to_dict(spec).items() if name not in _NOT_TOLD}
    known = [value for name, value in spec.env.items() if is_secret_name(name)]
    told: dict[str, Any] = mask_tree(tree, known)
    return {**told, "env": dict.fromkeys(spec.env, HIDDEN)}

"""The JSON of `submit --dry-run`: the jobs that would be queued, with the values of all keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.tables.notify import masked_url
from zerotools.jobs.tables.spec import JobSpec
from zerotools.jobs.text.secrets import HIDDEN, mask_tree


def dry_run_json(specs: Iterable[JobSpec]) -> dict[str, Any]:
    """Return the answer of a submit that queues nothing. Secrets and values of `env` are hidden."""
    return {"dry_run": True, "jobs": [], "specs": [_shown(each) for each in specs]}


def _shown(spec: JobSpec) -> dict[str, Any]:
    tree: dict[str, Any] = mask_tree(job_to_dict(spec))
    if spec.notify.webhook is not None:
        tree["notify"] = {**tree["notify"], "webhook": masked_url(spec.notify.webhook)}
    return {**tree, "env": dict.fromkeys(spec.env, HIDDEN)}

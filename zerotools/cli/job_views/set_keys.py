"""The keys of a job file that its author set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerotools.cli.job_views.describe import Job
from zerotools.jobs.binding.bind import plain


def set_part(job: Job) -> dict[str, Any]:
    """Return the part of a job file that its author set. If the daemon does not report it: the keys
    without their default, and those that this version does not know."""
    from zerotools.jobs.imports.reading.job_keys import default_of, job_keys

    known = job_keys()
    set_keys = job.get("set_keys")

    def is_set(key: str, value: object) -> bool:
        if set_keys is not None:
            return key in set_keys
        return key not in known or value not in (plain(default_of(key)), {})

    def kept(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in tree.items():
            key = f"{prefix}{name}"
            if isinstance(value, Mapping) and (key not in known or set_keys is not None):
                if inner := dict(kept(value, f"{key}.")):
                    yield name, inner
            elif is_set(key, value):
                yield name, value

    return dict(kept(job["spec"], ""))

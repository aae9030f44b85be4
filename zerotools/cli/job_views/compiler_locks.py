"""Locks that compilers of torch left, which hold up programs that a job runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from zerotools.cli.job_views.describe import Job
from zerotools.cli.output import render
from zerotools.core.errors import BadRequest
from zerotools.jobs.text.home_paths import expanded

OLD_SECONDS = 60.0


def suspects(
    job: Job, environment: Mapping[str, str] = os.environ, now: float | None = None
) -> Iterator[str]:
    """Yield locks in torch's usual directory of this user, with their age, if the job is a script
    of the user, runs on this machine, and makes no progress. Those of our trainer wait for none of
    them. The directories of other users are never opened."""
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
                f"{path}, {render.duration(age)} old: torch waits for this lock; if nothing "
                "compiles, a killed process left it: remove it"
            )


def _locks(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the locks in torch's directories: torch/utils/cpp_extension.py,
    `_get_build_directory`."""
    if given := environment.get("TORCH_EXTENSIONS_DIR"):
        yield from sorted(Path(given).glob("*/lock"))
        return
    try:
        cache = environment.get("XDG_CACHE_HOME") or str(expanded("~/.cache"))
    except BadRequest:  # a user without a home directory
        return
    yield from sorted((Path(cache) / "torch_extensions").glob("*/*/lock"))

"""The jobs of an array as one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from zerotools.cli.job_views.describe import Job, shown_state


def folded(jobs: Sequence[Job]) -> list[Job]:
    """Return `jobs` with those of one array as one, at the position of its first: with the number
    of its array, and the counts of states. An array with one remaining job is that job."""
    counts = Counter(_array(job) for job in jobs)
    found: list[Job] = []
    seen: set[int] = set()
    for job in jobs:
        number = _array(job)
        if number is None or counts[number] == 1:
            found.append(job)
        elif number not in seen:
            seen.add(number)
            found.append(_as_one([each for each in jobs if _array(each) == number], number))
    return found


def _array(job: Job) -> int | None:
    array = job.get("array")
    return None if not array else int(array["id"])


def _as_one(jobs: Sequence[Job], number: int) -> dict[str, Any]:
    states = Counter(shown_state(job) for job in jobs)
    said = ", ".join(f"{count} {state}" for state, count in states.items())
    first = jobs[0]
    waiting = next((job for job in jobs if job["reason"] and not job["attempts"]), None)
    name = str(first["name"] or "").rpartition("-")[0] or str(first["name"] or "")
    return {
        **first,
        "id": f"@{number}",
        "name": name,
        "state": said,
        "progress": None,
        "phase": None,
        "latest_checkpoint": None,
        "reason": waiting["reason"] if waiting else None,
    }

"""Messages about several GPUs and jobs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from zerotools.sensors.cpu_lists import cpu_list

MOST_LISTED = 8
NameJob = Callable[[int], str]
"""Function that names a job in a message."""


def by_number(job_id: int) -> str:
    """Name a job by its number, without its user."""
    return f"job {job_id}"


def together(whys: Mapping[int, str]) -> str:
    """Merge equal reasons of several GPUs: `GPUs 0-3: job 1; GPU 5: kept for job 7`."""
    of_why: dict[str, list[int]] = {}
    for index, why in whys.items():
        of_why.setdefault(why, []).append(index)
    said = [f"{_gpus(indexes)}: {why}" for why, indexes in of_why.items()]
    more = f"; and {len(said) - MOST_LISTED} more" if len(said) > MOST_LISTED else ""
    return "; ".join(said[:MOST_LISTED]) + more


def _gpus(indexes: Sequence[int]) -> str:
    """Format indexes: `GPU 5`, or `GPUs 0-3, 6`."""
    listed = cpu_list(indexes).replace(",", ", ")
    return f"GPUs {listed}" if len(indexes) > 1 else f"GPU {listed}"

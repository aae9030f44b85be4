"""What is said of several GPUs and jobs together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from zerotools.sensors.cpu_lists import cpu_list

MOST_LISTED = 8
NameJob = Callable[[int], str]
"""What a job is called in a message."""


def by_number(job_id: int) -> str:
    """The name of a job where nothing says whose it is."""
    return f"job {job_id}"


def together(whys: Mapping[int, str]) -> str:
    """The same of several GPUs once: `GPUs 0-3: job 1; GPU 5: kept for job 7`."""
    of_why: dict[str, list[int]] = {}
    for index, why in whys.items():
        of_why.setdefault(why, []).append(index)
    said = [f"{_gpus(indexes)}: {why}" for why, indexes in of_why.items()]
    more = f"; and {len(said) - MOST_LISTED} more" if len(said) > MOST_LISTED else ""
    return "; ".join(said[:MOST_LISTED]) + more


def _gpus(indexes: Sequence[int]) -> str:
    """`GPU 5`, or `GPUs 0-3, 6`."""
    listed = cpu_list(indexes).replace(",", ", ")
    return f"GPUs {listed}" if len(indexes) > 1 else f"GPU {listed}"

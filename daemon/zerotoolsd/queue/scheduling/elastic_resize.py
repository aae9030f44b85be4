"""The growth of a running elastic job into free resources. Pure.

A change of size costs time: the job saves, ends and starts again. It pays if it saves `factor`
times as much over the rest of the run. A step is assumed to need half the time with twice the
ranks. Example: 2 of 4 GPUs, and 3 hours left: with 4 it is 1.5 hours less; a change took 40 s the
last time, and 5 times that is 200 s, so the job grows.

The scheduler decides on the growth as if a job with that need came last of all. So the job gets
only resources that no waiting job can use, and none that are reserved. While it saves, the request
has the job's position, so that no job behind it takes the resources.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from zerotools.jobs.priorities import LEAST_PRIORITY
from zerotoolsd.queue.scheduling.requests import Request


@dataclass(frozen=True, kw_only=True)
class GrowthRule:
    """Not before an attempt has run for `after_seconds`; `factor` as above."""

    after_seconds: float
    factor: float


@dataclass(frozen=True, kw_only=True)
class RunningSize:
    """An elastic job running with `size` ranks, since `ran_seconds`. `left` are the seconds that it
    still needs at this size (None: unknown); a change costs `cost` seconds."""

    size: int
    ran_seconds: float
    left: float | None
    cost: float

    def gain(self, size: int) -> float:
        """Return the seconds that `size` ranks would save, without the cost of the change."""
        return (self.left or 0.0) * (1 - self.size / size)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The sizes to which a job would grow, ascending, and the reason for or against it in one
    sentence. `wait`: the seconds until the next check; None: whenever something changes."""

    sizes: tuple[int, ...]
    why: str
    wait: float | None = None


def growth(now: RunningSize, sizes: tuple[int, ...], rule: GrowthRule) -> Growth:
    """Apply the rule to a job that may have `sizes`."""
    more = tuple(size for size in sizes if size > now.size)
    if not more:
        return Growth(sizes=(), why=f"has {now.size}, its maximum")
    if now.ran_seconds < rule.after_seconds:
        wait = rule.after_seconds - now.ran_seconds
        why = (
            f"keeps its {now.size} for {wait:.0f} s more: an attempt runs for at least "
            f"{rule.after_seconds:.0f} s (elastic.after_seconds)"
        )
        return Growth(sizes=(), why=why, wait=wait)
    if now.left is None:
        return Growth(sizes=(), why=f"keeps its {now.size}: its remaining time is not known")
    worth = tuple(size for size in more if now.gain(size) >= rule.factor * now.cost)
    if not worth:
        return Growth(
            sizes=(),
            why=(
                f"keeps its {now.size}: {more[-1]} would save {now.gain(more[-1]):.0f} s of the "
                f"{now.left:.0f} s left, less than {rule.factor:g} times (elastic.gain) the "
                f"{now.cost:.0f} s that a change costs"
            ),
        )
    why = (
        f"has {now.size}, and takes {_either(worth)} when so many are free that no job can use: "
        f"{worth[-1]} would save {now.gain(worth[-1]):.0f} s of the {now.left:.0f} s left, and a "
        f"change costs {now.cost:.0f} s"
    )
    return Growth(sizes=worth, why=why)


def why_it_grows(now: RunningSize, size: int) -> str:
    """Return the sentence on a job that now continues with `size`."""
    return (
        f"grows from {now.size} to {size}: that saves {now.gain(size):.0f} s of the "
        f"{now.left or 0.0:.0f} s left, and the change costs {now.cost:.0f} s"
    )


def wish(own: Request, size: int, sizes: tuple[int, ...], *, keeps: bool) -> Request:
    """Return the request of a job with `size` ranks for one of `sizes`.

    It comes last of all; with `keeps`, at the job's position.
    """
    more = tuple(each - size for each in sizes)
    need = replace(
        own.need,
        world_size=more[0],
        gpus=None if own.need.gpus is None else more[0],
        host_bytes=0,  # the job has it
        sizes=more,
    )
    priority = own.priority if keeps else LEAST_PRIORITY - 1
    return replace(own, need=need, lasts=None, priority=priority)


def _either(sizes: tuple[int, ...]) -> str:
    return " or ".join(map(str, sizes))

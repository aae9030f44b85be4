"""Tracks, during a scheduler pass, how much of the limits of each user is still unused.

A job that would exceed the administrator's limits waits and reserves nothing, so that jobs of other
users can start first. During a pass, the unused part of a limit only shrinks. So after one job of a
user has to wait, all later jobs of this user with the same need have to wait, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs.jobfile_tables.spec import MOST_RANKS
from zerotoolsd.queue.scheduling.resource_requests import Request, ResourceNeed
from zerotoolsd.users.user_limits import UserLimits


@dataclass(frozen=True, kw_only=True)
class UserUse:
    """The resources that the running jobs of one user use: the number of jobs, of GPUs and of CPU
    ranks. A part of a GPU counts as one GPU.
    """

    running: int = 0
    gpus: int = 0
    cpu_ranks: int = 0

    def plus_job(self, *, gpus: int, cpu_ranks: int) -> UserUse:
        """Return this use plus the use of a job with `gpus` GPUs and `cpu_ranks` CPU ranks."""
        return replace(
            self,
            running=self.running + 1,
            gpus=self.gpus + gpus,
            cpu_ranks=self.cpu_ranks + cpu_ranks,
        )


@dataclass(frozen=True, kw_only=True)
class UserUsage:
    """The current use of each user, keyed by uid, and a function that returns the limits of a user.
    `limits_of` is None if there are no limits.
    """

    limits_of: Callable[[int], UserLimits] | None = None
    used: Mapping[int, UserUse] = field(default_factory=dict)


ANYBODY = UserUsage()


def without_jobs(users: UserUsage, jobs: Iterable[tuple[int, int, int]]) -> UserUsage:
    """Return the current use of `users` without the use of some jobs. Each of `jobs` is (uid,
    number of GPUs, number of CPU ranks).
    """
    used = dict(users.used)
    for uid, gpus, cpu_ranks in jobs:
        has = used.get(uid, UserUse())
        used[uid] = UserUse(
            running=max(0, has.running - 1),
            gpus=max(0, has.gpus - gpus),
            cpu_ranks=max(0, has.cpu_ranks - cpu_ranks),
        )
    return replace(users, used=used)


class UserQuota:
    """The unused part of each user's limits during one scheduler pass."""

    def __init__(self, users: UserUsage) -> None:
        self._limits_of = users.limits_of
        self._used = dict(users.used)
        self.reasons: dict[tuple[int, ResourceNeed], str] = {}
        """The reason why jobs wait for other jobs of the same user, keyed by (uid, need)."""

    def allows(self, request: Request) -> bool:
        """Return whether the job is within the limits of its user. If not, it has to wait."""
        if self._limits_of is None:
            return True
        used = self._used.get(request.uid, UserUse())
        why = why_beyond(self._limits_of(request.uid), used, request.need)
        if why is None:
            return True
        self.reasons[request.uid, request.need] = why
        return False

    def most_ranks(self, request: Request) -> int:
        """Return the largest number of ranks that the limits of the user allow for the job."""
        if self._limits_of is None or not request.need.is_elastic:
            return MOST_RANKS
        limits, used = self._limits_of(request.uid), self._used.get(request.uid, UserUse())
        is_gpu = request.need.gpus is not None
        limit = limits.max_gpus if is_gpu else limits.max_cpu_ranks
        return MOST_RANKS if limit is None else limit - (used.gpus if is_gpu else used.cpu_ranks)

    def add_use(self, request: Request, size: int) -> None:
        """Subtract the use of a job that starts with `size` ranks from the limits of its user."""
        if self._limits_of is not None:
            is_gpu = request.need.gpus is not None
            used = self._used.get(request.uid, UserUse())
            taken = {"gpus": size, "cpu_ranks": 0} if is_gpu else {"gpus": 0, "cpu_ranks": size}
            self._used[request.uid] = used.plus_job(**taken)


def why_beyond(limits: UserLimits, used: UserUse, need: ResourceNeed) -> str | None:
    """Return the reason why one more job with this need would exceed the limits of its user
    now; None if it would not.
    """
    if limits.max_running is not None and used.running >= limits.max_running:
        return f"waits for jobs of the same user: {used.running} of users.max_running = " + (
            f"{limits.max_running} run"
        )
    what, has, most = (
        ("GPU", used.gpus, limits.max_gpus)
        if need.gpus is not None
        else ("CPU rank", used.cpu_ranks, limits.max_cpu_ranks)
    )
    if most is None or has + need.world_size <= most:
        return None
    name = "max_gpus" if need.gpus is not None else "max_cpu_ranks"
    return (
        f"needs {count_text(need.world_size, what)}: running jobs of the same user use {has} of "
        f"users.{name} = {most}"
    )


def never_within(limits: UserLimits, need: ResourceNeed) -> str | None:
    """Return the reason why a job with this need exceeds the limits of its user even if the
    user runs no other job; None if it does not.
    """
    if limits.max_running == 0:
        return "users.max_running = 0 allows no job of this user; ask the administrator"
    if why_beyond(limits, UserUse(), need) is None:
        return None
    what, name, most = (
        ("GPU", "max_gpus", limits.max_gpus)
        if need.gpus is not None
        else ("CPU rank", "max_cpu_ranks", limits.max_cpu_ranks)
    )
    return (
        f"needs {count_text(need.world_size, what)}, but users.{name} = {most}; ask for less, or "
        "ask the administrator"
    )

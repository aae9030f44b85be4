"""`[users]` of the daemon's configuration: the allowed users, and their limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key
from zerotoolsd.users.user_limits import NAMES, limits_in


@dataclass(frozen=True, kw_only=True)
class UsersConfig:
    """`[users]`: the allowed users, the limits of their processes, and who may change which jobs.

    Only a daemon that runs as root runs jobs of other users. Each job runs as the user who
    submitted it.
    """

    allow: str | tuple[str | int, ...] | None = key(
        'Who may submit: `"all"`, or a list of names of users, of groups (`"@gpu"`) and of '
        "uids. Not set: all users that the daemon can run jobs for.",
        default=None,
    )
    processes: int | None = key(
        "Largest number of processes and threads of one user, except root, on the whole machine; "
        "above it a job cannot start another (RLIMIT_NPROC). Not set: the limit of the daemon.",
        default=None,
        minimum=16,
    )
    open_files: int | None = key(
        "Largest number of open files of one process of a job (RLIMIT_NOFILE). Not set: the limit "
        "of the daemon.",
        default=None,
        minimum=64,
    )
    administrators: tuple[str | int, ...] = key(
        "Who may see and change the jobs of all users, in addition to root and the user of "
        'the daemon: names, groups (`"@admins"`) and uids.',
        default=(),
    )
    max_queued: int | None = key(
        "Largest number of queued and held jobs of one user: more are refused at submit.",
        default=None,
        minimum=0,
    )
    max_running: int | None = key(
        "Largest number of running jobs of one user: the user's other jobs wait, and jobs of other "
        "users start before them.",
        default=None,
        minimum=0,
    )
    max_gpus: int | None = key(
        "Largest number of GPUs of all running jobs of one user; a part of a GPU counts as one.",
        default=None,
        minimum=0,
    )
    max_cpu_ranks: int | None = key(
        'Largest number of ranks of all running `device = "cpu"` jobs of one user.',
        default=None,
        minimum=0,
    )
    queue_bytes: int | str | None = key(
        "Largest size of the records of one user's jobs in the queue, finished jobs included: "
        'bytes, or text such as `"256MiB"`. More is refused at submit.',
        default="1GiB",
    )
    limits: Mapping[str, Mapping[str, int | str]] = key(
        "These five limits for one user (`[users.limits.anna]`, or a uid) or for each member of a "
        'group (`[users.limits."@lab"]`), instead of the limits of all users. The table of a '
        "user overrides those of groups; of several groups the highest limit counts.",
        factory=dict,
    )


def wrong_users(users: UsersConfig) -> Iterator[str]:
    """Yield a sentence for each error in the table `[users]`."""
    if isinstance(users.allow, str) and users.allow != "all":
        one = format_value([users.allow])
        yield f'users.allow = {format_value(users.allow)}: must be "all" or a list, such as {one}'
    tables = {
        "": limits_of_all(users),
        **{f"limits.{name}.": each for name, each in users.limits.items()},
    }
    for where, table in tables.items():
        try:
            limits_in(table)
        except ValueError as error:
            yield f"users.{where}{error}"
    yield from _wrong_entries("allow", users.allow)
    yield from _wrong_entries("administrators", users.administrators)


def limits_of_all(users: UsersConfig) -> dict[str, int | str]:
    """Return the limits in `[users]` that apply to every user: name of the key -> value."""
    found = {name: getattr(users, name) for name in NAMES}
    return {name: value for name, value in found.items() if value is not None}


def _wrong_entries(name: str, entries: str | tuple[str | int, ...] | None) -> Iterator[str]:
    for entry in entries if isinstance(entries, tuple) else ():
        if isinstance(entry, int):
            if not 0 <= entry < 2**32 - 1:
                yield f"users.{name}: {entry} is not a uid"
        elif entry in ("", "@"):
            yield (
                f"users.{name}: {format_value(entry)} is not a user or a group; name a user, or a "
                "group as @group"
            )

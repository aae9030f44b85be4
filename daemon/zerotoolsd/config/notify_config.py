"""`[notify]` of `zerotoolsd.toml`: the recipients of notifications about jobs."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key
from zerotools.jobs.tables.notify import USUAL_NOTICES


@dataclass(frozen=True, kw_only=True)
class NotifyConfig:
    """`[notify]`: the notifications about jobs that the daemon sends; see [be told what becomes of
    a job](../how-to/notifications.md)."""

    allow: tuple[str, ...] = key(
        'Hosts to which webhooks of jobs may go: `"hooks.slack.com"`, with a port other than 443 '
        '`"chat.lab:8443"`, without TLS `"http://10.0.0.5:8080"`. Not set: to none.',
        default=(),
    )
    networks: tuple[str, ...] = key(
        'Private networks that these hosts may resolve to: `"10.0.0.0/8"`. Not set: webhooks '
        "reach only public addresses.",
        default=(),
    )
    commands: bool = key("Jobs may name a command to run, as their user.", default=True)
    webhook: str | None = key(
        "An address that gets the notifications of all jobs; its host needs no entry in `allow`.",
        default=None,
    )
    on: tuple[str, ...] = key("The notifications for that address.", default=USUAL_NOTICES)
    most_per_user: int = key(
        "The largest number of waiting notifications of one user; the oldest are dropped, and "
        "counted.",
        default=200,
        minimum=1,
    )
    most: int = key("So many of all users.", default=5000, minimum=1)
    timeout_seconds: float = key(
        "One try takes no longer: looking up the host, the answer, or the command.",
        default=10.0,
        above=0,
    )
    keep_trying: int | str = key(
        'How long to retry a delivery: seconds, or text such as `"1d"`.',
        default="1d",
    )

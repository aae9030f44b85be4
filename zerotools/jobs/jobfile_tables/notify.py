"""`[notify]` of the job file: messages that are sent to users about the job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key
from zerotools.jobs.text.exec_limits import too_long
from zerotools.jobs.text.mask_secrets import HIDDEN

NOTICES = (
    *("started", "first_step", "retried", "stalled", "preempted", "paused", "held"),
    *("succeeded", "failed", "stopped", "cancelled"),
)
"""The events of a job about which a message can be sent."""
USUAL_NOTICES = ("succeeded", "failed", "stopped", "held", "stalled")
LONGEST_URL = 2000


@dataclass(frozen=True, kw_only=True)
class NotifySpec:
    """`[notify]`: messages about the job; see [notifications](../how-to/notifications.md)."""

    on: tuple[str, ...] = key(
        f"The changes to report: some of {', '.join(f'`{each}`' for each in NOTICES)}.",
        default=USUAL_NOTICES,
        stored_default=USUAL_NOTICES,
    )
    webhook: str | None = key(
        "An `https://` address to which each notification is sent. Slack, Discord, Feishu, "
        "DingTalk and ntfy.sh get a chat message, other hosts get JSON. The daemon's "
        "administrator configures the hosts that are allowed.",
        default=None,
        stored_default=None,
    )
    command: tuple[str, ...] = key(
        "A program and its arguments, run as the job's user for each notification. It gets "
        "the JSON on standard input.",
        default=(),
        stored_default=(),
    )


def check_notify(notify: NotifySpec) -> Iterator[str]:
    """Yield the problems with `[notify]`."""
    yield from wrong_notices("notify.on", notify.on)
    if notify.webhook is not None and (why := wrong_url(notify.webhook)) is not None:
        yield f"notify.webhook = {format_value(masked_url(notify.webhook))}: {why}"
    if notify.command and not notify.command[0]:
        yield (
            "notify.command: its first string is empty; name a program there, or leave "
            "notify.command out"
        )
    for index, word in enumerate(notify.command):
        if (why := too_long(word)) is not None:
            yield f"notify.command: entry {index} ({format_value(word)}) is too long: {why}"


def wrong_notices(
    name: str, notices: tuple[str, ...], allowed: tuple[str, ...] = NOTICES
) -> Iterator[str]:
    """Yield each problem with the value of the key `name`, which is a list of events."""
    for each in notices:
        if each not in allowed:
            yield f"{name}: {format_value(each)} is not one of {', '.join(allowed)}"


def wrong_url(url: str) -> str | None:
    """Return the reason why messages cannot be sent to this URL; None if its form is valid."""
    if len(url) > LONGEST_URL or not url.isprintable() or not url.isascii() or " " in url:
        return f"must be an address of at most {LONGEST_URL} printable ASCII characters"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        return f"is not an address: {error}"
    if parts.scheme not in ("https", "http") or not host:
        return "must begin with https:// or http:// and a host"
    if parts.username is not None or parts.password is not None:
        return "must not have a user or a password before the host"
    return "has port 0" if port == 0 else None


def masked_url(url: str) -> str:
    """Return the URL with only its scheme and host name, for messages.

    For many services the rest of the URL is a secret.
    """
    try:
        parts = urlsplit(url)
        netloc = parts.netloc.rpartition("@")[2]
    except ValueError:
        return HIDDEN
    return f"{parts.scheme}://{netloc}/{HIDDEN}" if netloc else HIDDEN

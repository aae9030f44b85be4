"""`[notify]` of the daemon's configuration: the destinations of notifications, and limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from urllib.parse import urlsplit

from zerotools.core.counts_and_sizes import bytes_of
from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.jobfile_tables.notify import NOTICES, USUAL_NOTICES, wrong_notices, wrong_url

MEMORY_SHORT, DISK_SHORT = "memory_short", "disk_short"
DESTINATION_NOTICES = (*NOTICES, MEMORY_SHORT, DISK_SHORT)
"""The events about which the daemon can send a message: those of jobs, and those of the machine."""
SLACK, DISCORD, FEISHU, DINGTALK = "slack", "discord", "feishu", "dingtalk"
NTFY, EMAIL, JSON = "ntfy", "email", "json"
SERVICES = (SLACK, DISCORD, FEISHU, DINGTALK, NTFY, EMAIL, JSON)
_SIGNED = (FEISHU, DINGTALK, NTFY)
_HOSTS = {
    "hooks.slack.com": SLACK,
    **dict.fromkeys(("discord.com", "discordapp.com"), DISCORD),
    **dict.fromkeys(("open.feishu.cn", "open.larksuite.com"), FEISHU),
    "oapi.dingtalk.com": DINGTALK,
    "ntfy.sh": NTFY,
}
_ADDRESS = re.compile(r"[\w.!#$%&'*+/=?^`{|}~][\w.!#$%&'*+/=?^`{|}~-]*@[A-Za-z0-9][A-Za-z0-9.-]*")
WEBHOOK_NAME = "webhook"
"""The name of the destination `notify.webhook`."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def service_of(url: str) -> str:
    """Return the notification service that the host of `url` belongs to; `json` for an unknown
    host.
    """
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return JSON
    return _HOSTS.get((host or "").rstrip("."), JSON)


@dataclass(frozen=True, kw_only=True)
class NoticeDestination:
    """`[[notify.places]]`: one destination that gets the notifications of all jobs and of the
    machine.
    """

    name: str = key("The name of the place, in messages and for `zerotools notify test`.")
    service: str | None = key(
        "The service that gets the messages, which decides their format. Not set: the service at "
        "the host of `url`, or e-mail if there is no `url`.",
        default=None,
        allowed=SERVICES,
    )
    url: str | None = key(
        "The address of the webhook, or of a topic of ntfy. It needs no entry in `allow`, and "
        "may lead into private networks.",
        default=None,
    )
    secret: str | None = key(
        "The secret with which messages to Feishu or DingTalk are signed, or the access token of "
        "ntfy.",
        default=None,
    )
    to: tuple[str, ...] = key("The addresses that get an e-mail.", default=())
    sender: str | None = key("The sender address of e-mails.", default=None)
    on: tuple[str, ...] = key(
        "The notifications that this place gets: all that a job file can name, `memory_short` "
        "(host memory runs out, see `[pressure]`) and `disk_short` (see `disk_free`).",
        default=(*USUAL_NOTICES, MEMORY_SHORT, DISK_SHORT),
    )

    @property
    def kind(self) -> str:
        """Return the service of this destination, such as `slack` or `email`.

        The configured `service` is used if it is set; otherwise the host of `url` determines the
        service.
        """
        return self.service or (EMAIL if self.url is None else service_of(self.url))


@dataclass(frozen=True, kw_only=True)
class NotifyConfig:
    """`[notify]`: the notifications about jobs that the daemon sends; see [be told what becomes of
    a job](../how-to/notifications.md)."""

    places: tuple[NoticeDestination, ...] = key(
        "The places that get notifications, each in a table `[[notify.places]]`.", default=()
    )
    link: str | None = key(
        'The address under which users open the page for browsers, such as `"https://gpu.lab/"`. '
        "Notifications have a link to their job there.",
        default=None,
    )
    disk_free: int | str = key(
        "`disk_short` is sent if the file system of the state directory has less free space "
        'than this: bytes, or text such as `"50GiB"`.',
        default="10GiB",
    )
    sendmail: str = key("The program that sends e-mail.", default="/usr/sbin/sendmail", path=True)
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
    commands: bool = key(
        "Whether jobs may name a command for notifications, which runs as the job's user.",
        default=True,
    )
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
    most: int = key(
        "The largest number of waiting notifications of all users.", default=5000, minimum=1
    )
    timeout_seconds: float = key(
        "Longest time of one try to deliver: until the host is found, the service answers, or the "
        "command ends.",
        default=10.0,
        above=0,
    )
    keep_trying: int | str = key(
        'How long to retry a delivery: seconds, or text such as `"1d"`.',
        default="1d",
    )

    @property
    def all_destinations(self) -> tuple[NoticeDestination, ...]:
        """Return the destinations that get the notifications of all jobs, `webhook` included."""
        if self.webhook is None:
            return self.places
        return (*self.places, NoticeDestination(name=WEBHOOK_NAME, url=self.webhook, on=self.on))


def wrong_notify(config: NotifyConfig) -> Iterator[str]:
    """Yield a sentence for each error in `[notify]`. No sentence contains an address or a
    secret.
    """
    yield from wrong_notices("notify.on", config.on, DESTINATION_NOTICES)
    for name, url in (("webhook", config.webhook), ("link", config.link)):
        if url is not None and (why := wrong_url(url)) is not None:
            yield f"notify.{name}: {why}"
    for entry in config.allow:
        if (why := wrong_url(entry if "://" in entry else f"https://{entry}")) is not None:
            yield f"notify.allow: {format_value(entry)} {why}"
    for network in config.networks:
        try:
            ip_network(network)
        except ValueError as error:
            yield f"notify.networks: {error}"
    for name, value, read in (
        ("keep_trying", config.keep_trying, seconds_of),
        ("disk_free", config.disk_free, bytes_of),
    ):
        try:
            read(value)
        except ValueError as error:
            yield f"notify.{name} = {format_value(value)}: {error}"
    names = [destination.name for destination in config.all_destinations]
    for destination in config.places:
        where = f"notify.places: {format_value(destination.name)}"
        if names.count(destination.name) > 1:
            yield f"{where} appears {names.count(destination.name)} times; give each its own name"
        for problem in _wrong_destination(destination):
            yield f"{where}: {problem}"


def _wrong_destination(destination: NoticeDestination) -> Iterator[str]:
    if not _NAME.fullmatch(destination.name):
        yield "name: must be letters, digits, '.', '_' and '-', at most 64"
    yield from wrong_notices("on", destination.on, DESTINATION_NOTICES)
    if destination.kind == EMAIL:
        if not destination.to:
            yield 'name its url, or addresses of e-mail: to = ["me@example.org"]'
        if destination.url is not None:
            yield "url: e-mail uses no url; remove it"
    elif destination.url is None:
        yield "url: is missing"
    elif (why := wrong_url(destination.url)) is not None:
        yield f"url: {why}"
    elif destination.kind == NTFY and not urlsplit(destination.url).path.strip("/"):
        yield "url: must end with the topic, as https://ntfy.sh/TOPIC does"
    if destination.kind != EMAIL and (destination.to or destination.sender is not None):
        yield f"to and sender are keys of e-mail, and this is {destination.kind}; remove them"
    for each in (*destination.to, *filter(None, (destination.sender,))):
        if not _ADDRESS.fullmatch(each) or not each.isascii() or not each.isprintable():
            yield f"{format_value(each)} is not an address of e-mail such as me@example.org"
    if destination.secret is not None and destination.kind not in _SIGNED:
        yield f"secret: {destination.kind} uses no secret; remove it"
    elif destination.secret is not None and not (
        destination.secret.isascii() and destination.secret.isprintable()
    ):
        yield "secret: must be printable ASCII characters"

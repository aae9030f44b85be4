"""Sends notices to the destinations in the daemon's configuration: services by HTTP, and e-mail."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection
from dataclasses import replace
from email.message import EmailMessage
from email.utils import formatdate
from tempfile import TemporaryFile
from typing import Any

from zerotools.core.errors import BadRequest
from zerotoolsd.config.notify_config import (
    DESTINATION_NOTICES,
    EMAIL,
    WEBHOOK_NAME,
    NoticeDestination,
    NotifyConfig,
)
from zerotoolsd.monitoring.notifications.make_notices import JobNotices
from zerotoolsd.monitoring.notifications.message_formats import NotDelivered, NoticeText
from zerotoolsd.monitoring.notifications.notify_command import end_session
from zerotoolsd.monitoring.notifications.webhooks import WebhookSender
from zerotoolsd.queue.tables.notice_outbox import Notice
from zerotoolsd.users.start_as_submitter import USUAL_PATH

_LONGEST_SUBJECT = 200
_LONGEST_OUTPUT = 200
TEST_SECONDS = 30.0
"""The longest time of a test of a destination; its last notice may take `timeout_seconds` more."""


class DestinationSender:
    """Sends notices to configured destinations. `web` sends the notices that go by HTTP."""

    def __init__(self, config: NotifyConfig, web: WebhookSender) -> None:
        self._config = config
        self._places = {destination.name: destination for destination in config.places}
        self._web = web

    async def send(self, notice: Notice) -> str:
        """Send the notice once to the destination `notice.target`. Return the answer in a few
        words.

        Raises NotDelivered, within `notify.timeout_seconds`.
        """
        destination = self._places.get(notice.target)
        if destination is None:
            raise NotDelivered(
                f"the destination {notice.target} is not in the configuration "
                "([[notify.places]]) any more"
            )
        if destination.name == WEBHOOK_NAME and self._config.webhook is not None:
            return await self._web.send(replace(notice, target=self._config.webhook))
        if destination.kind == EMAIL:
            return await self._mail(destination, notice)
        return await self._web.send_to(destination, notice)

    async def _mail(self, destination: NoticeDestination, notice: Notice) -> str:
        """Pass an e-mail to the program `sendmail`, which delivers or queues it. Raises
        NotDelivered.

        Child processes of sendmail may deliver the e-mail later and are not killed. These processes
        may keep the output of sendmail open, so the output is a file and not a pipe.
        """
        program, limit = self._config.sendmail, self._config.timeout_seconds
        with TemporaryFile() as output:
            try:
                child = await asyncio.create_subprocess_exec(
                    *(program, "-i", *destination.to),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    cwd="/",
                    env={"PATH": f"{USUAL_PATH}:/usr/sbin:/sbin", "LANG": "C.UTF-8"},
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise NotDelivered(f"{program} cannot be started: {error}") from None
            try:
                async with asyncio.timeout(limit):
                    await child.communicate(mail_of(destination, notice))
            except TimeoutError:
                raise NotDelivered(f"{program} did not end within {limit:g} s") from None
            finally:
                await end_session(child)
            output.seek(0)
            said = output.read(_LONGEST_OUTPUT).decode("utf-8", "replace")
        if child.returncode:
            status = f"{program} ended with status {child.returncode}"
            raise NotDelivered(": ".join(filter(None, (status, " ".join(said.split())))))
        return f"{program} ended with status 0"


def mail_of(destination: NoticeDestination, notice: Notice) -> bytes:
    """Return the e-mail of a notice, with the headers that a mail program needs.

    The message id is the same for each try, so a mail server may drop a repeated delivery.
    """
    text, host = NoticeText.of(notice), os.uname().nodename
    mail = EmailMessage()
    mail["From"] = destination.sender or f"zerotools@{host}"
    mail["To"] = ", ".join(destination.to)
    mail["Subject"] = text.title[:_LONGEST_SUBJECT]
    mail["Date"] = formatdate(notice.created, localtime=True)
    mail["Message-ID"] = f"<{notice.key}@zerotools.invalid>"
    mail["Auto-Submitted"] = "auto-generated"
    body = "\n".join((*text.lines, *filter(None, (text.link,)))) or text.title
    mail.set_content(body)
    return mail.as_bytes()


async def try_destinations(
    config: NotifyConfig,
    web: WebhookSender,
    notices: JobNotices,
    names: Collection[str],
    kinds: Collection[str],
) -> list[dict[str, Any]]:
    """Send one notice of each kind to each destination, and return the answers.

    `names` and `kinds` select destinations and kinds. If they are empty, all destinations get a
    notice of each kind in their list `on`. All destinations are tried at the same time. If a
    destination does not answer, no more notices are sent to it. Raises BadRequest.
    """
    known = config.all_destinations
    if not known:
        raise BadRequest(
            "no destination of notifications is configured; add [[notify.places]] to "
            "zerotoolsd.toml"
        )
    if unknown := sorted(set(kinds) - {*DESTINATION_NOTICES}):
        raise BadRequest(f"kind {unknown[0]} is not one of {', '.join(DESTINATION_NOTICES)}")
    if unknown := sorted(set(names) - {destination.name for destination in known}):
        there = ", ".join(destination.name for destination in known)
        raise BadRequest(
            f"the destination {unknown[0]} is not in the configuration, which has {there}"
        )
    sender = DestinationSender(replace(config, places=known), web)
    chosen = [destination for destination in known if not names or destination.name in names]
    found = await asyncio.gather(
        *(_try_destination(destination, sender, notices, kinds) for destination in chosen)
    )
    return [answer for answers in found for answer in answers]


async def _try_destination(
    destination: NoticeDestination,
    sender: DestinationSender,
    notices: JobNotices,
    kinds: Collection[str],
) -> list[dict[str, Any]]:
    answers, why_none = [], None
    deadline = time.monotonic() + TEST_SECONDS
    for kind in kinds or destination.on:
        is_delivered, answer = False, f"not sent: {why_none}"
        if why_none is None:
            try:
                answer = await sender.send(notices.sample(kind, destination.name, time.time()))
                is_delivered = True
            except NotDelivered as error:
                answer, why_none = str(error), "the previous notice was not delivered"
            if time.monotonic() > deadline:
                why_none = f"the test took longer than {TEST_SECONDS:g} s"
        answers.append(
            {
                "place": destination.name,
                "service": destination.kind,
                "notice": kind,
                "delivered": is_delivered,
                "answer": answer,
            }
        )
    return answers

"""Places of the configuration: servers that answer as the services do, and a fake sendmail."""

from __future__ import annotations

import asyncio
import email
import email.policy
import gzip
import json
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.daemon.queue.tables.test_notice_outbox import a_notice
from zerotools.core.errors import BadRequest
from zerotoolsd.config.notify_config import NoticeDestination, NotifyConfig
from zerotoolsd.monitoring.notifications.make_notices import JobNotices
from zerotoolsd.monitoring.notifications.message_formats import NotDelivered
from zerotoolsd.monitoring.notifications.send_to_destinations import (
    DestinationSender,
    mail_of,
    try_destinations,
)
from zerotoolsd.monitoring.notifications.webhooks import WebhookSender

BODY = json.dumps(
    {
        "text": "job 7 (a\r\nBcc: x@e.test) has failed",
        "title": "job 7 (a\r\nBcc: x@e.test) has failed",
        "details": ["rank 0 exited with 1: é", "." * 2000],
        "link": "https://gpu.lab/#/jobs/7",
    }
)
KEY = "secret-of-the-address"
Answer = Callable[[web.Request], Awaitable[web.Response]]


def slack(tree: Any) -> web.Response:
    is_good = isinstance(tree.get("text"), str) and len(tree["blocks"]) <= 50
    return web.Response(status=200 if is_good else 400, text="ok" if is_good else "invalid_payload")


def discord(tree: Any) -> web.Response:
    if not tree.get("content") and not tree.get("embeds"):
        return web.json_response({"message": "Cannot send an empty message"}, status=400)
    return web.json_response({"id": "1"})


def feishu(tree: Any) -> web.Response:
    if "sign" not in tree:
        return web.json_response({"code": 19021, "msg": "sign match fail"})
    return web.json_response({"code": 0, "msg": "success", "data": {}})


def dingtalk(tree: Any) -> web.Response:
    if tree["msgtype"] != "text":
        return web.json_response({"errcode": 300001, "errmsg": "unsupported"})
    return web.json_response({"errcode": 0, "errmsg": "ok"})


def ntfy(tree: Any) -> web.Response:
    if not tree.get("topic"):
        return web.json_response({"code": 40009, "http": 400}, status=400)
    return web.json_response({"id": "x", "event": "message", **tree})


SERVERS: dict[str, Callable[[Any], web.Response]] = {
    "slack": slack,
    "discord": discord,
    "feishu": feishu,
    "dingtalk": dingtalk,
    "ntfy": ntfy,
}


def with_server(handler: Answer, story: Callable[[str], Awaitable[Any]]) -> Any:
    """Run `story` with the address of a server on this machine that answers by `handler`."""

    async def run() -> Any:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            return await story(f"http://127.0.0.1:{runner.addresses[0][1]}/{KEY}")
        finally:
            await runner.cleanup()

    return asyncio.run(run())


def sender_to(*places: NoticeDestination, **config: Any) -> DestinationSender:
    settings = NotifyConfig(places=places, **config)
    return DestinationSender(settings, WebhookSender(settings))


@pytest.mark.parametrize("service", sorted(SERVERS))
def test_each_service_takes_its_message_on_the_own_machine(service: str) -> None:
    got: list[tuple[str, Any]] = []

    async def handler(request: web.Request) -> web.Response:
        tree = await request.json()
        got.append((request.path, tree))
        return SERVERS[service](tree)

    async def story(url: str) -> str:
        secret = "s" if service in ("feishu", "dingtalk") else None
        destination = NoticeDestination(name="lab", service=service, url=url, secret=secret)
        return await sender_to(destination).send(a_notice(target="lab", body=BODY))

    assert with_server(handler, story).startswith("status 200")
    ((path, tree),) = got
    assert path == ("/" if service == "ntfy" else f"/{KEY}")
    assert "job 7 " in json.dumps(tree)


def test_a_place_without_a_service_of_its_own_gets_json() -> None:
    got: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        got.append(await request.json())
        return web.Response(status=204)

    async def story(url: str) -> str:
        destination = NoticeDestination(name="lab", url=url)
        return await sender_to(destination).send(a_notice(target="lab", body=BODY))

    assert with_server(handler, story) == "status 204"
    assert got == [json.loads(BODY)]


@pytest.mark.parametrize(
    ("service", "answer", "why"),
    [
        ("slack", web.Response(status=403, text=f"{KEY} is no token"), r"403: \*\*\* is no token"),
        ("slack", web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), "302"),
        ("feishu", web.json_response({"code": 19024, "msg": "Key Words Not Found"}), "Key Words"),
        (
            "feishu",
            web.Response(text="<html>" + "x" * 100_000),
            "this answer is not from feishu: check the URL",
        ),
        (
            "dingtalk",
            web.Response(body=b"\xff\xfe"),
            "this answer is not from dingtalk: check the URL",
        ),
        ("discord", web.Response(status=429, text='{"retry_after": 3.5}'), "status 429"),
    ],
)
def test_an_answer_that_is_no_delivery(service: str, answer: web.Response, why: str) -> None:
    asked = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        return answer

    async def story(url: str) -> str:
        destination = NoticeDestination(name="lab", service=service, url=url)
        return await sender_to(destination).send(a_notice(target="lab", body=BODY))

    with pytest.raises(NotDelivered, match=why) as found:
        with_server(handler, story)
    assert KEY not in str(found.value)
    assert len(asked) == 1
    assert found.value.retry_after == (3.5 if service == "discord" else None)


def test_an_answer_that_is_no_http_shows_no_secret_and_is_not_decompressed() -> None:
    async def broken(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.write(f"{KEY}\r\n\r\n".encode())
        request.transport.close()
        return web.Response()

    async def packed(request: web.Request) -> web.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        headers = {"Content-Encoding": "gzip"}
        return web.Response(status=400, body=gzip.compress(b"x" * 9999), headers=headers)

    async def story(url: str) -> str:
        destination = NoticeDestination(name="lab", service="slack", url=url)
        with pytest.raises(NotDelivered) as found:
            await sender_to(destination).send(a_notice(target="lab", body=BODY))
        return str(found.value)

    said = with_server(broken, story)
    assert "***" in said
    assert KEY not in said
    assert "\n" not in said
    assert "xxx" not in with_server(packed, story)


def test_the_address_of_all_jobs_is_tested_as_it_is_used() -> None:
    """Its host may not lead into a private network, unlike those of places."""
    config = NotifyConfig(webhook="http://lab.test:1/x", on=("failed",))

    async def private(host: str, port: int) -> list[str]:
        return ["10.0.0.1"]

    web = WebhookSender(config, look_up=private)
    (answer,) = asyncio.run(try_destinations(config, web, JobNotices(config), (), ()))
    assert not answer["delivered"]
    assert "has the address 10.0.0.1, which is neither public" in answer["answer"]


def test_a_service_that_never_ends_its_answer() -> None:
    async def handler(request: web.Request) -> Any:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await asyncio.Event().wait()

    async def story(url: str) -> str:
        destination = NoticeDestination(name="lab", service="feishu", url=url)
        return await sender_to(destination, timeout_seconds=0.1).send(
            a_notice(target="lab", body=BODY)
        )

    with pytest.raises(NotDelivered, match=r"no answer within 0\.1 s"):
        with_server(handler, story)


def test_a_place_that_was_removed() -> None:
    with pytest.raises(NotDelivered, match="the destination lab is not in the configuration"):
        asyncio.run(sender_to().send(a_notice(target="lab")))


MAIL = NoticeDestination(
    name="mail", to=("me@example.org", "you@example.org"), sender="gpu@example.org"
)


def fake_sendmail(directory: Path, script: str) -> str:
    path = directory / "sendmail"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_sendmail_gets_a_mail_with_the_name_of_the_job_on_one_line(tmp_path: Path) -> None:
    program = fake_sendmail(tmp_path, f'echo "$@" > {tmp_path}/words; cat > {tmp_path}/mail')
    said = asyncio.run(sender_to(MAIL, sendmail=program).send(a_notice(target="mail", body=BODY)))
    assert said.endswith("ended with status 0")
    assert (tmp_path / "words").read_text() == "-i me@example.org you@example.org\n"
    mail = email.message_from_bytes((tmp_path / "mail").read_bytes(), policy=email.policy.default)
    assert mail["Subject"] == "job 7 (a  Bcc: x@e.test) has failed"
    assert (mail["To"], mail["Bcc"]) == ("me@example.org, you@example.org", None)
    assert mail["From"] == "gpu@example.org"
    assert mail["Auto-Submitted"] == "auto-generated"
    text = mail.get_content().splitlines()
    assert text[0] == "rank 0 exited with 1: é"
    assert text[-1] == "https://gpu.lab/#/jobs/7"
    assert all(len(line) < 998 for line in (tmp_path / "mail").read_text().splitlines())


def test_a_repeated_mail_has_the_same_id() -> None:
    mails = [email.message_from_bytes(mail_of(MAIL, a_notice(body=BODY, tries=n))) for n in (0, 1)]
    assert mails[0]["Message-ID"] == mails[1]["Message-ID"] == "<k@zerotools.invalid>"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo queue is full >&2; exit 75", "ended with status 75: queue is full"),
        ("exit 1", "ended with status 1$"),
        ("exec sleep 1000", "did not end within"),
        (None, "cannot be started"),
    ],
)
def test_a_sendmail_that_fails(tmp_path: Path, script: str | None, why: str) -> None:
    program = str(tmp_path / "none") if script is None else fake_sendmail(tmp_path, script)
    sender = sender_to(MAIL, sendmail=program, timeout_seconds=0.3 if "sleep" in str(script) else 9)
    with pytest.raises(NotDelivered, match=why):
        asyncio.run(sender.send(a_notice(target="mail", body=BODY)))


def test_a_sendmail_that_delivers_in_the_background(tmp_path: Path) -> None:
    program = fake_sendmail(tmp_path, f"sleep 1000 & echo $! > {tmp_path}/pid")
    try:
        asyncio.run(sender_to(MAIL, sendmail=program).send(a_notice(target="mail", body=BODY)))
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_test_tells_what_each_place_answered(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        tree = await request.json()
        return web.Response(status=500 if "has failed" in json.dumps(tree) else 200, text="late")

    async def story(url: str) -> list[dict[str, Any]]:
        bad = NoticeDestination(
            name="lab", service="slack", url=url, on=("started", "failed", "held")
        )
        mail = replace(MAIL, on=("failed",))
        config = NotifyConfig(
            places=(bad, mail),
            webhook=url,
            networks=("127.0.0.0/8",),
            on=("held",),
            sendmail="/bin/true",
            timeout_seconds=5,
        )
        web_sender, notices = WebhookSender(config), JobNotices(config, "box1")
        with pytest.raises(
            BadRequest, match=r"destination gone is not in .* has lab, mail, webhook"
        ):
            await try_destinations(config, web_sender, notices, ["gone"], [])
        with pytest.raises(BadRequest, match="kind done is not one of started, "):
            await try_destinations(config, web_sender, notices, [], ["done"])
        with pytest.raises(BadRequest, match="no destination of notifications is configured; add"):
            await try_destinations(NotifyConfig(), web_sender, notices, [], [])
        one = await try_destinations(config, web_sender, notices, ["mail"], ["held", "started"])
        assert [each["notice"] for each in one] == ["held", "started"]
        return await try_destinations(config, web_sender, notices, [], [])

    answers = with_server(handler, story)
    assert [(a["place"], a["notice"], a["delivered"], a["answer"]) for a in answers] == [
        ("lab", "started", True, "status 200"),
        ("lab", "failed", False, "status 500: late"),
        ("lab", "held", False, "not sent: the previous notice was not delivered"),
        ("mail", "failed", True, "/bin/true ended with status 0"),
        ("webhook", "held", True, "status 200"),
    ]

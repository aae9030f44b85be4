"""Deliveries to a server in the test's own event loop: what it gets, and how it may misbehave."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.daemon.queue.tables.test_notice_outbox import a_notice
from zerotools.jobs.jobfile_tables.notify import NotifySpec
from zerotoolsd.config.notify_config import NotifyConfig
from zerotoolsd.monitoring.notifications.message_formats import NotDelivered
from zerotoolsd.monitoring.notifications.webhooks import (
    ForbiddenAddress,
    WebhookSender,
    check_address,
    look_up,
    why_job_refused,
    why_refused,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def at_home(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def deliver(
    handler: Handler,
    *,
    networks: tuple[str, ...] = ("127.0.0.0/8",),
    look_up: Any = at_home,
    seconds: float = 5.0,
    host: str = "hooks.test",
    tls: ssl.SSLContext | None = None,
    trust: ssl.SSLContext | None = None,
) -> str | None:
    """What is wrong with a delivery to a server that answers by `handler`; None: nothing."""

    async def story() -> str | None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        port = runner.addresses[0][1]
        place = f"http{'s' * (tls is not None)}://{host}:{port}"
        config = NotifyConfig(allow=(place,), networks=networks, timeout_seconds=seconds)
        sender = WebhookSender(config, look_up=look_up, ssl=trust)
        try:
            await sender.send(a_notice(target=f"{place}/hook", body=json.dumps({"text": "é"})))
        except NotDelivered as error:
            return str(error)
        finally:
            await runner.cleanup()
        return None

    return asyncio.run(story())


async def fine(request: web.Request) -> web.Response:
    return web.Response()


def test_what_the_receiver_gets() -> None:
    got: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        got.append((request.method, request.path, dict(request.headers), await request.json()))
        return web.Response(text="x" * 1_000_000)

    assert deliver(handler) is None
    ((method, path, headers, body),) = got
    assert (method, path, body) == ("POST", "/hook", {"text": "é"})
    assert headers["Idempotency-Key"] == "k"
    assert headers["Content-Type"] == "application/json"
    assert "Cookie" not in headers


def test_the_webhook_of_a_job_has_the_form_of_its_host() -> None:
    got: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        got.append(await request.json())
        return web.Response(text="ok")

    assert deliver(handler, host="hooks.slack.com") is None
    assert got[0]["blocks"][0]["text"]["text"] == "é"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    assert (
        deliver(handler)
        == f"status {status}: a redirect, which zerotoolsd does not follow; use the address that "
        "it redirects to"
    )
    assert asked == ["/hook"]


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_any_other_status_is_no_delivery(status: int) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status)

    assert deliver(handler) == f"status {status}"


def test_a_receiver_that_hangs_has_a_time_limit() -> None:
    async def handler(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    assert deliver(handler, seconds=0.05) == "no answer within 0.05 s"


def test_so_has_a_name_service_that_hangs() -> None:
    async def hanging(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    assert deliver(fine, look_up=hanging, seconds=0.05) == "no answer within 0.05 s"


def test_an_address_of_the_machine_is_not_reached_unless_it_is_allowed() -> None:
    said = deliver(fine, networks=())
    assert said is not None
    assert "hooks.test has the address 127.0.0.1, which is neither public" in said


def test_what_is_connected_to_is_what_was_checked() -> None:
    """A name service that says one address at first and the machine's own afterwards."""
    answers = [["8.8.8.8"], ["127.0.0.1"]]
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    async def never(request: web.Request) -> web.Response:
        raise AssertionError("it was reached")

    said = deliver(never, look_up=rebinding, networks=(), seconds=0.2)
    assert said is not None
    assert asked == ["hooks.test"], "it is looked up once, and connected to that"


def test_one_bad_address_among_good_ones_is_refused() -> None:
    async def mixed(host: str, port: int) -> list[str]:
        return ["8.8.8.8", "169.254.169.254"]

    assert "has the address 169.254.169.254" in str(deliver(fine, look_up=mixed))


def test_an_address_as_a_number_is_checked_too() -> None:
    async def unused(host: str, port: int) -> list[str]:
        raise AssertionError("a number is not looked up")

    assert deliver(fine, host="127.0.0.1", look_up=unused, networks=()) is None  # it is named
    sender = WebhookSender(NotifyConfig(allow=("http://127.0.0.1:1",)))
    with pytest.raises(NotDelivered, match=r"does not send to http://127\.1:1"):
        asyncio.run(sender.send(a_notice(target="http://127.1:1/")))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -keyout key"
    subject = ("-out", "pem", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    subprocess.run(
        ("openssl", *words.split(), *subject), cwd=tmp_path, check=True, capture_output=True
    )
    certificate, key = tmp_path / "pem", tmp_path / "key"
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    assert "CERTIFICATE_VERIFY_FAILED" in str(deliver(fine, tls=server, host="localhost"))
    trusts = ssl.create_default_context(cafile=str(certificate))
    assert deliver(fine, tls=server, host="localhost", trust=trusts) is None
    other = deliver(fine, tls=server, host="other.test", trust=trusts)
    assert "CERTIFICATE_VERIFY_FAILED" in str(other)


def test_nobody_listens() -> None:
    config = NotifyConfig(allow=("http://hooks.test:1",), networks=("127.0.0.0/8",))
    sender = WebhookSender(replace(config, timeout_seconds=5.0), look_up=at_home)
    with pytest.raises(NotDelivered, match="Connect"):
        asyncio.run(sender.send(a_notice(target="http://hooks.test:1/")))


def test_the_systems_resolver() -> None:
    assert "127.0.0.1" in asyncio.run(look_up("localhost", 443))
    with pytest.raises(OSError, match=r"."):
        asyncio.run(look_up("no host at all", 443))


CONFIG = NotifyConfig(
    allow=("hooks.slack.com", "chat.lab:8443", "http://10.0.0.5:8080"),
    networks=("192.168.1.0/24",),
    webhook="https://admin.example/x",
)


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.slack.com/services/x",
        "https://HOOKS.slack.com:443/x",
        "https://hooks.slack.com./x",
        "https://chat.lab:8443/",
        "http://10.0.0.5:8080/x",
        "https://admin.example/other",
    ],
)
def test_what_the_administrator_lists_may_be_asked(url: str) -> None:
    assert why_refused(url, CONFIG) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.slack.com/x",
        "https://hooks.slack.com:8443/x",
        "https://hooks.slack.com.evil.example/x",
        "https://evil.example/hooks.slack.com",
        "https://evil.example#@hooks.slack.com/",
        "https://chat.lab/",
        "https://10.0.0.5:8080/",
        "http://169.254.169.254/latest/meta-data",
    ],
)
def test_nothing_else_is(url: str) -> None:
    assert "this daemon does not send to" in str(why_refused(url, CONFIG))


def test_without_a_list_nothing_is_sent() -> None:
    assert "sends to no host" in str(why_refused("https://x.example/", NotifyConfig()))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "192.168.1.7", "10.0.0.5"])
def test_addresses_that_may_be_reached(address: str) -> None:
    check_address("host", address, CONFIG)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "0.0.0.0", "::1", "::", "169.254.169.254", "fe80::1%eth0", "fd00:ec2::254"),
        *("10.0.0.6", "192.168.2.7", "172.17.0.1", "100.100.100.200", "224.0.0.1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "255.255.255.255"),
    ],
)
def test_addresses_that_may_not(address: str) -> None:
    with pytest.raises(ForbiddenAddress, match="which is neither public"):
        check_address("host", address, CONFIG)


def test_what_a_job_wants_is_judged_at_its_submit() -> None:
    assert why_job_refused(NotifySpec(), NotifyConfig(commands=False)) is None
    wants = NotifySpec(webhook="https://evil.example/key")
    said = str(why_job_refused(wants, CONFIG))
    assert said.startswith("notify.webhook: ")
    assert "key" not in said
    runs = NotifySpec(command=("tell",))
    assert why_job_refused(runs, CONFIG) is None
    assert "does not allow commands" in str(why_job_refused(runs, NotifyConfig(commands=False)))

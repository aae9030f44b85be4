"""Which hosts may be asked, and which addresses they may lead to."""

from __future__ import annotations

import pytest

from zerotools.jobs.tables.notify import NotifySpec
from zerotoolsd.config.notify_config import NotifyConfig
from zerotoolsd.monitoring.notifications.webhook_addresses import (
    ForbiddenAddress,
    check_address,
    why_job_refused,
    why_refused,
)

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
    with pytest.raises(ForbiddenAddress, match="which is not a public address"):
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

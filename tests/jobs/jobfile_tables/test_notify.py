"""`[notify]` of a job: what is taken, what is refused, and what is shown of an address."""

from __future__ import annotations

import pytest

from tests.daemon.http.api.made_views import a_job
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.notify import NOTICES, NotifySpec, check_notify, masked_url

SLACK = "https://hooks.slack.com/services/T0/B0/XX"


def test_a_job_that_tells_of_everything() -> None:
    notify = {"on": list(NOTICES), "webhook": SLACK, "command": ["tell", "--loudly"]}
    assert a_job(notify=notify).notify.command == ("tell", "--loudly")


@pytest.mark.parametrize(
    ("notify", "why"),
    [
        (NotifySpec(on=("done",)), 'notify.on: "done" is not one of started, '),
        (NotifySpec(webhook="ftp://host/x"), "must begin with https:// or http:// and a host"),
        (NotifySpec(webhook="https:///x"), "must begin with https:// or http:// and a host"),
        (NotifySpec(webhook="https://me:secret@host/x"), "must not have a user or a password"),
        (NotifySpec(webhook="https://host:99999/"), "is not an address: Port out of range"),
        (NotifySpec(webhook="https://[::1/"), "is not an address"),
        (NotifySpec(webhook="https://host:0/"), "has port 0"),
        (NotifySpec(webhook="https://ho st/"), "printable ASCII characters"),
        (NotifySpec(webhook=f"https://host/{'x' * 2000}"), "at most 2000"),
        (NotifySpec(command=("",)), "its first string is empty"),
    ],
)
def test_what_is_refused_says_why_and_shows_no_key(notify: NotifySpec, why: str) -> None:
    said = "; ".join(check_notify(notify))
    assert why in said
    assert "secret" not in said.replace("a user or a password", "")


def test_the_job_as_a_whole_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"notify\.on"):
        a_job(notify={"on": ["done"]})
    with pytest.raises(BadRequest, match=r"notify\.command"):
        a_job(notify={"command": ["a\0b"]})


def test_of_an_address_its_host_is_shown() -> None:
    assert masked_url(SLACK) == "https://hooks.slack.com/***"
    assert masked_url("https://me:pass@host:8443/x") == "https://host:8443/***"
    assert masked_url("https://[::1/") == "***"

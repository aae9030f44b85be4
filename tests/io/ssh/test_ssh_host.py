from __future__ import annotations

import pytest

from zerotools.core.errors import BadRequest
from zerotools.io.ssh.ssh_host import SshHost, parse_login, parse_url


def wrong(text: str, why: str) -> BadRequest:
    return BadRequest(f"{text}: {why}")


def test_a_url_may_have_any_path() -> None:
    assert parse_url("ssh://ada@box:22/a:b%0Ac", wrong) == SshHost("box", "ada", 22, "/a:b\nc")


@pytest.mark.parametrize(
    ("place", "host"),
    [
        ("box", SshHost("box")),
        ("ada@Box", SshHost("Box", "ada")),
        ("[fe80::1]", SshHost("fe80::1")),
        ("ada@[fe80::1]", SshHost("fe80::1", "ada")),
    ],
)
def test_a_login(place: str, host: SshHost) -> None:
    assert parse_login(f"{place}:x", place, wrong) == host


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("", "the host is missing"),
        ("@box", "the user is missing"),
        ("-oProxyCommand=x", "a host cannot begin with -"),
        ("-l@box", "a user cannot begin with -"),
        ("bo x", "the host has a character"),
        ("box;id", "the host has a character"),
    ],
)
def test_no_login(place: str, why: str) -> None:
    with pytest.raises(BadRequest, match=f"^here: {why}"):
        parse_login("here", place, wrong)

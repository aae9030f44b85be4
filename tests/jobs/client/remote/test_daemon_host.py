from __future__ import annotations

import pytest

from zerotools.core.errors import BadRequest
from zerotools.io.ssh.ssh_host import SshHost
from zerotools.jobs.client.remote.daemon_host import parse_host


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("ssh://box", SshHost("box")),
        ("ssh://Box/", SshHost("Box")),  # a name of ssh's configuration
        ("ssh://ada@box:2222", SshHost("box", "ada", 2222)),
        ("ssh://box/run/my%20place/api.sock", SshHost("box", path="/run/my place/api.sock")),
        ("ssh://[fe80::1]:22/x.sock", SshHost("fe80::1", port=22, path="/x.sock")),
    ],
)
def test_a_machine(text: str, host: SshHost) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("box", "must begin with ssh://"),
        ("http://box", "must begin with ssh://"),
        ("ssh://", "the host is missing"),
        ("ssh://ada@", "the host is missing"),
        ("ssh://@box", "the user is missing"),
        ("ssh://-oProxyCommand=touch", "a host cannot begin with -"),
        ("ssh://-l@box", "a user cannot begin with -"),
        ("ssh://%2Doption@box", "a user cannot begin with -"),
        ("ssh://a;b@box", "the user has a character"),
        ("ssh://bo x", "the host has a character"),
        ("ssh://box$(id)", "the host has a character"),
        ("ssh://ada:secret@box", "a password cannot be given"),
        ("ssh://box:0", "its port must be"),
        ("ssh://box:99999", "its port must be"),
        ("ssh://box:x", "its port must be"),
        ("ssh://box/a:b", "a character that ssh refuses"),
        ("ssh://box/a%0Ab", "a character that ssh refuses"),
        ("ssh://box/x?y", "begins with ? or #"),
    ],
)
def test_what_is_no_machine(text: str, why: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_host(text)
    assert why in str(refused.value)
    assert "secret" not in str(refused.value)

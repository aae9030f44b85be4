from __future__ import annotations

import pytest

from zerotools.core.errors import BadRequest
from zerotools.io.ssh.ssh_command_line import (
    OPTIONS,
    SshHost,
    connection_failure,
    parse_login,
    parse_url,
    ssh_program,
    ssh_words,
)


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


SILENCE = ("ServerAliveInterval=15", "ServerAliveCountMax=4")
HOST = SshHost("box", "ada", 2222)


def test_it_asks_nothing_and_trusts_no_new_key() -> None:
    words = ssh_words(HOST, OPTIONS)
    assert words[-4:] == ["-l", "ada", "-p", "2222"]
    for wanted in ("BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=15", *SILENCE):
        assert words[words.index(wanted) - 1] == "-o"


def test_without_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadRequest, match=r"^x needs the program ssh, .*; install OpenSSH"):
        ssh_program("x")


def test_a_failure_is_one_sentence() -> None:
    said = connection_failure(
        HOST, "cannot be reached", "banner\nada@box: Permission denied (publickey).\n"
    )
    assert said.startswith("ada@box (port 2222) cannot be reached: ada@box: Permission denied (pub")
    assert said.endswith("load yours into an agent (ssh-add)")
    assert connection_failure(HOST, "went away", "") == "ada@box (port 2222) went away"

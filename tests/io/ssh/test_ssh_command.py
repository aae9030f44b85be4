from __future__ import annotations

import pytest

from zerotools.core.errors import BadRequest
from zerotools.io.ssh.ssh_command import OPTIONS, failure, ssh_program, ssh_words
from zerotools.io.ssh.ssh_host import SshHost

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
    said = failure(HOST, "cannot be reached", "banner\nada@box: Permission denied (publickey).\n")
    assert said.startswith("ada@box (port 2222) cannot be reached: ada@box: Permission denied (pub")
    assert said.endswith("load yours into an agent (ssh-add)")
    assert failure(HOST, "went away", "") == "ada@box (port 2222) went away"

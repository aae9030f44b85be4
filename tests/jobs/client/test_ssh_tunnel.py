from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.io.ssh.double import SshDouble
from zerotools.core.errors import BadRequest, DaemonUnreachable
from zerotools.io.ssh.ssh_command_line import SshHost
from zerotools.jobs.client.daemon_address import Address, machine_behind, shown_socket
from zerotools.jobs.client.ssh_tunnel import SshTunnel, is_complete, parse_host, read_answer

SAID = (
    b"Last login: today\nmark\n/home/ada\x001000\x002\x00/run/a b.sock\x00/var/c.sock\x00"
    b"PATH=/bin\x00ODD\x00TWO=1\nmark=2\x00mark\n"
)


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshDouble:
    return SshDouble(tmp_path, monkeypatch)


def _listen(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    with Address(path) as address:  # that of a test may be longer than the kernel takes
        listening.bind(address)
    listening.listen()
    return listening


def test_a_socket_here_leads_to_the_one_there(
    ssh: SshDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ssh.home / ".local" / "state" / "zerotools" / "api.sock"
    monkeypatch.setenv("HF_HOME", "/data/hf")
    with _listen(usual) as listening:
        tunnel = SshTunnel(SshHost("box", "ada", 2222))
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(tunnel.socket))
            listening.accept()[0].close()
        machine = machine_behind(tunnel.socket)
        assert machine is not None
        assert (machine.home, machine.environment["HF_HOME"]) == (str(ssh.home), "/data/hf")
        assert shown_socket(tunnel.socket) == f"ada@box (port 2222):{usual}"
        tunnel.close()
    assert not tunnel.socket.parent.exists()
    assert machine_behind(tunnel.socket) is None
    login, forward, over = ssh.calls
    assert over == "over"  # what ran there ended when the connection did
    assert "BatchMode=yes" in login
    assert "StrictHostKeyChecking=yes" in login
    assert "-l ada -p 2222 -- box exec sh -c" in login
    assert forward.endswith("-- box")


def test_a_socket_that_is_named_is_one_word_there(ssh: SshDouble, tmp_path: Path) -> None:
    place = tmp_path / "it's; touch x" / "api.sock"
    with _listen(place):
        tunnel = SshTunnel(SshHost("box", path=str(place)))
        assert tunnel.socket.readlink() == place
        tunnel.close()
    assert not Path("x").exists()


def test_nothing_listens_there(ssh: SshDouble) -> None:
    with pytest.raises(DaemonUnreachable, match="no zerotoolsd listens on box in any of the usual"):
        SshTunnel(SshHost("box"))
    assert ssh.calls[-1] == "over"


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Host key verification failed.", "compare the key: ssh box"),
        ("ada@box: Permission denied (publickey,password).", "ssh-copy-id"),
        ("ssh: Could not resolve hostname box: Name or service not known", "is the name right"),
        ("banner\nkex_exchange_identification: Connection reset", "by ssh: kex_exchange"),
    ],
)
def test_a_login_that_fails_says_what_to_do(ssh: SshDouble, said: str, advice: str) -> None:
    ssh.fails(said + "\n")
    with pytest.raises(DaemonUnreachable) as refused:
        SshTunnel(SshHost("box"))
    assert advice in str(refused.value)


def test_without_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadRequest, match="install OpenSSH"):
        SshTunnel(SshHost("box"))


def test_a_connection_that_hangs_is_given_up(ssh: SshDouble, tmp_path: Path) -> None:
    ssh.hangs()
    with (
        _listen(tmp_path / "api.sock"),
        pytest.raises(DaemonUnreachable, match="box did not answer within"),
    ):
        SshTunnel(SshHost("box", path=str(tmp_path / "api.sock")), login_seconds=1.0)


def test_what_stands_between_the_marks() -> None:
    answer = read_answer(SAID, "mark")
    assert answer.home == "/home/ada"
    assert answer.uid == 1000
    assert answer.sockets == ("/run/a b.sock", "/var/c.sock")
    assert answer.environment == {"PATH": "/bin", "TWO": "1\nmark=2"}


def test_it_is_complete_at_its_second_mark() -> None:
    assert is_complete(SAID, "mark")
    assert not any(is_complete(SAID[:n], "mark") for n in range(len(SAID)))


@pytest.mark.parametrize("body", [b"", b"/home/ada\0x\0", b"/home/ada\0", b"no zero"])
def test_another_answer_is_refused(body: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        read_answer(b"mark\n" + body + b"mark\n", "mark")


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

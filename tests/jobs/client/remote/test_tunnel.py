from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.io.ssh.double import SshDouble
from zerotools.core.errors import BadRequest, DaemonUnreachable
from zerotools.io.ssh.ssh_host import SshHost
from zerotools.jobs.client.location import Address
from zerotools.jobs.client.remote.elsewhere import machine_behind, shown_socket
from zerotools.jobs.client.remote.tunnel import SshTunnel


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
    with pytest.raises(DaemonUnreachable, match="no zerotoolsd listens on box at any of the usual"):
        SshTunnel(SshHost("box"))
    assert ssh.calls[-1] == "over"


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Host key verification failed.", "compare it: ssh box"),
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

from __future__ import annotations

from pathlib import Path

import pytest

from tests.io.ssh.double import SshDouble
from zerotools.core.errors import BadFile, HostUnreachable
from zerotools.io.ssh.remote_shell import FarShell, OpenShells
from zerotools.io.ssh.ssh_command_line import SshHost

BOX = SshHost("box")


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshDouble:
    return SshDouble(tmp_path, monkeypatch)


@pytest.mark.parametrize("host", [None, BOX])
def test_what_a_script_prints(ssh: SshDouble, host: SshHost | None) -> None:
    with FarShell(
        host, lambda mark: f"echo 'a  b'; echo {mark}; printf xyz", OpenShells()
    ) as shell:
        assert shell.line() == b"a  b"
        assert shell.line() == shell.mark.encode()
        parts: list[bytes] = []
        assert shell.pass_on(2, parts.append) == 2
        assert (b"".join(parts), shell.rest(10)) == (b"xy", b"z")
        assert shell.pass_on(1, parts.append) == 0
        assert shell.line() is None


def test_the_login_shell_sees_two_words(ssh: SshDouble) -> None:
    with FarShell(BOX, lambda _: "echo 'it'\"'\"'s $HOME'", OpenShells()) as shell:
        assert shell.line() == b"it's $HOME"
    assert ssh.calls[0].endswith(" -- box exec sh")


def test_a_script_may_be_longer_than_a_pipe_holds(ssh: SshDouble) -> None:
    lines = "\n".join(f"echo {number:08d}" for number in range(20_000))
    with FarShell(BOX, lambda _: lines, OpenShells()) as shell:
        assert len(shell.rest(1 << 20)) == 20_000 * 9


def test_an_answer_that_is_too_long(ssh: SshDouble) -> None:
    with (
        FarShell(BOX, lambda _: "head -c 99999 /dev/zero", OpenShells()) as shell,
        pytest.raises(BadFile, match="box answers with more than 99 bytes"),
    ):
        shell.rest(99)


def test_a_login_that_fails_says_why(ssh: SshDouble) -> None:
    ssh.fails("ada@box: Permission denied (publickey,password).\n")
    with (
        pytest.raises(
            HostUnreachable, match=r"^box cannot be reached by ssh: ada@box: Perm.*ssh-add"
        ),
        FarShell(BOX, lambda _: "", OpenShells()),
    ):
        pass


def test_a_login_that_hangs_is_given_up(ssh: SshDouble) -> None:
    ssh.hangs("box")
    with (
        pytest.raises(HostUnreachable, match=r"^box sent nothing for 0.2 s; run the same command"),
        FarShell(BOX, lambda _: "", OpenShells(), login_seconds=0.2),
    ):
        pass


def test_a_connection_that_breaks_is_no_end(ssh: SshDouble) -> None:
    ssh.breaks("box", 1000)
    with (
        FarShell(BOX, lambda _: "head -c 5000 /dev/zero", OpenShells()) as shell,
        pytest.raises(HostUnreachable, match=r"^box went away: Connection to box closed by remote"),
    ):
        shell.pass_on(5000, lambda _: None)


def test_a_connection_that_is_silent_is_given_up(ssh: SshDouble) -> None:
    pipe = ssh.stalls("box", 1000)
    shells = OpenShells()
    script = "head -c 5000 /dev/zero"
    with FarShell(BOX, lambda _: script, shells, silent_seconds=0.2) as shell:
        with pipe.open() as told:
            assert told.read() == "stalled\n"
        with pytest.raises(HostUnreachable, match=r"^box sent nothing for 0.2 s"):
            shell.pass_on(5000, lambda _: None)


def test_all_that_are_open_are_ended_at_once(ssh: SshDouble) -> None:
    shells = OpenShells()
    inner = OpenShells(shells)
    with (
        FarShell(None, lambda _: "sleep 60", shells) as first,
        FarShell(None, lambda _: "sleep 60", inner) as second,
    ):
        shells.end_all()
        assert (first.line(), second.line()) == (None, None)
        with (
            pytest.raises(
                HostUnreachable,
                match="this machine was not contacted, because the run is ending",
            ),
            FarShell(None, lambda _: "", shells),
        ):
            pass

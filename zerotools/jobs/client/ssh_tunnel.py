"""Connect to the daemon of another machine by ssh, through a local socket forwarded to the daemon.

    ssh (the master)    logs in once, and runs the shell text of `remote_command` on that machine
    ssh -O forward      lets the master forward a local socket to the daemon's socket

The login uses the system's ssh with the user's configuration, keys and agent. It asks no questions
(BatchMode), and refuses a machine with an unknown host key: the user has to accept the key with
`ssh HOST` first. The daemon treats the user who logged in like a local user.

The connection ends together with the zerotools command, even if the command is killed: stdin of the
master is closed, so the program on the other machine ends. Then the master ends and removes its
sockets.
"""

from __future__ import annotations

import os
import secrets
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadRequest, DaemonUnreachable
from zerotools.io.ssh.ssh_command_line import (
    LOGIN_SECONDS,
    OPTIONS,
    SshHost,
    connection_failure,
    parse_url,
    ssh_environment,
    ssh_program,
    ssh_words,
)
from zerotools.jobs.client.daemon_address import (
    SOCKET_VARIABLE,
    STATE_VARIABLE,
    SYSTEM_STATE,
    RemoteMachine,
    forget_forwarding,
    record_forwarding,
)

END_SECONDS = 5.0
LONGEST_DIRECTORY = 60
"""The largest length in bytes of the path of the directory for ssh's control socket. ssh appends
17 characters to the path of the socket, and the result may have at most 107.
"""
_OPTIONS = {**OPTIONS, "ControlMaster": "yes"}


MAX_BYTES = 4 << 20
"""The largest accepted output of the command on the other machine, in bytes.

An environment has at most 2 MB.
"""


class SshTunnel:
    """A connection to the machine `host`.

    `socket` is the local socket that is forwarded to the daemon on `host`.

    Raises:
        DaemonUnreachable: the login fails, or no daemon runs on `host`.
        BadRequest: ssh is not installed on this machine.
    """

    def __init__(self, host: SshHost, *, login_seconds: float = LOGIN_SECONDS) -> None:
        self.host = host
        self._login_seconds = login_seconds
        self._directory = Path(tempfile.mkdtemp(prefix="zerotools-ssh-", dir=_short_directory()))
        self._control = self._directory / "ssh"
        self.socket = self._directory / "api.sock"
        self._master: subprocess.Popen[bytes] | None = None
        try:
            answer = self._log_in()
            there = self._forward(answer)
        except BaseException:  # close the connection, and raise the error again
            self.close()
            raise
        machine = RemoteMachine(host.shown, there, answer.home, answer.uid, answer.environment)
        record_forwarding(self.socket, machine)

    def _log_in(self) -> Answer:
        mark = f"zerotools-{secrets.token_hex(8)}"
        with (self._directory / "errors").open("wb") as errors:
            self._master = _start(
                [
                    *self._ssh_options(_OPTIONS),
                    "--",
                    self.host.host,
                    remote_command(mark, self.host.path),
                ],
                errors.fileno(),
            )
        output = self._read_until_complete(mark)
        try:
            return read_answer(output, mark)
        except (ValueError, IndexError):
            raise DaemonUnreachable(
                f"{self.host.shown} sent an answer that cannot be read; can its login shell "
                f"run commands? Try: ssh {self.host.host} true"
            ) from None

    def _read_until_complete(self, mark: str) -> bytes:
        assert self._master is not None
        assert self._master.stdout is not None
        out = self._master.stdout.fileno()
        output, deadline = b"", time.monotonic() + self._login_seconds
        while not is_complete(output, mark):
            ready, _, _ = select.select([out], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._silent()
            part = os.read(out, 1 << 16)
            output += part
            if not part or len(output) > MAX_BYTES:
                raise self._failed("cannot be reached by ssh")
        return output

    def _silent(self) -> DaemonUnreachable:
        return self._failed(f"did not answer within {self._login_seconds:g} s")

    def _failed(self, what: str) -> DaemonUnreachable:
        errors = (self._directory / "errors").read_text("utf-8", "replace")
        return DaemonUnreachable(connection_failure(self.host, what, errors))

    def _forward(self, answer: Answer) -> str:
        """Forward the local socket to the daemon's socket.

        Return the path of the daemon's socket on the other machine.
        """
        if not answer.sockets:
            where = f"at {self.host.path}" if self.host.path else "in any of the usual directories"
            raise DaemonUnreachable(
                f"no zerotoolsd listens on {self.host.shown} {where}; start it there, or name "
                "its socket: --host ssh://HOST/PATH/OF/api.sock"
            )
        there = answer.sockets[0]
        # The user's configuration applies to the master: its forwardings are not made twice.
        words = [
            *self._ssh_options({}),
            "-F",
            "none",
            "-O",
            "forward",
            "-L",
            f"{self.socket}:{there}",
        ]
        try:
            done = subprocess.run(
                [_ssh(), *words, "--", self.host.host],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=self._login_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise self._silent() from None
        if done.returncode != 0:
            raise DaemonUnreachable(
                f"{self.host.shown} does not forward sockets over ssh: "
                f"{done.stderr.decode('utf-8', 'replace').strip()}; check that its sshd_config "
                "has AllowStreamLocalForwarding yes"
            )
        return there

    def _ssh_options(self, options: dict[str, str]) -> list[str]:
        """Return `options` and the path of the control socket, which all ssh processes of this
        connection share, as options of ssh."""
        return ssh_words(self.host, {**options, "ControlPath": str(self._control)})

    def close(self) -> None:
        """End the connection, and remove the local socket."""
        forget_forwarding(self.socket)
        master, self._master = self._master, None
        if master is not None:
            for pipe in (master.stdin, master.stdout):
                if pipe is not None:
                    pipe.close()
            try:
                master.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                master.kill()
                master.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def _start(words: Sequence[str], errors: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [_ssh(), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,  # only the command gets Ctrl-C, and ends ssh
        env=ssh_environment(),
    )


def _ssh() -> str:
    return ssh_program("--host")


def _short_directory() -> str:
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= LONGEST_DIRECTORY else "/tmp"


@dataclass(frozen=True)
class Answer:
    """The environment variables of the login on the other machine, and the paths of the daemon's
    sockets that exist there (`sockets`)."""

    home: str
    uid: int
    sockets: tuple[str, ...]
    environment: Mapping[str, str]


def socket_paths() -> tuple[str, ...]:
    """Return the possible paths of the daemon's socket on the other machine, as words for a shell
    there.

    The order is that of `daemon_address.default_socket`, and the first socket that exists is used.
    """
    return (
        f'"${SOCKET_VARIABLE}"',
        f'"${{{STATE_VARIABLE}:-/none}}/api.sock"',
        '"${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/zerotools/api.sock"',
        '"${XDG_STATE_HOME:-$HOME/.local/state}/zerotools/api.sock"',
        f'"{SYSTEM_STATE}/api.sock"',
    )


def remote_command(mark: str, socket: str | None) -> str:
    """Return the command to run on the other machine, as one word for any login shell.

    The command prints `mark` before and after its output.
    """
    looked = " ".join(socket_paths()) if socket is None else shlex.quote(socket)
    script = (
        f'n=0; for p in {looked}; do test -S "$p" && n=$((n+1)); done; '
        f'printf \'%s\\n%s\\0%s\\0%s\\0\' {mark} "$HOME" "$(id -u)" $n; '
        f'for p in {looked}; do test -S "$p" && printf "%s\\0" "$p"; done; '
        f"env -0; printf '%s\\n' {mark}; exec cat >/dev/null"
    )
    return f"exec sh -c {shlex.quote(script)}"


def is_complete(output: bytes, mark: str) -> bool:
    """Return whether `output` is the whole output of the command on the other machine."""
    return output.count(_line(mark)) == 2


def read_answer(output: bytes, mark: str) -> Answer:
    """Parse `output`, the output of the command that `remote_command` returns.

    Raises ValueError if `output` was printed by another program.
    """
    body = output.split(_line(mark))[1]
    words = [word.decode("utf-8", "surrogateescape") for word in body.split(b"\0")[:-1]]
    home, uid, number = words[0], int(words[1]), int(words[2])
    rest = words[3:]
    variables = (word.partition("=") for word in rest[number:])
    return Answer(
        home=home,
        uid=uid,
        sockets=tuple(rest[:number]),
        environment={name: value for name, equals, value in variables if equals},
    )


def _line(mark: str) -> bytes:
    return f"{mark}\n".encode()


def parse_host(text: str) -> SshHost:
    """Parse `ssh://[USER@]HOST[:PORT][/PATH/OF/api.sock]`.

    The path is the daemon's socket. If the text has no path, the result has None as the socket,
    which means the usual path.

    Raises:
        BadRequest: the text does not have this form.
    """
    host = parse_url(text, _wrong)
    if host.path is not None and (not host.path.isprintable() or ":" in host.path):
        # ssh reads `here:there`.
        raise _wrong(text, "the path of the socket has a character that ssh refuses")
    return host


def _wrong(text: str, why: str) -> BadRequest:
    shown = text if text.isprintable() else ascii(text)
    return BadRequest(
        f"--host {shown[:200]}: {why}; write ssh://HOST, ssh://USER@HOST:PORT, or "
        "ssh://HOST/PATH/OF/api.sock"
    )

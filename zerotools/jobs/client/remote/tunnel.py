"""A socket here that leads to the daemon of another machine.

    ssh (the master)    logs in once, and runs `conversation.program` there
    ssh -O forward      lets the master forward a local socket to the daemon's

The login is the system's ssh with the user's configuration, keys and agent. It asks no
questions (BatchMode), and refuses a machine with an unknown key: the user accepts it with `ssh
HOST`. The daemon sees the user who logged in there like a local one.

Everything ends with the command: its end of the master's input closes, also when it is killed; the
program there ends, and with it the master and its sockets.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from zerotools.core.errors import DaemonUnreachable
from zerotools.io.ssh.ssh_command import (
    LOGIN_SECONDS,
    OPTIONS,
    failure,
    ssh_environment,
    ssh_program,
    ssh_words,
)
from zerotools.io.ssh.ssh_host import SshHost
from zerotools.jobs.client.remote.conversation import (
    MAX_BYTES,
    Answer,
    is_complete,
    program,
    read_answer,
)
from zerotools.jobs.client.remote.elsewhere import Elsewhere, leads_nowhere, leads_to

END_SECONDS = 5.0
LONGEST_DIRECTORY = 60
"""ssh appends 17 characters to the path of its control socket, and all must fit in 107."""
_OPTIONS = {**OPTIONS, "ControlMaster": "yes"}


class SshTunnel:
    """A connection to `host`; `socket` is the local socket of its daemon.

    Raises:
        DaemonUnreachable: the login fails, or nothing listens there.
        BadRequest: ssh is not installed here.
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
        except BaseException:  # undone, and raised again
            self.close()
            raise
        machine = Elsewhere(host.shown, there, answer.home, answer.uid, answer.environment)
        leads_to(self.socket, machine)

    def _log_in(self) -> Answer:
        mark = f"zerotools-{secrets.token_hex(8)}"
        with (self._directory / "errors").open("wb") as errors:
            self._master = _start(
                [*self._words(_OPTIONS), "--", self.host.host, program(mark, self.host.path)],
                errors.fileno(),
            )
        said = self._read_until_complete(mark)
        try:
            return read_answer(said, mark)
        except (ValueError, IndexError):
            raise DaemonUnreachable(
                f"{self.host.shown} sent an answer that cannot be read; can its login shell "
                f"run commands? Try: ssh {self.host.host} true"
            ) from None

    def _read_until_complete(self, mark: str) -> bytes:
        assert self._master is not None
        assert self._master.stdout is not None
        out = self._master.stdout.fileno()
        said, deadline = b"", time.monotonic() + self._login_seconds
        while not is_complete(said, mark):
            ready, _, _ = select.select([out], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._silent()
            part = os.read(out, 1 << 16)
            said += part
            if not part or len(said) > MAX_BYTES:
                raise self._failed("cannot be reached by ssh")
        return said

    def _silent(self) -> DaemonUnreachable:
        return self._failed(f"did not answer within {self._login_seconds:g} s")

    def _failed(self, what: str) -> DaemonUnreachable:
        errors = (self._directory / "errors").read_text("utf-8", "replace")
        return DaemonUnreachable(failure(self.host, what, errors))

    def _forward(self, answer: Answer) -> str:
        """Let our socket lead to the daemon's; the path of that."""
        if not answer.sockets:
            where = self.host.path or "any of the usual directories"
            raise DaemonUnreachable(
                f"no zerotoolsd listens on {self.host.shown} at {where}; start it there, or name "
                "its socket: --host ssh://HOST/PATH/OF/api.sock"
            )
        there = answer.sockets[0]
        # The user's configuration applies to the master: its forwardings are not made twice.
        words = [*self._words({}), "-F", "none", "-O", "forward", "-L", f"{self.socket}:{there}"]
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
                f"{done.stderr.decode('utf-8', 'replace').strip()}; does its sshd_config "
                "allow AllowStreamLocalForwarding?"
            )
        return there

    def _words(self, options: dict[str, str]) -> list[str]:
        """Return options of ssh; the control socket is how its processes find each other."""
        return ssh_words(self.host, {**options, "ControlPath": str(self._control)})

    def close(self) -> None:
        """End the connection."""
        leads_nowhere(self.socket)
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
        start_new_session=True,  # Ctrl-C is for the command, which ends it
        env=ssh_environment(),
    )


def _ssh() -> str:
    return ssh_program("--host")


def _short_directory() -> str:
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= LONGEST_DIRECTORY else "/tmp"

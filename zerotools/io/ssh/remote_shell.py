"""Runs a script on another machine, or on this one, and reads its output.

The script is the standard input of `sh` on that machine. So its login shell gets only two words,
even if the script contains many names with special characters. A login may print text too. So the
script first prints a line with a random mark, and all output up to this line is skipped.

    sh                                   on this machine
    ssh OPTIONS -- HOST exec sh          on another one
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import IO

from zerotools.core.errors import BadFile, HostUnreachable
from zerotools.io.ssh.ssh_command_line import (
    LOGIN_SECONDS,
    OPTIONS,
    SshHost,
    connection_failure,
    ssh_environment,
    ssh_program,
    ssh_words,
)

BLOCK = 1 << 20
SILENT_SECONDS = 300.0
"""A machine that sends no bytes of a file for this many seconds has failed. Disks may need time to
start.
"""
_OPTIONS = {**OPTIONS, "ControlMaster": "no"}
_MOST_BEFORE = 1 << 20
_LONGEST_LINE = 1 << 16
_MOST_SAID = 1 << 16
_SSH_FAILED = 255
_GO_ON = "; run the same command again when it is reachable"


class OpenShells:
    """The running scripts of a caller. A caller that is interrupted ends all of its scripts.

    `within` is the `OpenShells` of an outer caller. When the outer caller ends its scripts, the
    scripts of this object end too.
    """

    def __init__(self, within: OpenShells | None = None) -> None:
        self._shells: set[FarShell | OpenShells] = set()
        self._lock = threading.Lock()
        self.is_over = False
        if within is not None:
            within.add(self)

    def add(self, shell: FarShell | OpenShells) -> None:
        with self._lock:
            self._shells.add(shell)
            if self.is_over:
                shell.kill()

    def remove(self, shell: FarShell | OpenShells) -> None:
        with self._lock:
            self._shells.discard(shell)

    def end_all(self) -> None:
        """End the running scripts, and every script that is started later."""
        with self._lock:
            self.is_over = True
            for shell in self._shells:
                shell.kill()

    def kill(self) -> None:
        """End all scripts as `end_all` does. The `OpenShells` that contains this object calls
        `kill` for every entry, also for a `FarShell`.
        """
        self.end_all()


class FarShell:
    """A script that runs on the machine `host` (None: this machine). Use it as a context manager.

    Every method that reads from the script raises:
        HostUnreachable: the machine cannot be reached, or the connection broke.
    """

    def __init__(
        self,
        host: SshHost | None,
        script: Callable[[str], str],
        shells: OpenShells,
        *,
        login_seconds: float = LOGIN_SECONDS,
        silent_seconds: float | None = None,
    ) -> None:
        """Start the script. `script` is called with a mark and returns the text of the script. The
        mark is a word that the script may print to identify its lines.

        A machine that sends nothing for `silent_seconds` counts as lost; None: no limit.

        Raises:
            BadRequest: ssh is not installed on this machine.
        """
        self.mark = f"zerotools-{secrets.token_hex(8)}"
        self._host = host
        self._shells = shells
        self._login_seconds = login_seconds
        self._silent_seconds = silent_seconds
        self._buffer = b""
        self._is_new = True
        text = f"printf '%s\\n' {self.mark}\n{script(self.mark)}\n"
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        with tempfile.TemporaryFile() as given:
            given.write(text.encode("utf-8", "surrogateescape"))
            given.seek(0)
            self._process = subprocess.Popen(
                _command(host),
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is for the command, which ends it
                env=ssh_environment(),
            )
        assert self._process.stdout is not None
        self._out = self._process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        shells.add(self)

    def __enter__(self) -> FarShell:
        try:
            self._begin()
        except BaseException:  # ended, and raised again
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(self) -> None:
        """Skip the text that the login prints, up to the line after which the output of the script
        begins.
        """
        if self._shells.is_over:
            raise self.failed("was not contacted, because the run is ending")
        deadline = time.monotonic() + self._login_seconds
        line = f"{self.mark}\n".encode()
        while (found := self._buffer.find(line)) < 0:
            if len(self._buffer) > _MOST_BEFORE:
                raise self.failed("prints too much at login; can its login shell run sh scripts?")
            if not self._read_more(max(0.0, deadline - time.monotonic())):
                raise self.failed("cannot be reached by ssh" if self._host else "runs no sh")
        self._buffer = self._buffer[found + len(line) :]
        self._is_new = False

    def _read_more(self, seconds: float | None) -> bool:
        """Wait at most `seconds` for output, and add it to the buffer. Return False if the script
        has ended.
        """
        if not self._poll.poll(None if seconds is None else 1000 * seconds):
            waited = self._login_seconds if self._is_new else seconds
            raise self.failed(f"sent nothing for {waited:g} s", _GO_ON)
        part = os.read(self._out, BLOCK)
        self._buffer += part
        return bool(part)

    def rest(self, most: int) -> bytes:
        """Return all further output of the script.

        Raises:
            BadFile: the output has more than `most` bytes.
        """
        parts = [self._buffer]
        size = len(self._buffer)
        self._buffer = b""
        while self._read_more(self._silent_seconds):
            parts.append(self._buffer)
            size += len(self._buffer)
            self._buffer = b""
            if size > most:
                raise BadFile(
                    f"{self.shown} answers with more than {most} bytes; "
                    "name a directory that has fewer files"
                )
        self._refuse_broken()
        return b"".join(parts)

    def line(self) -> bytes | None:
        """Return the next line of the output without its line break. Return None after the last
        line, or if a line is longer than `_LONGEST_LINE` bytes."""
        while b"\n" not in self._buffer:
            if len(self._buffer) > _LONGEST_LINE:
                return None
            if not self._read_more(self._silent_seconds):
                self._refuse_broken()
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def pass_on(self, count: int, take: Callable[[bytes], None]) -> int:
        """Call `take` with the next `count` bytes of the output, part by part. Return the number of
        passed bytes, which is lower if the script ends early."""
        left = count
        while left:
            if not self._buffer and not self._read_more(self._silent_seconds):
                self._refuse_broken()
                break
            part, self._buffer = self._buffer[:left], self._buffer[left:]
            take(part)
            left -= len(part)
        return count - left

    def _refuse_broken(self) -> None:
        """Raise an error if the output ended because ssh failed, and not because the script
        ended.
        """
        if self._host is not None and self._process.wait() == _SSH_FAILED:
            raise self.failed("went away", _GO_ON)

    @property
    def shown(self) -> str:
        """The name of the machine for messages."""
        return "this machine" if self._host is None else self._host.shown

    def last_error_line(self) -> str:
        """Return the last line of the script's standard error."""
        size = os.fstat(self._errors.fileno()).st_size
        data = os.pread(self._errors.fileno(), _MOST_SAID, max(0, size - _MOST_SAID))
        lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")

    def failed(self, what: str, advice: str = "") -> HostUnreachable:
        """End the script, and return an error that names the machine, the failure `what`, the
        message of ssh, and the `advice`.
        """
        self.kill()
        if self._host is None:
            return HostUnreachable(f"this machine {what}: {self.last_error_line()}{advice}")
        size = os.fstat(self._errors.fileno()).st_size
        data = os.pread(self._errors.fileno(), _MOST_SAID, max(0, size - _MOST_SAID))
        return HostUnreachable(
            connection_failure(self._host, what, data.decode("utf-8", "replace")) + advice
        )

    def kill(self) -> None:
        """Kill the script at once. Its output then ends."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the script, and close its streams."""
        self._shells.remove(self)
        self.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


def _command(host: SshHost | None) -> list[str]:
    if host is None:
        return ["sh"]
    return [
        ssh_program("a source on another machine"),
        *ssh_words(host, _OPTIONS),
        "--",
        host.host,
        "exec sh",
    ]

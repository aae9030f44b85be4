"""Runs a server in a separate process, on a port of loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from harness.patience import Deadline
from harness.ports import free_port
from harness.started import Started

START_SECONDS = 30.0
HOST = "127.0.0.1"


class ListeningServer(ABC):
    """A program that answers HTTP on loopback. It is a context manager: at the end, the program is
    killed.

    The data of the server is then lost. The program's standard input is closed when this process
    ends.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self._process: Started | None = None

    @property
    def url(self) -> str:
        """The URL of the server, without a slash at the end."""
        return f"http://{HOST}:{self.port}"

    @property
    @abstractmethod
    def env(self) -> dict[str, str]:
        """The environment variables that a client needs in addition to those of its process."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the program and its arguments."""

    def command_env(self) -> dict[str, str]:
        """Return the environment variables that the program itself needs."""
        return {}

    @abstractmethod
    def prepare(self) -> None:
        """Make the buckets that clients expect. It is called when the program answers for the first
        time.
        """

    def __enter__(self) -> Self:
        with tempfile.TemporaryFile() as log:
            self._process = Started(
                self.command(),
                kept=True,
                env={**os.environ, **self.command_env()},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
            try:
                self._wait(log)
                self.prepare()
            except BaseException:  # raised again
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.end()

    def _wait(self, log: Any) -> None:
        deadline = Deadline(START_SECONDS)
        while not answers(self.port):
            running = self._process is not None and self._process.is_running()
            if deadline.has_passed() or not running:
                log.seek(0)
                said = log.read().decode("utf-8", "replace")[-1500:]
                raise AssertionError(f"{self.command()[0]} did not begin to listen:\n{said}")
            time.sleep(0.02)


def answers(port: int) -> bool:
    """Return whether a process listens on the port `port` of loopback."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True

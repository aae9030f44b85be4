"""The daemon's socket: for its own user only, in a separate directory."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from zerotools.core.errors import BadRequest, DaemonRefused
from zerotools.jobs.client.location import Address, connect

BACKLOG = 1024
ANSWER_SECONDS = 1.0


def open_socket(path: Path) -> socket.socket:
    """Listen at `path`, mode 0600; its directory is made with mode 0700 if it is missing.

    A socket of a dead daemon is replaced. Raises DaemonRefused if a daemon answers there,
    BadRequest if `path` is not a socket.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _clear(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The mode must be right from the first moment, so that no other user can connect in
        # between.
        before = os.umask(0o177)
        try:
            with Address(path) as address:
                listening.bind(address)
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:  # undone, and raised again
        listening.close()
        raise
    return listening


def _clear(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise BadRequest(f"{path} exists and is not a socket; remove it or name another")
    try:
        connect(path, ANSWER_SECONDS).close()
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
        return
    except OSError as error:
        raise BadRequest(f"{path} cannot be taken over: {error.strerror or error}") from error
    raise _taken(path)


def refuse_taken(path: Path) -> None:
    """Raise DaemonRefused if a daemon answers at `path`; changes nothing."""
    try:
        connect(path, ANSWER_SECONDS).close()
    except OSError:
        return
    raise _taken(path)


def _taken(path: Path) -> DaemonRefused:
    return DaemonRefused(
        f"another zerotoolsd already listens at {path}; stop it, or start with another --socket",
        status=409,
        code="held",
    )

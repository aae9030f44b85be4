"""The address of the daemon: its state directory, its socket, and a connection to the socket.

Client and daemon use the same rules for these paths. If the socket is the end of an ssh tunnel,
messages name the other machine.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadRequest

SOCKET_NAME = "api.sock"
SOCKET_VARIABLE = "ZEROTOOLS_SOCKET"
STATE_VARIABLE = "ZEROTOOLS_STATE_DIR"
SYSTEM_STATE = Path("/var/lib/zerotools")
RETRY_SECONDS = 0.01
LONGEST_ADDRESS = 107
"""The largest length in bytes of a path in `sockaddr_un`, without the closing NUL (unix(7))."""


def default_state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the state directory of the daemon. The first case that applies determines the
    directory:

    1. $ZEROTOOLS_STATE_DIR, if it is set
    2. /var/lib/zerotools, for root
    3. a directory in the XDG state directory of the user
    """
    if given := environment.get(STATE_VARIABLE):
        return Path(given).absolute()
    if os.geteuid() == 0:
        return SYSTEM_STATE
    if given := environment.get("XDG_STATE_HOME"):
        return Path(given).absolute() / "zerotools"
    try:
        return Path.home() / ".local" / "state" / "zerotools"
    except RuntimeError:
        raise BadRequest(
            f"the user has no home directory for the daemon's files; set {STATE_VARIABLE}"
        ) from None


def default_socket(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the daemon's socket. The first case that applies determines the path:

    1. $ZEROTOOLS_SOCKET, if it is set
    2. a socket in $ZEROTOOLS_STATE_DIR, if it is set
    3. a socket in the user's runtime directory, except for root
    4. a socket in the state directory, for root and for users without a usable runtime directory

    A system service does not have the runtime directory of root's login.
    """
    if given := environment.get(SOCKET_VARIABLE):
        return Path(given).absolute()
    runtime = environment.get("XDG_RUNTIME_DIR")
    login = os.geteuid() != 0 and not environment.get(STATE_VARIABLE)
    if login and runtime and _is_ours(Path(runtime)):
        return Path(runtime).absolute() / "zerotools" / SOCKET_NAME
    return default_state_dir(environment) / SOCKET_NAME


def _is_ours(directory: Path) -> bool:
    """Return whether the XDG rules allow this user to use `directory`: it exists, belongs to the
    user, and cannot be written by other users.
    """
    try:
        found = directory.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o22


def connect_socket(path: Path, timeout_seconds: float) -> socket.socket:
    """Return a socket connected to the Unix socket at `path`.

    The path may be longer than `sockaddr_un` allows. Raises OSError.
    """
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.settimeout(timeout_seconds)
        with Address(path) as address:
            _connect_in_turn(link, address, time.monotonic() + timeout_seconds)
    except BaseException:  # close the socket, and raise the error again
        link.close()
        raise
    return link


def _connect_in_turn(link: socket.socket, address: str, deadline: float) -> None:
    """Connect to a Unix socket.

    Try again while the listener's queue is full: then connect(2) fails with EAGAIN (unix(7)).
    """
    while True:
        try:
            link.connect(address)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError("the daemon's queue of connections is full") from None
            time.sleep(RETRY_SECONDS)
        else:
            return


class Address:
    """A path that leads to the socket `path` and is short enough for `sockaddr_un`.

    It is valid inside the `with` block. If `path` is too long, the short path goes through an open
    descriptor of the socket's directory (/proc/self/fd).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._directory: int | None = None

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= LONGEST_ADDRESS:
            return str(self._path)
        self._directory = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._directory}/{self._path.name}"

    def __exit__(self, *_: object) -> None:
        if self._directory is not None:
            os.close(self._directory)


@dataclass(frozen=True)
class RemoteMachine:
    """The machine at the other end of a forwarded socket.

    `host` and `socket` (the daemon's socket on that machine) are used in messages. `home`, `uid`
    and `environment` belong to the user who logged in on that machine.
    """

    host: str
    socket: str
    home: str
    uid: int
    environment: Mapping[str, str]


_machines: dict[Path, RemoteMachine] = {}


def record_forwarding(socket: Path, machine: RemoteMachine) -> None:
    """Record that the local socket `socket` is forwarded to a daemon on `machine`."""
    _machines[socket] = machine


def forget_forwarding(socket: Path) -> None:
    """Record that the local socket `socket` is no longer forwarded to another machine."""
    _machines.pop(socket, None)


def machine_behind(socket: Path | None) -> RemoteMachine | None:
    """Return the machine to which the local socket `socket` is forwarded; None if the daemon
    runs on this machine.
    """
    return None if socket is None else _machines.get(socket)


def shown_socket(socket: Path) -> str:
    """Return the address of the daemon at `socket` for messages: for a forwarded socket, the
    address on the other machine."""
    machine = _machines.get(socket)
    return str(socket) if machine is None else f"{machine.host}:{machine.socket}"

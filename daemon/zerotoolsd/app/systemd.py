"""The connection to systemd: readiness, the watchdog, inherited sockets, and the unit files.

Source: sd_notify(3), sd_listen_fds(3). A wheel has the repository's folder `systemd` as
`zerotoolsd/units` (`hatch_build.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

from zerotools.core.errors import BadRequest

_FIRST_FD = 3
_LISTEN = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")

log = logging.getLogger(__name__)


def notify(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send `state` (such as "READY=1") to systemd; return False if systemd did not start this
    process.
    """
    address = environment.get("NOTIFY_SOCKET")
    if not address or address[0] not in "/@":
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as link:
        try:
            link.connect(address.replace("@", "\0", 1) if address[0] == "@" else address)
            link.sendall(state.encode())
        except OSError:
            return False
    return True


def watchdog_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return the seconds between two messages to systemd's watchdog: half of the watchdog's
    timeout. Return None if the watchdog is off.
    """
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 2e6 if microseconds.isdecimal() else None


async def feed_watchdog(
    is_healthy: Callable[[], bool], environment: Mapping[str, str] = os.environ
) -> None:
    """Send messages to systemd's watchdog while `is_healthy` returns True.

    When the messages stop, systemd restarts the daemon. Jobs are not affected.
    """
    pause = watchdog_seconds(environment)
    while pause is not None:
        if is_healthy():
            notify("WATCHDOG=1", environment)
        else:
            log.error(
                "the main loop hangs: systemd gets no watchdog message, so it restarts the daemon"
            )
        await asyncio.sleep(pause)


def inherited_socket(environment: MutableMapping[str, str] = os.environ) -> socket.socket | None:
    """Return the listening socket that systemd passed to the daemon; None if systemd passed no
    socket.

    Child processes do not inherit the socket. Raises BadRequest if it is not the kind of socket
    that the daemon uses.
    """
    told = {name: environment.pop(name, "") for name in _LISTEN}
    if told["LISTEN_PID"] != str(os.getpid()) or not told["LISTEN_FDS"].isdecimal():
        return None
    count = int(told["LISTEN_FDS"])
    if not count:
        return None
    listening = _socket_at(_FIRST_FD)
    if count > 1 or listening is None or not _listens(listening):
        raise BadRequest(
            f"the socket unit passes {_sockets(count)} that the daemon cannot use: it needs "
            "exactly one ListenStream= with the path of a Unix socket; for TCP, set [api] listen"
        )
    os.set_inheritable(_FIRST_FD, False)
    listening.setblocking(False)
    return listening


def _sockets(count: int) -> str:
    return "a socket" if count == 1 else f"{count} sockets"


def _socket_at(fd: int) -> socket.socket | None:
    try:
        return socket.socket(fileno=fd)
    except OSError:
        return None


def _listens(found: socket.socket) -> bool:
    return (
        found.family == socket.AF_UNIX
        and found.type == socket.SOCK_STREAM
        and bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    )


UNITS = {
    "system": "zerotoolsd.service",
    "system-socket": "zerotoolsd.socket",
    "user": "user/zerotoolsd.service",
    "user-socket": "user/zerotoolsd.socket",
    "tmpfiles": "tmpfiles.d/zerotools.conf",
    "sysusers": "sysusers.d/zerotools.conf",
    "jobs-as-children": "drop-ins/jobs-as-children.conf",
    "shared-socket": "drop-ins/shared-socket.conf",
    "account": "drop-ins/account.conf",
    "account-socket": "drop-ins/account-socket.conf",
}
"""The unit files, by the names that `--print-unit` accepts."""
_PACKAGE = Path(__file__).resolve().parents[1]
PLACES = (_PACKAGE / "units", _PACKAGE.parents[1] / "systemd")
"""The directories of the unit files in a wheel and in a checkout."""
_ANY_PROGRAM = "/usr/bin/env zerotoolsd"
_UNQUOTED = frozenset("/._-+@=,:%$")
_REFUSED = frozenset("'\"\\")


def unit_text(name: str, program: str | None = None) -> str:
    """Return the text of the systemd unit file `name`.

    The unit starts `program`; None: the first zerotoolsd on the PATH of systemd.

    Raises:
        FileNotFoundError: this module is neither in a wheel nor in a checkout.
    """
    place = next((each for each in PLACES if each.is_dir()), PLACES[0])
    text = (place / UNITS[name]).read_text(encoding="utf-8")
    if program is None:
        return text
    return text.replace(f"ExecStart={_ANY_PROGRAM}", f"ExecStart={_quoted(program)}")


def this_program() -> str | None:
    """Return the absolute path of the running command.

    Return None if the command is not called zerotoolsd, for example under `python -m`.
    """
    program = Path(sys.argv[0])
    return str(program.absolute()) if program.name == "zerotoolsd" and program.is_file() else None


def _quoted(program: str) -> str:
    """Return the path `program` as it must be written at the start of a command line in a unit file
    (systemd.service(5)).

    At this place `$` needs no escape, but systemd refuses quotes and backslashes. A program with
    such a character in its path is started through `env`.
    """
    escaped = program.replace("%", "%%")
    if all(each.isalnum() or each in _UNQUOTED for each in program):
        return escaped
    if not _REFUSED.intersection(program):
        return f'"{escaped}"'
    for each, written in (("\\", "\\\\"), ('"', '\\"'), ("$", "$$")):
        escaped = escaped.replace(each, written)
    return f'/usr/bin/env "{escaped}"'

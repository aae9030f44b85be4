"""Local sockets that lead to another machine, and the differences there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Elsewhere:
    """The machine behind a socket: `host` and `socket` are for messages; the user there, with the
    `home`, `uid` and `environment` of a login."""

    host: str
    socket: str
    home: str
    uid: int
    environment: Mapping[str, str]


_machines: dict[Path, Elsewhere] = {}


def leads_to(socket: Path, machine: Elsewhere) -> None:
    """Record that `socket` leads to `machine` from now on."""
    _machines[socket] = machine


def leads_nowhere(socket: Path) -> None:
    """Record that the connection is over."""
    _machines.pop(socket, None)


def machine_behind(socket: Path | None) -> Elsewhere | None:
    """Return the other machine that `socket` leads to, or None if it is this one's."""
    return None if socket is None else _machines.get(socket)


def shown_socket(socket: Path) -> str:
    """Return `socket` for messages: the daemon's address, and not that of the tunnel."""
    machine = _machines.get(socket)
    return str(socket) if machine is None else f"{machine.host}:{machine.socket}"

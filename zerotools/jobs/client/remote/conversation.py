"""What another machine is asked, and what it answers.

A small program for the shell of POSIX runs there. Nothing of zerotools needs to be in its PATH. It
prints, between two marks (a login may print texts of its own), its home, the sockets that are
there, and its environment, each with a NUL behind it, and then waits for its input to end, which
keeps the connection up exactly as long as the command here lives:

    MARK\\n  /home/ada\\0  1000\\0  2\\0  /run/...sock\\0  /var/...sock\\0  A=1\\0  B=2\\0  MARK\\n
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from zerotools.jobs.client.location import SOCKET_VARIABLE, STATE_VARIABLE, SYSTEM_STATE

MAX_BYTES = 4 << 20
"""Of an answer: an environment is at most 2 MB."""


@dataclass(frozen=True)
class Answer:
    """The other machine, as its user finds it: `sockets` are those that are there."""

    home: str
    uid: int
    sockets: tuple[str, ...]
    environment: Mapping[str, str]


def places() -> tuple[str, ...]:
    """Where a daemon may listen there, in words of its shell, as `location.default_socket` has it;
    the first one that is there is meant."""
    return (
        f'"${SOCKET_VARIABLE}"',
        f'"${{{STATE_VARIABLE}:-/none}}/api.sock"',
        '"${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/zerotools/api.sock"',
        '"${XDG_STATE_HOME:-$HOME/.local/state}/zerotools/api.sock"',
        f'"{SYSTEM_STATE}/api.sock"',
    )


def program(mark: str, socket: str | None) -> str:
    """The command that is run there: one word for its login shell, whichever that is."""
    looked = " ".join(places()) if socket is None else shlex.quote(socket)
    script = (
        f'n=0; for p in {looked}; do test -S "$p" && n=$((n+1)); done; '
        f'printf \'%s\\n%s\\0%s\\0%s\\0\' {mark} "$HOME" "$(id -u)" $n; '
        f'for p in {looked}; do test -S "$p" && printf "%s\\0" "$p"; done; '
        f"env -0; printf '%s\\n' {mark}; exec cat >/dev/null"
    )
    return f"exec sh -c {shlex.quote(script)}"


def is_complete(said: bytes, mark: str) -> bool:
    """Whether the answer has come to its end."""
    return said.count(_line(mark)) == 2


def read_answer(said: bytes, mark: str) -> Answer:
    """Raises ValueError: it is not what the program prints."""
    body = said.split(_line(mark))[1]
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

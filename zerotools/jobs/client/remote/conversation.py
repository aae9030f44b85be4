"""The request to another machine, and its response.

A small program for the shell of POSIX runs there. zerotools does not need to be in its PATH. It
prints, between two marks (a login may print text before and after), its home, the existing sockets,
and its environment, each followed by a NUL. Then it waits for the end of its input, which keeps the
connection open exactly as long as the command here lives:

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
    """The other machine as its user sees it: `sockets` are the existing ones."""

    home: str
    uid: int
    sockets: tuple[str, ...]
    environment: Mapping[str, str]


def places() -> tuple[str, ...]:
    """Return the possible sockets of a daemon there, in words of its shell, in the order of
    `location.default_socket`; the first that exists counts."""
    return (
        f'"${SOCKET_VARIABLE}"',
        f'"${{{STATE_VARIABLE}:-/none}}/api.sock"',
        '"${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/zerotools/api.sock"',
        '"${XDG_STATE_HOME:-$HOME/.local/state}/zerotools/api.sock"',
        f'"{SYSTEM_STATE}/api.sock"',
    )


def program(mark: str, socket: str | None) -> str:
    """Return the command to run there: one word for any login shell."""
    looked = " ".join(places()) if socket is None else shlex.quote(socket)
    script = (
        f'n=0; for p in {looked}; do test -S "$p" && n=$((n+1)); done; '
        f'printf \'%s\\n%s\\0%s\\0%s\\0\' {mark} "$HOME" "$(id -u)" $n; '
        f'for p in {looked}; do test -S "$p" && printf "%s\\0" "$p"; done; '
        f"env -0; printf '%s\\n' {mark}; exec cat >/dev/null"
    )
    return f"exec sh -c {shlex.quote(script)}"


def is_complete(said: bytes, mark: str) -> bool:
    """Return whether the response is complete."""
    return said.count(_line(mark)) == 2


def read_answer(said: bytes, mark: str) -> Answer:
    """Parse the response. Raises ValueError if the program did not print it."""
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

"""`ssh://[USER@]HOST[:PORT][/PATH/OF/api.sock]`: another machine, as a user writes it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from zerotools.core.errors import BadRequest

SCHEME = "ssh"


@dataclass(frozen=True, slots=True)
class SshHost:
    """A machine in the words of ssh: `host` may be a name of the user's ssh configuration.

    `socket` is the path of the daemon's socket there; None: where it usually is.
    """

    host: str
    user: str | None = None
    port: int | None = None
    socket: str | None = None

    @property
    def shown(self) -> str:
        """As `ssh` takes it, for messages."""
        user = "" if self.user is None else f"{self.user}@"
        return f"{user}{self.host}" + ("" if self.port is None else f" (port {self.port})")


def parse_host(text: str) -> SshHost:
    """The machine that `text` names. Raises BadRequest: what is wrong, and what would be right."""
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        raise BadRequest(_wrong(text, "its port must be a number from 1 to 65535")) from None
    if parts.scheme != SCHEME:
        raise BadRequest(_wrong(text, "it must begin with ssh://"))
    if parts.password is not None:
        raise BadRequest(
            _wrong(text.replace(parts.password, "..."), "a password cannot be given; use a key")
        )
    if parts.query or parts.fragment:
        raise BadRequest(_wrong(text, "it has a part that begins with ? or #"))
    host = _word(text, "host", _host_of(parts.netloc))
    user = None if parts.username is None else _word(text, "user", unquote(parts.username))
    if port == 0:
        raise BadRequest(_wrong(text, "its port must be a number from 1 to 65535"))
    return SshHost(host=host, user=user, port=port, socket=_path(text, unquote(parts.path)))


def _host_of(netloc: str) -> str:
    """The host as it was written: names of ssh's configuration have capitals."""
    place = netloc.rpartition("@")[2]
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place.partition(":")[0]


def _word(text: str, what: str, word: str) -> str:
    if not word:
        raise BadRequest(_wrong(text, f"the {what} is missing"))
    if word.startswith("-"):
        # ssh would take it for an option.
        raise BadRequest(_wrong(text, f"a {what} cannot begin with -"))
    if not word.isprintable() or any(letter in " /\\'\"`$;&|<>()" for letter in word):
        raise BadRequest(_wrong(text, f"the {what} has a character that no {what} has"))
    return word


def _path(text: str, path: str) -> str | None:
    if path in ("", "/"):
        return None
    if not path.isprintable() or ":" in path:
        # ssh reads `here:there`.
        raise BadRequest(_wrong(text, "the path of the socket has a character that ssh refuses"))
    return path


def _wrong(text: str, why: str) -> str:
    shown = text if text.isprintable() else ascii(text)
    return (
        f"--host {shown[:200]}: {why}; write ssh://HOST, ssh://USER@HOST:PORT, or "
        "ssh://HOST/PATH/OF/api.sock"
    )

"""Another machine, in the user's spelling, and the call of the system's ssh for it.

The spellings are `ssh://[USER@]HOST[:PORT][/PATH]` and `[USER@]HOST`. ssh runs with the user's
configuration, keys and agent. It asks no questions (BatchMode), and refuses a machine with an
unknown key: the user accepts it with `ssh HOST`. A machine that is silent for a minute counts as
lost.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from zerotools.core.errors import BadRequest

SCHEME = "ssh"
Wrong = Callable[[str, str], BadRequest]
"""A function that gets a text and the reason why it is wrong, and returns the error."""


@dataclass(frozen=True, slots=True)
class SshHost:
    """A machine as ssh names it: `host` may be a name in the ssh configuration of the user.

    `path` is the path of a URL, or None.
    """

    host: str
    user: str | None = None
    port: int | None = None
    path: str | None = None

    @property
    def login(self) -> str:
        """The argument of `ssh` that names the machine, without the port."""
        return self.host if self.user is None else f"{self.user}@{self.host}"

    @property
    def shown(self) -> str:
        """The name of the machine for messages."""
        return self.login + ("" if self.port is None else f" (port {self.port})")


def parse_url(text: str, wrong: Wrong) -> SshHost:
    """Return the machine that a URL names. If the URL is wrong, raise the error that `wrong`
    returns.
    """
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        raise wrong(text, "its port must be a number from 1 to 65535") from None
    if parts.scheme != SCHEME:
        raise wrong(text, "it must begin with ssh://")
    if parts.password is not None:
        raise wrong(text.replace(parts.password, "..."), "a password cannot be given; use a key")
    if parts.query or parts.fragment:
        raise wrong(text, "it has a part that begins with ? or #")
    host = _word(text, "host", _host_of(parts.netloc), wrong)
    user = None if parts.username is None else _word(text, "user", unquote(parts.username), wrong)
    if port == 0:
        raise wrong(text, "its port must be a number from 1 to 65535")
    path = unquote(parts.path, errors="surrogateescape")
    return SshHost(host=host, user=user, port=port, path=None if path in ("", "/") else path)


def parse_login(text: str, place: str, wrong: Wrong) -> SshHost:
    """Return the machine in `place`, the part `[USER@]HOST` of `text`. Raises the errors of
    `parse_url`."""
    user, at, host = place.rpartition("@")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return SshHost(
        host=_word(text, "host", host, wrong),
        user=_word(text, "user", user, wrong) if at else None,
    )


def _host_of(netloc: str) -> str:
    """Return the host as the user wrote it, because names in the ssh configuration may have
    capitals.
    """
    place = netloc.rpartition("@")[2]
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place.partition(":")[0]


def _word(text: str, what: str, word: str, wrong: Wrong) -> str:
    if not word:
        raise wrong(text, f"the {what} is missing")
    if word.startswith("-"):
        # ssh would take it for an option.
        raise wrong(text, f"a {what} cannot begin with -")
    if not word.isprintable() or any(letter in " /\\'\"`$;&|<>()" for letter in word):
        raise wrong(text, f"the {what} has a character that is not allowed in a {what}")
    return word


CONNECT_SECONDS = 15
LOGIN_SECONDS = 60.0
"""The longest time for a login, in seconds."""
OPTIONS: Mapping[str, str] = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "ControlPersist": "no",
    "ConnectTimeout": str(CONNECT_SECONDS),
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "4",
}
_ADVICE = (
    (
        "Host key verification failed",
        "the key of that machine is not known here; connect once and compare the key: ssh {}",
    ),
    (
        "Permission denied",
        (
            "ssh needs a password or a passphrase; set up a key (ssh-copy-id), or load yours into "
            "an agent (ssh-add)"
        ),
    ),
    ("Could not resolve hostname", "is the name right? Names in ~/.ssh/config also work"),
)


def ssh_program(who: str) -> str:
    """Return the path of the ssh program. `who` is the command that needs it, for the message.

    Raises:
        BadRequest: ssh is not installed.
    """
    found = shutil.which("ssh")
    if found is None:
        raise BadRequest(f"{who} needs the program ssh, which is not in PATH; install OpenSSH")
    return found


def ssh_words(host: SshHost, options: Mapping[str, str]) -> list[str]:
    """Return the options of a call of ssh, which come before `--` and the host."""
    words = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    if host.user is not None:
        words += ["-l", host.user]
    if host.port is not None:
        words += ["-p", str(host.port)]
    return words


def ssh_environment() -> dict[str, str]:
    """Return the environment variables for a call of ssh. They keep ssh from opening a window that
    asks for a password."""
    return {**os.environ, "SSH_ASKPASS_REQUIRE": "never"}


def connection_failure(host: SshHost, what: str, errors: str) -> str:
    """Return a sentence about a failed connection: the machine, the failure, the last line that ssh
    printed, and the action to take.
    """
    told = [line.strip().removesuffix(".") for line in errors.splitlines() if line.strip()]
    advice = next(
        (text.format(host.host) for sign, text in _ADVICE if sign in "\n".join(told)), None
    )
    parts = [f"{host.shown} {what}", *told[-1:], *([advice] if advice else [])]
    return ": ".join(parts[:2]) + "".join(f"; {each}" for each in parts[2:])

"""The call of the system's ssh, with the user's configuration, keys and agent.

It asks no questions (BatchMode), and refuses a machine with an unknown key: the user accepts it
with `ssh HOST`. A machine that is silent for a minute counts as lost.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from zerotools.core.errors import BadRequest
from zerotools.io.ssh.ssh_host import SshHost

CONNECT_SECONDS = 15
LOGIN_SECONDS = 60.0
"""How long a login may take in all."""
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
        "the key of that machine is not known here; connect once by hand and compare it: ssh {}",
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
    """Return the path of ssh, which `who` needs.

    Raises:
        BadRequest: it is not installed.
    """
    found = shutil.which("ssh")
    if found is None:
        raise BadRequest(f"{who} needs the program ssh, which is not in PATH; install OpenSSH")
    return found


def ssh_words(host: SshHost, options: Mapping[str, str]) -> list[str]:
    """Return the options of a call, which come before `--` and the host."""
    words = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    if host.user is not None:
        words += ["-l", host.user]
    if host.port is not None:
        words += ["-p", str(host.port)]
    return words


def ssh_environment() -> dict[str, str]:
    """Return the environment of a call: no window asks for a password."""
    return {**os.environ, "SSH_ASKPASS_REQUIRE": "never"}


def failure(host: SshHost, what: str, errors: str) -> str:
    """Return a sentence: the machine, the failure, the last line that ssh printed, and the action
    to take."""
    told = [line.strip().removesuffix(".") for line in errors.splitlines() if line.strip()]
    advice = next(
        (text.format(host.host) for sign, text in _ADVICE if sign in "\n".join(told)), None
    )
    parts = [f"{host.shown} {what}", *told[-1:], *([advice] if advice else [])]
    return ": ".join(parts[:2]) + "".join(f"; {each}" for each in parts[2:])

"""`ssh://[USER@]HOST[:PORT][/PATH/OF/api.sock]`: the machine of the daemon."""

from __future__ import annotations

from zerotools.core.errors import BadRequest
from zerotools.io.ssh.ssh_host import SshHost, parse_url


def parse_host(text: str) -> SshHost:
    """Return the machine that `text` names; its path is that of the socket, None: the usual one.

    Raises BadRequest: names the error and the right form.
    """
    host = parse_url(text, _wrong)
    if host.path is not None and (not host.path.isprintable() or ":" in host.path):
        # ssh reads `here:there`.
        raise _wrong(text, "the path of the socket has a character that ssh refuses")
    return host


def _wrong(text: str, why: str) -> BadRequest:
    shown = text if text.isprintable() else ascii(text)
    return BadRequest(
        f"--host {shown[:200]}: {why}; write ssh://HOST, ssh://USER@HOST:PORT, or "
        "ssh://HOST/PATH/OF/api.sock"
    )

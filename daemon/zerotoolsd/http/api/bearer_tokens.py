"""Identifies clients that connect by TCP, with one token for each uid from a file.

    # uid  token
    1000   4c1b6f0f6f2e4d1f9a5c7e3b8d2a6f10

Only the daemon can read the file. A token is a secret of the user with at least 32 characters;
`openssl rand -hex 32` makes such a token. The daemon keeps only digests of the tokens, and compares
digests in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from zerotools.core.errors import BadRequest

CREDENTIAL = "api-tokens"
"""The name of systemd's credential: `LoadCredential=api-tokens:/etc/zerotools/tokens`."""
SHORTEST = 32
NO_UID = 2**32 - 1
"""(uid_t)-1, which means "unchanged" to setuid(2)."""
LARGEST_FILE = 1 << 20
_DO = "make a longer one, such as by: openssl rand -hex 32"


class BearerTokens:
    """The digests of tokens, and the uid of each."""

    def __init__(self, uids: Mapping[bytes, int]) -> None:
        self._uids = uids

    def uid_of(self, header: str | None) -> int | None:
        """Return the uid of the token in the `Authorization` header; None if no token matches."""
        scheme, _, token = (header or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        given, found = _digest(token.strip()), None
        for digest, uid in self._uids.items():  # all of them, so the time reveals nothing
            if hmac.compare_digest(digest, given):
                found = uid
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def tokens_path(named: str | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file with tokens: the configured path `named`, or otherwise the path
    of systemd's credential.

    Raises BadRequest if neither is given.
    """
    if named is not None:
        return Path(named)
    if directory := environment.get("CREDENTIALS_DIRECTORY"):
        return Path(directory) / CREDENTIAL
    raise BadRequest(
        "api.listen: needs tokens: name a file in api.tokens, or give the systemd service the "
        f"credential {CREDENTIAL}"
    )


def read_tokens(path: Path) -> BearerTokens:
    """Return the tokens in the file `path`.

    Raises BadRequest if other users can read the file, or if it is not a list of tokens.
    """
    try:
        with path.open("rb") as file:
            _refuse_readable(path, os.fstat(file.fileno()))
            text = file.read(LARGEST_FILE).decode("ascii")
    except OSError as error:
        raise BadRequest(f"api.tokens = {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadRequest(f"api.tokens = {path}: must be ASCII text") from None
    uids: dict[bytes, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"api.tokens = {path}, line {number}"
        if len(words) != 2 or not words[0].isdigit() or int(words[0]) >= NO_UID:
            raise BadRequest(f"{where}: must be a uid and a token, with a space between them")
        if len(words[1]) < SHORTEST:
            raise BadRequest(f"{where}: the token has {len(words[1])} characters; {_DO}")
        if uids.setdefault(_digest(words[1]), int(words[0])) != int(words[0]):
            raise BadRequest(f"{where}: another uid has the same token; {_DO}")
    if not uids:
        raise BadRequest(f"api.tokens = {path}: has no tokens")
    return BearerTokens(uids)


def _refuse_readable(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise BadRequest(f"api.tokens = {path}: is not a regular file")
    if found.st_uid not in (0, os.geteuid()):
        raise BadRequest(
            f"api.tokens = {path}: belongs to uid {found.st_uid}, who could then act as any user; "
            "chown it to the user of the daemon"
        )
    if found.st_mode & 0o077:
        raise BadRequest(
            f"api.tokens = {path}: has mode {stat.S_IMODE(found.st_mode):04o}, so that others can "
            f"read it; chmod 600 {path}"
        )

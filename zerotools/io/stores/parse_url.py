"""Converts text of the user, which may be a URL, to a path.

s3://BUCKET/KEY    gs://BUCKET/KEY    az://CONTAINER/KEY    http(s)://HOST/PATH
hf://OWNER/REPOSITORY[@REVISION][/PATH]
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.io.files.open_source import RemotePath

SCHEMES = ("s3", "gs", "az", "hf", "http", "https")
WRITTEN = ("s3", "gs", "az")
"""The URL schemes of stores that can also be written to."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_COLLAPSED = re.compile(rf"({'|'.join(SCHEMES)}):(/?)(?!/)", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ENVIRONMENT = "pass them in the environment variables of the store's tools"


def is_url(text: str) -> bool:
    """Return whether the text is a URL of any kind. If not, it is a path."""
    return _URL.fullmatch(text) is not None


def lies_in(url: str | None, place: str) -> bool:
    """Return whether `url` is equal to the URL `place`, or is a URL below it."""
    given, place = _plain(url or ""), _plain(place)
    return given == place or given.startswith(f"{place}/")


def _plain(url: str) -> str:
    """Return a URL in one form: the scheme in lower case, and no slash at the end."""
    scheme, sign, rest = url.rstrip("/").partition("://")
    return f"{scheme.lower()}{sign}{rest}"


def path_of(given: str | os.PathLike[str]) -> Path:
    """Return the path that `given` names, which is local or in a store.

    Raises:
        BadRequest: `given` is not a path, or is a URL that is not supported. The message does not
            repeat parts of the URL that may be secret.
    """
    if isinstance(given, RemotePath):
        return given
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else given
    if not isinstance(text, str):
        raise BadRequest(f"{given!r:.200} is not a path; give text or an os.PathLike of text")
    match = _URL.fullmatch(text)
    if match is None:
        if (start := _COLLAPSED.match(text)) is not None and not os.path.lexists(text):
            raise BadRequest(f"{text!r:.200} is not a URL; write {start[1].lower()}:// in front")
        _refuse_odd(text)
        return Path(text)
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        raise BadRequest(f"{text!r:.200}: name the path itself, without file://")
    if scheme not in SCHEMES:
        raise BadRequest(
            f"{scheme}:// is not a store that zerotools knows; use "
            f"{', '.join(f'{each}://' for each in SCHEMES)} or a path"
        )
    _refuse_secrets(scheme, rest)
    words = rest.rstrip("/").split("/")
    _refuse_words(scheme, words)
    from zerotools.io.stores.store_path import StorePath

    return StorePath.of(scheme, words)


def output_of(given: str | os.PathLike[str]) -> Path:
    """Return the path that `given` names, for an output that is made under another name and then
    renamed.

    Raises:
        BadRequest: for the reasons of `path_of`, or because the last part of the path is not a
            name, as in `.` and `..`.
    """
    path = path_of(given)
    if path.name in ("", ".."):
        raise BadRequest(f"{os.fspath(path)} cannot be an output; name a directory inside it")
    return path


def _refuse_odd(text: str) -> None:
    if not text:
        raise BadRequest("an empty text is not a path; write . for the current directory")
    if "\0" in text:
        raise BadRequest(f"{text!r:.200} has a NUL character, which is not possible in a path")
    if text.partition("/")[0] == "~" and not os.path.lexists("~"):
        raise BadRequest(f"{text!r:.200}: ~ is not expanded; write the path of the home directory")


def _refuse_secrets(scheme: str, rest: str) -> None:
    if "@" in rest.partition("/")[0]:
        raise BadRequest(
            f"a {scheme}:// URL has a name or a password before its host (...@), which other users "
            f"of this machine can see; leave it out: {_ENVIRONMENT}"
        )
    if "?" in rest:
        raise BadRequest(
            f"a {scheme}:// URL has a query (?...), where signatures and tokens are, which other "
            f"users of this machine can see; leave it out: {_ENVIRONMENT}"
        )


def _refuse_words(scheme: str, words: list[str]) -> None:
    place = f"{scheme}://{'/'.join(words)}"
    needed = ("owner", "repository") if scheme == "hf" else ("bucket",)
    if scheme in ("http", "https"):
        needed = ("host",)
    if len(words) < len(needed) or not all(words[: len(needed)]):
        raise BadRequest(f"{place} has no {needed[-1]}; write {scheme}://{'/'.join(needed)}/...")
    odd = next((word for word in words if word in ("", ".", "..") or _CONTROL.search(word)), None)
    if odd is None and scheme == "az":  # which has no other names for directories
        odd = next((word for word in words if "\\" in word), None)
    if odd is not None:
        raise BadRequest(
            f"{place!r:.200} has a part {odd!r}, which is not possible in the name of an object"
        )

"""A source, which is a directory of a node. It is written as `HOST:PATH`, as
`ssh://USER@HOST:PORT/PATH`, or as a path on this node."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.io.ssh.remote_shell import OpenShells
from zerotools.io.ssh.ssh_command_line import SCHEME, SshHost, parse_login, parse_url
from zerotools.io.stores.parse_url import is_url, path_of

_HOME = "~/"


@dataclass(frozen=True, slots=True)
class NodeSource:
    """A directory of a node. `host` is None for this node. On another node, a relative `directory`
    begins at the home directory of the user who logs in."""

    name: str
    """The name in messages and the journal; the same for all spellings."""
    host: SshHost | None
    directory: str


def parse_source(given: str | os.PathLike[str]) -> NodeSource:
    """Return the source that `given` names.

    Raises:
        BadRequest: `given` has another form. The message names the error and the correct form.
    """
    text = given if isinstance(given, str) else os.fspath(path_of(given))
    if text.startswith(f"{SCHEME}://"):
        host = parse_url(text, _wrong)
        path = (host.path or "").removeprefix("/~/")
        if host.path is None:
            raise _wrong(text, "it names no directory")
        return _source(SshHost(host.host, host.user, host.port), path, text)
    if is_url(text):  # which may have a password: it is not shown
        raise _wrong(f"{text.partition('://')[0]}://...", "shards are gathered from nodes, by ssh")
    place, behind = _halves(text)
    if behind is None:
        directory = path_of(text).absolute()
        return NodeSource(str(directory), None, str(directory))
    return _source(parse_login(text, place, _wrong), behind, text)


def _halves(text: str) -> tuple[str, str | None]:
    """Split `text` at the colon after a host. As in scp, this colon comes before the first slash.
    Without it, the second half is None."""
    bracket = text.find("]") if "[" in text.partition("/")[0] else 0
    colon = text.find(":", max(0, bracket))
    if colon < 0 or "/" in text[:colon]:
        return text, None
    return text[:colon], text[colon + 1 :]


def _source(host: SshHost, path: str, text: str) -> NodeSource:
    directory = path.removeprefix(_HOME)
    while len(directory) > 1 and directory.endswith("/"):
        directory = directory[:-1]
    if not directory or directory == "~":
        raise _wrong(text, "it names no directory")
    if "\0" in directory:
        raise _wrong(text, "the path has a NUL, which no path has")
    name = f"{host.login}:{directory}"
    if host.port is not None:
        name = f"{SCHEME}://{host.login}:{host.port}/{directory.removeprefix('/')}"
        name = (
            name if directory.startswith("/") else name.replace(f"/{directory}", f"/~/{directory}")
        )
    return NodeSource(name, host, directory)


def _wrong(text: str, why: str) -> BadRequest:
    shown = text if text.isprintable() else ascii(text)
    return BadRequest(
        f"{shown[:200]}: {why}; write HOST:PATH, ssh://USER@HOST:PORT/PATH, or the path of a "
        "directory of this node"
    )


Given = TypeVar("Given")
Made = TypeVar("Made")


def for_each(
    given: Sequence[Given], work: Callable[[Given], Made], shells: OpenShells, at_once: int
) -> list[Made]:
    """Call `work` for each of `given` in `at_once` threads, and return the results. If a call
    fails, the other calls are still made. Then the first error is raised, with the number of
    further errors."""
    if not given:
        return []
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(work, each) for each in given]
        try:
            errors = [error for each in futures if (error := each.exception()) is not None]
        except BaseException:  # Ctrl-C: ended, and raised again
            for each in futures:
                each.cancel()
            shells.end_all()
            raise
    if errors:
        raise _together(errors)
    return [each.result() for each in futures]


def _together(errors: Sequence[BaseException]) -> BaseException:
    first, *others = errors
    defect = next((each for each in errors if not isinstance(each, ZerotoolsError | OSError)), None)
    if defect is not None or not others or not isinstance(first, ZerotoolsError):
        return defect or first
    also = str(others[0]).partition("; ")[0]
    what, semicolon, advice = str(first).rpartition("; ")
    more = f" ({count_text(len(others), 'more source')} failed, too: {also:.300})"
    return type(first)(f"{what}{more}{semicolon}{advice}" if semicolon else f"{first}{more}")

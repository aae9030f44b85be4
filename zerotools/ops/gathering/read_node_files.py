"""List, digest and send the files of a source, through the shell of its node.

The scripts need a POSIX shell with `find`, `head`, `dd` and optionally `sha256sum`. The tools of
GNU and of busybox work, although `find` of busybox has no -printf. Names are quoted for the shell,
and begin with `./`. Output with names is separated by NUL. A name from a node is checked before it
is used.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.io.output.journal import is_of_journals
from zerotools.io.ssh.remote_shell import BLOCK, SILENT_SECONDS, FarShell, OpenShells
from zerotools.ops.gathering.node_directory import NodeSource

HERE, ABSENT, CLOSED, FILE = "here", "absent", "closed", "file"
"""The possible states of the directory: it exists, does not exist, is not accessible, is a file."""
NO_DIGEST = "failed"


def listing_script(directory: str, mark: str) -> str:
    """Return the script that lists a directory. It prints the state of the directory, then 1 if the
    node can compute digests, else 0. Then it prints the kind (f: file, l: link, or another letter),
    size, time and name of each entry that is not a directory, and at the end the exit status of
    `find`."""
    return f"""{_entering(directory)}
n=0; command -v sha256sum >/dev/null 2>&1 && n=1
printf '%s\\0%s\\0' {HERE} $n
if find . -maxdepth 0 -printf '' >/dev/null 2>&1; then
    find . -mindepth 1 ! -type d -printf '%y %s %T@ %P\\0'
else
    find . -mindepth 1 ! -type d -exec sh -c 'for f; do
        k=o; test -f "$f" && k=f; test -L "$f" && k=l
        printf "%s %s %s\\0" "$k" "$(stat -c "%s %Y" "$f")" "${{f#./}}"
    done' sh {{}} +
fi
printf 'end %s %s' $? {mark}"""


def digest_script(directory: str, names: Iterable[str]) -> str:
    """Return a script that prints one line for each file: its SHA-256, or `NO_DIGEST` if it cannot
    be read."""
    calls = "\n".join(f"h {_word(name)}" for name in names)
    return f"""{_entering(directory)}
h() {{
    x=$(sha256sum <"$1") || x={NO_DIGEST}
    printf '%s\\n' "${{x%% *}}"
}}
{calls}"""


def contents_script(directory: str, files: Iterable[tuple[str, int, int]], mark: str) -> str:
    """Return a script that sends the bytes of each file, and the line `mark` after each. For each
    file, `files` has the name, the number of blocks to skip, and the number of bytes to send."""
    calls = "\n".join(f"g {_word(name)} {skip} {count}" for name, skip, count in files)
    return f"""{_entering(directory)}
g() {{
    if test "$2" = 0; then
        head -c "$3" <"$1"
    else
        dd bs={BLOCK} skip="$2" 2>/dev/null <"$1" | head -c "$3"
    fi
    printf '%s\\n' {mark}
}}
{calls}"""


def _entering(directory: str) -> str:
    word = shlex.quote(directory if directory.startswith("/") else f"./{directory}")
    return f"""LC_ALL=C; export LC_ALL; unset CDPATH
d={word}
if ! cd -P "$d" 2>/dev/null; then
    w={ABSENT}
    test -e "$d" && w={FILE}
    test -d "$d" && w={CLOSED}
    while test "$d" != "${{d%/*}}"; do
        d=${{d%/*}}
        test -d "$d" && ! test -x "$d" && w={CLOSED}
    done
    printf '%s\\0' $w
    exit 0
fi"""


def _word(name: str) -> str:
    return shlex.quote(f"./{name}")


MOST_BYTES = 1 << 26
"""The largest size of a listing in bytes, enough for more than half a million files."""
_OURS = ".zerotools-"
_WHY = {
    ABSENT: "does not exist",
    CLOSED: "cannot be entered: permission denied",
    FILE: "is not a directory",
}


@dataclass(frozen=True, slots=True)
class FarFile:
    """The size in bytes and the modification time of a file on a node. `time` is the text that the
    node's tools print, and is compared only with times in other listings."""

    size: int
    time: str


@dataclass(frozen=True)
class Listing:
    """The regular files of a source, keyed by their name relative to its directory.

    `left_out` are entries that are not regular files, and files of an unfinished run of zerotools.
    """

    source: NodeSource
    files: dict[str, FarFile]
    left_out: tuple[str, ...]
    makes_digests: bool


def list_source(source: NodeSource, shells: OpenShells) -> Listing:
    """Return the files in the directory of `source`. No link is followed.

    Raises:
        BadRequest: the directory does not exist, or cannot be listed completely.
        BadFile: a name could refer to a file outside of the directory.
        HostUnreachable: see `FarShell`.
    """
    script = partial(listing_script, source.directory)
    with FarShell(source.host, script, shells) as shell:
        data = shell.rest(MOST_BYTES)
        mark, said = shell.mark, shell.last_error_line()
    what, _, data = data.partition(b"\0")
    if (why := _WHY.get(what.decode("ascii", "replace"))) is not None:
        raise BadRequest(f"{source.name} {why}; is the path right?")
    records = data.split(b"\0")
    end = records.pop().decode("ascii", "replace").split(" ")
    if what != HERE.encode() or len(end) != 3 or end[2] != mark or not records:
        raise BadRequest(
            f"{source.name} cannot be listed: {said or 'the answer is not complete'}; does that "
            "node have sh and find?"
        )
    if end[1] != "0":
        raise BadRequest(
            f"{source.name} cannot be listed as a whole: {said or f'find ended with {end[1]}'}; "
            "check the permissions there"
        )
    return _listing(source, records)


def _listing(source: NodeSource, records: list[bytes]) -> Listing:
    files: dict[str, FarFile] = {}
    left_out = []
    for record in records[1:]:
        try:
            kind, size, time, name = record.decode("utf-8", "surrogateescape").split(" ", 3)
            file = FarFile(int(size), time)
        except ValueError:
            raise BadFile(
                f"{source.name} has an unreadable line in its list: {record[:80]!r}; check the "
                "output of find there"
            ) from None
        if not stays_below_root(name) or file.size < 0:
            raise BadFile(
                f"{source.name} lists the file {name!r:.200}, which may lie outside of the "
                "output, so this source is not used; rename it, or check which program answers "
                "there"
            )
        if kind != "f" or _is_ours(name):
            left_out.append(name)
        elif name in files:
            raise BadFile(
                f"{source.name} lists the file {name!r:.200} twice; check which program answers "
                "there"
            )
        else:
            files[name] = file
    return Listing(source, files, tuple(left_out), records[0] == b"1")


def _is_ours(name: str) -> bool:
    """Return whether a file of this name belongs to an unfinished output of zerotools."""
    return is_of_journals(name) or name in (f"{_OURS}mode", f"{_OURS}probe")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to request from a node. Its first `blocks` blocks were received earlier."""

    name: str
    file: FarFile
    blocks: int = 0

    @property
    def skipped(self) -> int:
        return self.blocks * BLOCK


class FarContents:
    """The bytes of files that a node sends, in order. A context manager."""

    def __init__(
        self,
        source: NodeSource,
        wanted: Sequence[Wanted],
        shells: OpenShells,
        *,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._source = source
        self._left = iter(wanted)
        self._shells = shells
        asked = [(each.name, each.blocks, each.file.size - each.skipped) for each in wanted]
        self._shell = FarShell(
            source.host,
            lambda mark: contents_script(source.directory, asked, mark),
            shells,
            silent_seconds=silent_seconds,
        )

    def __enter__(self) -> FarContents:
        self._shell.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shell.__exit__(kind, error, trace)

    def next(self, take: Callable[[bytes], None]) -> None:
        """Pass the bytes of the next file to `take`, without the blocks that were received earlier.

        Raises:
            BadFile: the file changed since it was listed, or cannot be read on its node.
            HostUnreachable: see `FarShell`.
        """
        wanted = next(self._left)
        count = wanted.file.size - wanted.skipped
        if self._shell.pass_on(count, take) == count and self._shell.line() == self._mark:
            return
        said = self._shell.last_error_line()
        self._shell.kill()
        refuse_changed(self._source, {wanted.name: wanted.file}, self._shells)
        raise BadFile(
            f"{self._source.name}: {count} bytes of {wanted.name} were expected, but not all "
            f"arrived: {said or 'the connection ended'}; run the same command again to continue"
        )

    @property
    def _mark(self) -> bytes:
        return self._shell.mark.encode()


def refuse_changed(source: NodeSource, files: dict[str, FarFile], shells: OpenShells) -> None:
    """Check that the `files` of a source have not changed.

    Raises:
        BadFile: a file has changed. The message names the first such file and the difference.
        ZerotoolsError: the source cannot be listed any more.
    """
    try:
        now = list_source(source, shells).files
    except ZerotoolsError as error:
        raise type(error)(f"{error!s}; earlier in this run the source could be read") from None
    for name, before in files.items():
        after = now.get(name)
        if after == before:
            continue
        if after is None:
            how = "it is gone"
        elif after.size != before.size:
            how = f"it had {before.size} bytes and has {after.size}"
        else:
            how = "it was written again, with the same size"
        raise BadFile(
            f"{source.name}: {name} changed while it was gathered: {how}; wait until no program "
            "writes there, and run the same command again"
        )


_DIGEST = re.compile(rb"\\?([0-9a-f]{64})")
Each = Callable[[str, str], None]
"""A callback that gets a name and its digest, in hexadecimal."""


def make_digests(listing: Listing, names: Sequence[str], shells: OpenShells, each: Each) -> None:
    """Call `each` with the digest of each of the files `names`, in this order.

    Raises:
        BadFile: a file cannot be read on its node, or differs from the listing.
        HostUnreachable: see `FarShell`.
    """
    if listing.makes_digests:
        _made_there(listing.source, names, shells, each)
        return
    wanted = [Wanted(name, listing.files[name]) for name in names]
    with FarContents(listing.source, wanted, shells) as sent:
        for file in wanted:
            digest = hashlib.sha256()
            sent.next(digest.update)
            each(file.name, digest.hexdigest())


def _made_there(source: NodeSource, names: Sequence[str], shells: OpenShells, each: Each) -> None:
    with FarShell(source.host, lambda _: digest_script(source.directory, names), shells) as shell:
        for name in names:
            match = _DIGEST.fullmatch(shell.line() or b"")
            if match is None:
                raise BadFile(
                    f"{source.name}: {name} cannot be read there: "
                    f"{shell.last_error_line() or 'sha256sum failed'}; check its permissions"
                )
            each(name, match[1].decode())

"""The files of a source, as its node lists them. A name from there is checked before it is used."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.filenames import stays_below_root
from zerotools.io.output.part_ledger import is_of_journals
from zerotools.io.ssh.far_shell import FarShell, OpenShells
from zerotools.ops.gathering.far_scripts import ABSENT, CLOSED, FILE, HERE, listing
from zerotools.ops.gathering.node_source import NodeSource

MOST_BYTES = 1 << 26
"""Of a listing: more than half a million files."""
_OURS = ".zerotools-"
_WHY = {
    ABSENT: "does not exist",
    CLOSED: "cannot be entered: permission denied",
    FILE: "is not a directory",
}


@dataclass(frozen=True, slots=True)
class FarFile:
    """Size in bytes and time of a file; `time` is only compared with that of another listing."""

    size: int
    time: str


@dataclass(frozen=True)
class Listing:
    """The regular files of a source by name, relative to its directory. `left_out` are the entries
    that are something else, or that an unfinished run of zerotools left there."""

    source: NodeSource
    files: dict[str, FarFile]
    left_out: tuple[str, ...]
    makes_digests: bool


def list_source(source: NodeSource, shells: OpenShells) -> Listing:
    """Return the files in the directory of `source`. No link is followed.

    Raises:
        BadRequest: the directory does not exist, or cannot be listed completely.
        BadFile: a name could be one outside of the directory.
        HostUnreachable: see `FarShell`.
    """
    script = partial(listing, source.directory)
    with FarShell(source.host, script, shells) as shell:
        data = shell.rest(MOST_BYTES)
        mark, said = shell.mark, shell.said()
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
            "see who may read there"
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
    """Return whether a run of zerotools keeps this file in an unfinished output."""
    return is_of_journals(name) or name in (f"{_OURS}mode", f"{_OURS}probe")

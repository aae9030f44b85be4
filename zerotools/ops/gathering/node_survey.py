"""List the files of all sources, and those that an earlier run for the same output fetched, before
any file is compared or fetched.

A file that several nodes have must be equal on all of them. Two different files would come from
different saves, and the output would not show which of them was taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.output.journal import NAME, read_journal
from zerotools.io.output.output_marker import is_empty
from zerotools.io.output.staging import partial_of
from zerotools.io.ssh.remote_shell import OpenShells
from zerotools.ops.gathering.node_directory import NodeSource, for_each
from zerotools.ops.gathering.read_node_files import (
    FarContents,
    FarFile,
    Listing,
    Wanted,
    list_source,
)

LARGEST_TEXT = 256
"""The largest size in bytes of a file such as `latest` that contains the name of a checkpoint."""

_DEEPEST_RUN = 2
"""The largest number of directories between a source and such a file. OpenRLHF's actor has two."""


@dataclass(frozen=True)
class NodeSurvey:
    """The files of all sources.

    Attributes:
        noted: the journal of an earlier run for the same output.
        complete: the files that the earlier run fetched and that have not changed since.
        texts: the contents of small files such as `latest`, keyed by name and source.
    """

    destination: Path
    tag: str | None
    listings: tuple[Listing, ...]
    files: Mapping[str, Held]
    noted: Mapping[str, object]
    complete: Mapping[str, Brought]
    texts: Mapping[str, Mapping[str, str]]

    @cached_property
    def to_compare(self) -> dict[str, list[str]]:
        """The names of files to compare, keyed by the source: files that several sources have in
        the same size. Files with a known digest are left out."""
        found: dict[str, list[str]] = {each.source.name: [] for each in self.listings}
        for name, held in self.files.items():
            sizes = {file.size for file in held.holders.values()}
            for source in held.holders if len(held.holders) > 1 and len(sizes) == 1 else ():
                if source in found and not self.is_known(name, source):
                    found[source].append(name)
        return found

    @property
    def bytes_to_compare(self) -> int:
        """The total size in bytes of the files in `to_compare`."""
        return sum(self.files[n].size for names in self.to_compare.values() for n in names)

    def is_known(self, name: str, source: str) -> bool:
        """Return whether the digest of the file `name` is known, because an earlier run fetched it
        from `source`."""
        return name in self.complete and self.complete[name].source == source


def survey_sources(
    sources: Sequence[NodeSource],
    destination: Path,
    *,
    tag: str | None = None,
    shells: OpenShells,
    at_once: int,
) -> NodeSurvey:
    """List all sources, and read the journal of an earlier run for the same output.

    Raises:
        BadRequest: the output exists or is inside a source; or a source was given twice or does not
            exist.
        BadFile: a source has invalid names, or has a file with the name of a directory in another
            source.
        HostUnreachable: see `FarShell`.
    """
    _check_sources(sources, destination)
    noted = _noted(destination, tag)
    listings = tuple(for_each(sources, lambda each: list_source(each, shells), shells, at_once))
    partial = partial_of(destination)
    known = {each.source.name: each for each in listings}
    complete, kept = {}, {}
    for name, line in noted.items():
        found = fetched_entry(line)
        if found is None or not found.is_complete_in(partial, name):
            continue
        listing = known.get(found.source)
        if listing is None:
            kept[name] = {found.source: found.file}
        elif listing.files.get(name) != found.file:
            continue
        complete[name] = found
    files = merge_listings(listings, tag, kept)
    texts = _texts(files, listings, shells, at_once)
    if tag is not None:
        files = _without_other_tags(files, tag, listings, texts)
    return NodeSurvey(
        destination,
        tag,
        listings,
        files,
        noted,
        {name: each for name, each in complete.items() if name in files},
        texts,
    )


def _check_sources(sources: Sequence[NodeSource], destination: Path) -> None:
    if os.path.lexists(destination) and not is_empty(destination):
        raise BadRequest(f"{destination} exists; choose another output, or remove it")
    names = [each.name for each in sources]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadRequest(f"{twice} was given twice; give it only once")
    inside = destination.resolve()
    for source in sources:
        place = Path(source.directory).resolve()
        if source.host is None and (place == inside or place in inside.parents):
            raise BadRequest(f"{destination} is inside the source {place}; write it elsewhere")
        if source.host is None and inside in place.parents:
            raise BadRequest(f"{destination} contains the source {place}; write it elsewhere")


def _noted(destination: Path, tag: str | None) -> Mapping[str, object]:
    """Return the journal of an earlier run; empty if there was no earlier run.

    Raises:
        BadRequest: the journal belongs to another output.
    """
    partial = partial_of(destination)
    if not os.path.lexists(partial / NAME):
        if partial.is_dir() and not is_empty(partial):
            raise BadRequest(
                f"{partial} holds files that zerotools gather did not write; check them, and move "
                "or remove them"
            )
        return {}
    return dict(read_journal(partial / NAME, fixed_identity(tag), start_over(partial)).done)


def _texts(
    files: Mapping[str, Held], listings: Sequence[Listing], shells: OpenShells, at_once: int
) -> dict[str, dict[str, str]]:
    """Return the contents of small text files that may contain the name of a checkpoint, such as
    `latest`, keyed by name and source."""
    wanted = {
        each.source.name: [
            Wanted(name, file)
            for name, file in each.files.items()
            if may_name_one(name) and name in files and 0 < file.size <= LARGEST_TEXT
        ]
        for each in listings
    }
    found: dict[str, dict[str, str]] = {}

    def read(listing: Listing) -> None:
        asked = wanted[listing.source.name]
        with FarContents(listing.source, asked, shells) as sent:
            for each in asked:
                parts: list[bytes] = []
                sent.next(parts.append)
                try:
                    text = b"".join(parts).decode("utf-8").strip()
                except UnicodeDecodeError:
                    continue
                if text.isprintable():
                    found.setdefault(each.name, {})[listing.source.name] = text

    for_each([each for each in listings if wanted[each.source.name]], read, shells, at_once)
    return found


def may_name_one(name: str) -> bool:
    """Return whether a file of this name may contain the name of a checkpoint: a file directly in a
    source, or one such as `latest` below it, because a source may contain several runs."""
    above, _, own = name.rpartition("/")
    return not above or (own.startswith("latest") and above.count("/") < _DEEPEST_RUN)


def _without_other_tags(
    files: Mapping[str, Held],
    tag: str,
    listings: Sequence[Listing],
    texts: Mapping[str, Mapping[str, str]],
) -> dict[str, Held]:
    """Return `files` without pointers, such as `latest`, that name the directory of another tag.
    The output will lack that directory."""
    beside = {n.partition("/")[0] for each in listings for n in each.files if "/" in n}
    found = {}
    for name, held in files.items():
        said = texts.get(name, {})
        is_pointer = any(text in beside for text in said.values())
        holders: dict[str, FarFile] = {
            source: file
            for source, file in held.holders.items()
            if not is_pointer or said.get(source) == tag
        }
        if holders:
            found[name] = Held(name, holders)
    return found


_SHORT = 12


@dataclass(frozen=True)
class Held:
    """A file, and the sources that have it, in the order that the user gave."""

    name: str
    holders: Mapping[str, FarFile]

    @property
    def size(self) -> int:
        """The size in bytes at the first source, and after `prepare_gather` at every source."""
        return next(iter(self.holders.values())).size


def merge_listings(
    listings: Sequence[Listing], tag: str | None, kept: Mapping[str, Mapping[str, FarFile]]
) -> dict[str, Held]:
    """Return the files of all listings, and the files in `kept`, which an earlier run fetched from
    other sources. They are keyed by name. With a tag, return only files in the tag's directory and
    directly next to it.

    Raises:
        BadFile: a source has a file with the name of a directory in another source.
        BadRequest: no source has the tag.
    """
    found: dict[str, dict[str, FarFile]] = {}
    for listing in listings:
        for name, file in listing.files.items():
            if tag is None or "/" not in name or name.startswith(f"{tag}/"):
                found.setdefault(name, {})[listing.source.name] = file
    for name, holders in kept.items():
        found.setdefault(name, {}).update(holders)
    if tag is not None and not any(name.startswith(f"{tag}/") for name in found):
        known = sorted({n.partition("/")[0] for each in listings for n in each.files if "/" in n})
        raise BadRequest(f"no source has the tag {tag!r}; their directories: {_some(known)}")
    for name, holders in found.items():
        _refuse_directories(name, holders, found)
    return {name: Held(name, holders) for name, holders in sorted(found.items())}


def _refuse_directories(
    name: str, holders: Mapping[str, FarFile], found: Mapping[str, Mapping[str, FarFile]]
) -> None:
    for parent in PurePosixPath(name).parents:
        if (file := found.get(str(parent))) is not None:
            raise BadFile(
                f"{parent} is a file in {next(iter(file))} and a directory in "
                f"{next(iter(holders))}; move the one that does not belong to this checkpoint "
                "elsewhere"
            )


def differing_sources(held: Held, digests: Mapping[str, str]) -> tuple[str, str] | None:
    """Return two sources that differ in the file `held`; None if all have the same file. `digests`
    has the digest of the file at each source."""
    first, *others = held.holders
    for other in others:
        if held.holders[other].size != held.holders[first].size:
            return first, other
    for other in others:
        if digests[other] != digests[first]:
            return first, other
    return None


def difference_refusal(
    held: Held, two: tuple[str, str], digests: Mapping[str, str], texts: Mapping[str, str]
) -> BadFile:
    """Return the error for a file that differs between two sources. `texts` are its contents at
    each source, for a small text file."""
    first, other = two
    if first in texts and other in texts:
        return BadFile(
            f"{held.name} has {texts[first]!r} in {first}, but {texts[other]!r} in {other}: they "
            "are from two saves; choose the save to gather with --tag, or correct the wrong file"
        )
    sizes = held.holders[first].size, held.holders[other].size
    if sizes[0] != sizes[1]:
        how = f"has {sizes[0]} bytes in {first} and {sizes[1]} in {other}"
    else:
        how = (
            f"has SHA-256 {digests[first][:_SHORT]}... in {first} and "
            f"{digests[other][:_SHORT]}... in {other}"
        )
    return BadFile(
        f"{held.name} {how}: they are from two saves; move the one that does not belong to this "
        "checkpoint elsewhere"
    )


def _some(names: Iterable[str]) -> str:
    return ", ".join(list(names)[:9]) or "none"


COMMAND = "gather"


@dataclass(frozen=True, slots=True)
class Brought:
    """The journal entry of a file that was fetched completely or in part. `size` and `time` are
    those at its source.

    `sha256` is the digest of the received bytes; None if the file is not complete.
    """

    source: str
    size: int
    time: str
    sha256: str | None

    @property
    def file(self) -> FarFile:
        return FarFile(self.size, self.time)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def is_complete_in(self, directory: Path, name: str) -> bool:
        """Return whether the complete file still exists in `directory`, at a path without links."""
        path = directory / name
        way = [path, *(each for each in path.parents if each.is_relative_to(directory))]
        if self.sha256 is None or any(each.is_symlink() for each in way):
            return False
        return path.is_file() and path.stat().st_size == self.size


def fetched_entry(noted: Any) -> Brought | None:
    """Return the journal entry `noted`; None if it does not describe a fetched file."""
    try:
        found = Brought(**noted)
    except TypeError:
        return None
    is_text = all(isinstance(each, str) for each in (found.source, found.time, found.sha256 or ""))
    return found if is_text and isinstance(found.size, int) else None


def fixed_identity(tag: str | None) -> dict[str, str]:
    """Return the part of an output's identity that must not change between runs. Sources may be
    added and removed."""
    return {"command": COMMAND, "tag": tag or ""}


def start_over(directory: Path) -> str:
    """Return the advice for starting the gather run again."""
    return f"remove {directory} to start over"

"""The files of all sources by name: single ones, repeated ones, and contradictions.

A file that several nodes have must be the same on all of them: two that differ are of two saves,
and later it would be unknown which one was taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from zerotools.core.errors import BadFile, BadRequest
from zerotools.ops.gathering.far_listing import FarFile, Listing

_SHORT = 12


@dataclass(frozen=True)
class Held:
    """A file, and the names of the sources that have it, in their order."""

    name: str
    holders: Mapping[str, FarFile]

    @property
    def size(self) -> int:
        """In bytes; the same of all of them once they were compared."""
        return next(iter(self.holders.values())).size


def merge(
    listings: Sequence[Listing], tag: str | None, kept: Mapping[str, Mapping[str, FarFile]]
) -> dict[str, Held]:
    """Return the files of all listings by name: with a tag, its files and those directly next to
    it. Include those `kept` from sources of an earlier run.

    Raises:
        BadFile: a file is a directory in another source.
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


def differing(held: Held, digests: Mapping[str, str]) -> tuple[str, str] | None:
    """Return two sources with different files under the name, or None; `digests` are the known
    ones."""
    first, *others = held.holders
    for other in others:
        if held.holders[other].size != held.holders[first].size:
            return first, other
    for other in others:
        if digests[other] != digests[first]:
            return first, other
    return None


def refusal(
    held: Held, two: tuple[str, str], digests: Mapping[str, str], texts: Mapping[str, str]
) -> BadFile:
    """Return the error for a file that differs; `texts` are the contents of small text files."""
    first, other = two
    if first in texts and other in texts:
        return BadFile(
            f"{held.name} has {texts[first]!r} in {first}, but {texts[other]!r} in {other}: they "
            "are from two saves; name the one to gather with --tag, or correct the file that is "
            "wrong"
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

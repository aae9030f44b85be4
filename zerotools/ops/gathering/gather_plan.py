"""Which file comes from where: a value, which `gathering_run` carries out and a dry run prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.io.ssh.far_shell import OpenShells
from zerotools.ops.gathering.far_digests import make_digests
from zerotools.ops.gathering.far_listing import FarFile, Listing
from zerotools.ops.gathering.merging import differing, refusal
from zerotools.ops.gathering.names_alone import doubt
from zerotools.ops.gathering.node_survey import NodeSurvey
from zerotools.ops.gathering.node_threads import for_each
from zerotools.ops.gathering.number_gaps import gaps


@dataclass(frozen=True, slots=True)
class Fetch:
    """A file to fetch; `digest` is the SHA-256 that all its sources have, if it is known."""

    name: str
    file: FarFile
    digest: str | None


@dataclass(frozen=True)
class GatherPlan:
    """`fetches` has the files to fetch by the name of their source; all others are there already.
    `digests` are those of files that several sources have."""

    survey: NodeSurvey
    fetches: Mapping[str, tuple[Fetch, ...]]
    digests: Mapping[str, str]

    @property
    def destination(self) -> Path:
        return self.survey.destination

    @property
    def bytes_of_all(self) -> int:
        """Size of the output."""
        return sum(each.size for each in self.survey.files.values())

    @property
    def bytes_to_fetch(self) -> int:
        """Of all files that are not there, as if none of them had been begun."""
        return sum(each.file.size for some in self.fetches.values() for each in some)

    @cached_property
    def copies(self) -> list[str]:
        """Files that several sources have."""
        return [name for name, each in self.survey.files.items() if len(each.holders) > 1]

    @cached_property
    def may_lack(self) -> list[str]:
        """Files that no source has, and that the numbers in the names of others let expect."""
        return list(gaps(self.survey.files))

    @cached_property
    def doubt(self) -> str | None:
        """The reason why the files are not a checkpoint by their names, in one sentence, or
        None."""
        texts = {name: next(iter(said.values())) for name, said in self.survey.texts.items()}
        return doubt(self.survey.files, texts, self.destination)

    def listing_of(self, source: str) -> Listing:
        """Return the listing of a source of the run."""
        return next(each for each in self.survey.listings if each.source.name == source)


def prepare(
    found: NodeSurvey,
    *,
    shells: OpenShells,
    at_once: int,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> GatherPlan:
    """Compare the files of several sources, and assign each file to fetch to a source. `on_bytes`
    gets the number of bytes compared.

    Raises:
        BadRequest: the sources have no files.
        BadFile: two sources have different files of one name.
        HostUnreachable: see `FarShell`.
    """
    if not found.files:
        names = ", ".join(each.source.name for each in found.listings)
        where = f"no files in {names}; are the paths right?" if names else "no sources to gather"
        raise BadRequest(f"there are {where}")
    _refuse_sizes(found)
    digests: dict[str, dict[str, str]] = {}
    for name, each in found.complete.items():
        digests.setdefault(name, {})[each.source] = each.sha256 or ""

    def compare(listing: Listing) -> None:
        source = listing.source.name

        def note(name: str, digest: str) -> None:
            digests.setdefault(name, {})[source] = digest
            on_bytes(found.files[name].size)

        make_digests(listing, found.to_compare[source], shells, note)

    some = [each for each in found.listings if found.to_compare[each.source.name]]
    for_each(some, compare, shells, at_once)
    common = {}
    for name, held in found.files.items():
        if len(held.holders) > 1:
            if (two := differing(held, digests[name])) is not None:
                raise refusal(held, two, digests[name], found.texts.get(name, {}))
            common[name] = next(iter(digests[name].values()))
    return GatherPlan(found, _divided(found, common), common)


def _refuse_sizes(found: NodeSurvey) -> None:
    """Refuse other sizes, before anything is read for its digest."""
    for name, held in found.files.items():
        first, *others = held.holders
        for other in others:
            if held.holders[other].size != held.holders[first].size:
                raise refusal(held, (first, other), {}, found.texts.get(name, {}))


def _divided(found: NodeSurvey, digests: Mapping[str, str]) -> dict[str, tuple[Fetch, ...]]:
    """Return the files to fetch, each from one source: this node if it has it, else the source with
    the fewest bytes so far, the largest files first."""
    own = {each.source.name for each in found.listings if each.source.host is None}
    load = {each.source.name: 0 for each in found.listings}
    taken: dict[str, list[Fetch]] = {source: [] for source in load}
    left = [held for name, held in found.files.items() if name not in found.complete]
    left.sort(key=lambda held: (len(held.holders) > 1, -held.size, held.name))
    for held in left:
        holders = [source for source in held.holders if source in load]
        here = [source for source in holders if source in own]
        source = here[0] if here else min(holders, key=lambda each: (load[each], each))
        load[source] += held.size
        taken[source].append(Fetch(held.name, held.holders[source], digests.get(held.name)))
    return {
        source: tuple(sorted(some, key=lambda each: each.name))
        for source, some in taken.items()
        if some
    }

"""Plan which node each file is fetched from. `gather_files` carries the plan out, and a dry run
prints it.

`why_no_checkpoint` checks the file names before any file is fetched: the formats examine a
directory of empty files with these names. `find_number_gaps` finds files that seem to be missing.
The files themselves are checked after the fetch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats import FORMATS, FormatTable, detect
from zerotools.io.ssh.remote_shell import OpenShells
from zerotools.ops.gathering.find_number_gaps import missing_in_series
from zerotools.ops.gathering.node_directory import for_each
from zerotools.ops.gathering.node_survey import NodeSurvey, difference_refusal, differing_sources
from zerotools.ops.gathering.read_node_files import FarFile, Listing, make_digests


@dataclass(frozen=True, slots=True)
class Fetch:
    """A file to fetch. `digest` is its SHA-256 if several sources have the file, else None."""

    name: str
    file: FarFile
    digest: str | None


@dataclass(frozen=True)
class GatherPlan:
    """The plan of a gather run.

    Attributes:
        survey: the files that the nodes have.
        fetches: the files to fetch from each source, keyed by the source's name. All other files
            were fetched by an earlier run.
        digests: the SHA-256 of each file that several sources have, keyed by file name.
    """

    survey: NodeSurvey
    fetches: Mapping[str, tuple[Fetch, ...]]
    digests: Mapping[str, str]

    @property
    def destination(self) -> Path:
        return self.survey.destination

    @property
    def bytes_of_all(self) -> int:
        """The size of the whole output in bytes."""
        return sum(each.size for each in self.survey.files.values())

    @property
    def bytes_to_fetch(self) -> int:
        """The total size in bytes of the files to fetch. Blocks that an earlier run fetched count
        too."""
        return sum(each.file.size for some in self.fetches.values() for each in some)

    @cached_property
    def copies(self) -> list[str]:
        """The files that several sources have."""
        return [name for name, each in self.survey.files.items() if len(each.holders) > 1]

    @cached_property
    def may_lack(self) -> list[str]:
        """The files that no source has, although numbers in the names of other files suggest
        them."""
        return list(missing_in_series(self.survey.files))

    @cached_property
    def doubt(self) -> str | None:
        """The reason why files with these names cannot be a checkpoint; None if they may be one."""
        texts = {name: next(iter(said.values())) for name, said in self.survey.texts.items()}
        return why_no_checkpoint(self.survey.files, texts, self.destination)

    def listing_of(self, source: str) -> Listing:
        return next(each for each in self.survey.listings if each.source.name == source)


def prepare_gather(
    found: NodeSurvey,
    *,
    shells: OpenShells,
    at_once: int,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> GatherPlan:
    """Compare files that several sources have, and choose a source for each file to fetch.
    `on_bytes` gets the number of bytes that were compared since its last call.

    Raises:
        BadRequest: the sources have no files.
        BadFile: two sources have different files with the same name.
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
            if (two := differing_sources(held, digests[name])) is not None:
                raise difference_refusal(held, two, digests[name], found.texts.get(name, {}))
            common[name] = next(iter(digests[name].values()))
    return GatherPlan(found, _divided(found, common), common)


def _refuse_sizes(found: NodeSurvey) -> None:
    """Refuse files with the same name and different sizes, before any digest is computed."""
    for name, held in found.files.items():
        first, *others = held.holders
        for other in others:
            if held.holders[other].size != held.holders[first].size:
                raise difference_refusal(held, (first, other), {}, found.texts.get(name, {}))


def _divided(found: NodeSurvey, digests: Mapping[str, str]) -> dict[str, tuple[Fetch, ...]]:
    """Return the files to fetch from each source, keyed by the source's name.

    This node's own files are copied. Each other file, the largest first, is assigned to the source
    that has the fewest bytes to send so far.
    """
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


def why_no_checkpoint(
    names: Iterable[str], texts: Mapping[str, str], destination: Path, table: FormatTable = FORMATS
) -> str | None:
    """Return the reason why files with these names cannot be a checkpoint; None if they may be one.
    Messages name `destination` as its path. `texts` are the contents of small files, which may name
    other files."""
    with tempfile.TemporaryDirectory(prefix="zerotools-names-") as made:
        root = Path(made) / "checkpoint"
        for name in names:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts.get(name, ""))
        try:
            detect(root, table=table)
        except (BadFile, BadRequest) as error:
            return str(error).replace(str(root), str(destination))
    return None

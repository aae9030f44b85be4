"""Plan which node each file is fetched from. `gather_files` carries the plan out, and a dry run
prints it.

`why_no_checkpoint` checks the file names before any file is fetched: the formats examine a
directory of empty files with these names. `missing_in_series` finds files that are missing by the
numbers in the names of others:

    zero_pp_rank_0_mp_rank_00_optim_states.pt
    zero_pp_rank_1_mp_rank_00_optim_states.pt       2 would be missing
    zero_pp_rank_3_mp_rank_00_optim_states.pt

A gap is a hint and not a proof: a layer without parameters has no file, and names do not show that
the last rank is missing. The files themselves are checked after the fetch.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from typing import NamedTuple

from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats import FORMATS, FormatTable, detect
from zerotools.io.ssh.remote_shell import OpenShells
from zerotools.ops.gathering.node_files import FarFile, Listing, make_digests
from zerotools.ops.gathering.node_source import for_each
from zerotools.ops.gathering.node_survey import NodeSurvey, difference_refusal, differing_sources


@dataclass(frozen=True, slots=True)
class Fetch:
    """A file to fetch; `digest` is the SHA-256 that all its sources have, if it is known."""

    name: str
    file: FarFile
    digest: str | None


@dataclass(frozen=True)
class GatherPlan:
    """The plan of a gather run.

    Attributes:
        survey: the files that the nodes have.
        fetches: the files to fetch from each source, keyed by the source's name. The output has all
            other files already.
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
        """Size of the whole output, in bytes."""
        return sum(each.size for each in self.survey.files.values())

    @property
    def bytes_to_fetch(self) -> int:
        """The bytes of all files to fetch, also of those that were fetched in part."""
        return sum(each.file.size for some in self.fetches.values() for each in some)

    @cached_property
    def copies(self) -> list[str]:
        """Files that several sources have."""
        return [name for name, each in self.survey.files.items() if len(each.holders) > 1]

    @cached_property
    def may_lack(self) -> list[str]:
        """Files that no source has, but that the numbers in other names suggest."""
        return list(missing_in_series(self.survey.files))

    @cached_property
    def doubt(self) -> str | None:
        """A sentence on why the names of the files are not those of a checkpoint; None if
        they are.
        """
        texts = {name: next(iter(said.values())) for name, said in self.survey.texts.items()}
        return why_no_checkpoint(self.survey.files, texts, self.destination)

    def listing_of(self, source: str) -> Listing:
        """Return the listing of a source of the run."""
        return next(each for each in self.survey.listings if each.source.name == source)


def prepare_gather(
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
            if (two := differing_sources(held, digests[name])) is not None:
                raise difference_refusal(held, two, digests[name], found.texts.get(name, {}))
            common[name] = next(iter(digests[name].values()))
    return GatherPlan(found, _divided(found, common), common)


def _refuse_sizes(found: NodeSurvey) -> None:
    """Refuse files of one name that have different sizes, before any file is read for its
    digest.
    """
    for name, held in found.files.items():
        first, *others = held.holders
        for other in others:
            if held.holders[other].size != held.holders[first].size:
                raise difference_refusal(held, (first, other), {}, found.texts.get(name, {}))


def _divided(found: NodeSurvey, digests: Mapping[str, str]) -> dict[str, tuple[Fetch, ...]]:
    """Return the files to fetch, each from one source.

    This node is preferred if it has the file. Otherwise, starting with the largest file, the source
    with the fewest bytes so far is taken.
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
    """Return the reason why files with these names at `destination` are not a checkpoint, in one
    sentence; None if they may be one.

    `texts` are the contents of small files, which may name other files.
    """
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


_NUMBER = re.compile(r"\d{1,9}")
_MOST = 1 << 20


class Numbered(NamedTuple):
    """The name of a file, split into its numbers and the texts between them. Numbers in the names
    of directories are text.
    """

    texts: tuple[str, ...]
    numbers: tuple[str, ...]


def numbers_in_name(name: str) -> Numbered:
    """Return the numbers in the name of a file."""
    directory, slash, base = name.rpartition("/")
    first, *rest = _NUMBER.split(base)
    return Numbered((directory + slash + first, *rest), tuple(_NUMBER.findall(base)))


def missing_in_series(names: Iterable[str]) -> Iterator[str]:
    """Yield names that would complete a series of numbers, if most files of the series exist."""
    families: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name in names:
        texts, numbers = numbers_in_name(name)
        if numbers:
            families.setdefault(texts, []).append(numbers)
    for texts, there in families.items():
        ranges = [_range({row[place] for row in there}) for place in range(len(texts) - 1)]
        if not len(there) < prod(map(len, ranges)) <= min(2 * len(there), _MOST):
            continue
        known = set(there)
        for numbers in product(*ranges):
            if numbers not in known:
                yield texts[0] + "".join(map("".join, zip(numbers, texts[1:], strict=True)))


def _range(there: set[str]) -> list[str]:
    """Return the expected numbers: from 0 (from 1, if the smallest existing number is 1) to the
    largest.
    """
    values = {int(each) for each in there}
    if len(there) < len(values) or len(there) == 1:
        return sorted(there)
    first = 1 if min(values) == 1 else 0
    if max(values) - first >= _MOST:
        return sorted(there)
    width = min(map(len, there))
    return [f"{value:0{width}d}" for value in range(first, max(values) + 1)]


def names_alike(name: str, names: Iterable[str]) -> list[str]:
    """Return the other `names` that differ from `name` only in their numbers."""
    texts = numbers_in_name(name).texts
    return [each for each in names if each != name and numbers_in_name(each).texts == texts]


def varying_numbers(name: str, others: Iterable[str]) -> list[int] | None:
    """Return the numbers in which the names `others` differ from `name`, if they differ from it at
    one position only; else None. `names_alike` returned `others`.
    """
    rows = [numbers_in_name(each).numbers for each in others]
    own = numbers_in_name(name).numbers
    places = [n for n, number in enumerate(own) if any(row[n] != number for row in rows)]
    return sorted(int(row[places[0]]) for row in rows) if len(places) == 1 else None

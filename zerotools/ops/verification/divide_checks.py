"""Divide a checkpoint among N runs. Each run checks some files, and all tensors of some names.

A checksum covers a whole file, so one run reads the whole file. The largest file goes to the run
that has the fewest bytes so far, then the next largest, and so on. The names of tensors are divided
in order into ranges of nearly equal size in bytes, because tensors with neighbouring names are
often in the same file. One run has all tensors of a name and of its tied names, so that it can
compare a weight with its master. Tensors that only a manifest has belong to the first run. Every
run checks the structure of the whole checkpoint, because this reads no tensor data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapreplace

from zerotools.core.checkpoint import Checkpoint
from zerotools.ops.execution.output_part import OutputPart
from zerotools.ops.verification.checkpoint_files import CheckpointFiles

_ALL = OutputPart(1, 1)


@dataclass(frozen=True)
class Portion:
    """The files and tensors that one of several runs checks.

    `file_parts` and `name_parts` map each file, and each name of tensors, to the number of its run.
    `roles` are the roles of all tensors in the checkpoint.
    """

    part: OutputPart = _ALL
    file_parts: Mapping[str, int] = field(default_factory=dict)
    name_parts: Mapping[str, int] = field(default_factory=dict)
    roles: frozenset[str] = frozenset()

    @property
    def is_first(self) -> bool:
        return self.part.index == 1

    def has_file(self, name: str) -> bool:
        return self.file_parts.get(name, 1) == self.part.index

    def has_name(self, name: str, aliases: Mapping[str, str] | None = None) -> bool:
        """Return whether this run reports the faults of tensors with this name. A name that no run
        has belongs to the run that has one of its tied names in `aliases`.
        """
        known = (self.name_parts.get(each) for each in tied_names(name, aliases or {}))
        return next((part for part in known if part is not None), 1) == self.part.index

    def needs_name(self, name: str, aliases: Mapping[str, str]) -> bool:
        """Return whether this run may compare one of its tensors with those of this name."""
        known = {self.name_parts.get(each) for each in tied_names(name, aliases)}
        return self.part.index in known or self.has_name(name, aliases)


WHOLE = Portion()
"""The portion of a run that checks everything."""


def portion_of(checkpoint: Checkpoint, files: CheckpointFiles, part: OutputPart | None) -> Portion:
    """Return the portion that the run `part` checks; None: the whole checkpoint."""
    if part is None:
        return WHOLE
    roles = frozenset(key.role for key in checkpoint.tensors)
    return Portion(
        part, _parts_of_files(files, part.of), _parts_of_names(checkpoint, part.of), roles
    )


def tied_names(name: str, aliases: Mapping[str, str]) -> Iterator[str]:
    """Yield a name, and the names tied to it."""
    holder = aliases.get(name, name)
    yield name
    if holder != name:
        yield holder
    yield from (alias for alias, other in aliases.items() if other == holder and alias != name)


def _parts_of_files(files: CheckpointFiles, of: int) -> dict[str, int]:
    taken = [(0, part) for part in range(1, of + 1)]
    found = {}
    for name, size in sorted(files.names.items(), key=lambda each: (-each[1], each[0])):
        so_far, part = taken[0]
        heapreplace(taken, (so_far + size, part))
        found[name] = part
    return found


def _parts_of_names(checkpoint: Checkpoint, of: int) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for key, tensor in checkpoint.tensors.items():
        name = checkpoint.aliases.get(key.name, key.name)
        sizes[name] = sizes.get(name, 0) + tensor.numel * tensor.dtype.itemsize
    total, before, found = max(1, sum(sizes.values())), 0, {}
    for name, size in sizes.items():
        found[name] = min(of, (before + size // 2) * of // total + 1)
        before += size
    tied = {alias: found[holder] for alias, holder in checkpoint.aliases.items() if holder in found}
    return {**found, **tied}

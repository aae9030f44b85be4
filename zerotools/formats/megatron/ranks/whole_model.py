"""The tensors of all ranks as one."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Key, Tensor
from zerotools.core.counts import counted
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.megatron.origin import MegatronFacts
from zerotools.formats.megatron.ranks.rank_cuts import Cut, cut_of
from zerotools.formats.megatron.ranks.rank_layout import Degrees, RankPlace
from zerotools.formats.megatron.ranks.rank_optimizer import Local


class WholeModel:
    """The tensors of all ranks as one: the parts of each rank, by key."""

    def __init__(self, path: Path, degrees: Degrees, facts: MegatronFacts) -> None:
        self.path, self.degrees, self.facts = path, degrees, facts
        self.unproved: str | None = None
        self.extra_states = 0
        self._found: dict[Key, tuple[Local, Cut, list[Chunk]]] = {}

    def add(self, local: Local, place: RankPlace) -> None:
        """Add a tensor of one rank.

        Raises:
            BadFile: another rank has another shape or type of it.
            Unsupported: the sharing of the tensor by ranks is not known.
        """
        is_expert = ".local_experts." in local.name
        ranks = self.degrees.expert_tensor if is_expert else self.degrees.tensor
        rank = place.expert_tensor if is_expert else place.tensor
        key = Key(local.name, local.role)
        if key not in self._found:
            try:
                cut = cut_of(local.name, local.shape, ranks, self.facts.args)
            except Unsupported as error:
                raise Unsupported(f"{self.path / local.file}: {error}") from None
            self._found[key] = (local, cut, [])
        first, cut, chunks = self._found[key]
        if (first.shape, first.dtype) != (local.shape, local.dtype):
            raise BadFile(
                f"{self.path / local.file} has {key} as {local.dtype} of shape {local.shape}, and "
                f"{self.path / first.file} as {first.dtype} of shape {first.shape}: the files are "
                "of two runs, or one is damaged"
            )
        for start, box in cut.parts(local.shape, rank, ranks):
            chunks.append(_chunk(local, start, box))

    def notes(self, unread_state: str) -> list[str]:
        """Return sentences for the user."""
        found = [unread_state] if unread_state else []
        if self.extra_states:
            said = counted(self.extra_states, "extra state")
            found.append(f"{said} of parallel layers, which are not weights")
        return found

    def tensors(self) -> dict[Key, Tensor]:
        """Return all tensors, in the order of the first rank."""
        found = {}
        for key, (local, cut, chunks) in self._found.items():
            is_expert = ".local_experts." in local.name
            ranks = self.degrees.expert_tensor if is_expert else self.degrees.tensor
            found[key] = Tensor(local.dtype, cut.whole(local.shape, ranks), chunks)
        return found


def _chunk(local: Local, start: tuple[int, ...], box: Box) -> Chunk:
    skipped = sum(a * b for a, b in zip(start, local.strides, strict=True))
    offset = local.offset + skipped * local.dtype.itemsize
    chunk = Chunk(box, local.file, offset, local.strides)
    return Chunk(box, local.file, offset) if chunk.is_contiguous else chunk

"""Splits a batch among sequence ranks: each rank has the same number of positions of each
sequence.

If the number of ranks does not divide the length, sequences are padded on the right with positions
that are hidden and not learned. A token counts only on the rank that has its position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from zerotoolsd.trainer.data.example_pools import IGNORED
from zerotoolsd.trainer.rank.process_group import WorldGroup
from zerotoolsd.trainer.sequence_parallel.all_to_all import Exchange, GroupExchange
from zerotoolsd.trainer.sequence_parallel.sequence_attention import (
    WholeSequences,
    reading_part,
    whole_sequences,
)

_ATTRIBUTE = "own_stretch"
_IDS, _POSITIONS = "input_ids", "position_ids"


@dataclass(frozen=True)
class SequencePart:
    """This rank's part of each sequence: part number `exchange.index` of `exchange.ranks` equal
    parts.
    """

    exchange: Exchange

    @property
    def leads(self) -> bool:
        """True if this is the first part of the sequences.

        All ranks with parts of the same sequences compute some equal values. Only the rank for
        which this is True counts such values.
        """
        return self.exchange.index == 0

    def of(self, whole: torch.Tensor, filler: int = 0) -> torch.Tensor:
        """Return this rank's part of `whole`, `[batch, length]`, which is first padded with
        `filler`.
        """
        return self._of_filled(self._filled(whole, filler))

    def read(
        self, arguments: dict[str, torch.Tensor], labels: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, WholeSequences]:
        """Prepare a batch for this rank. Return the causal model's arguments for this rank's part,
        the labels of the part, and the whole sequences.
        """
        ids, places = arguments[_IDS], arguments.get(_POSITIONS)
        packed = None if places is None else self._filled(places, 0)
        if packed is None:
            places = torch.arange(ids.shape[1], device=ids.device)[None]
        assert places is not None
        own = self.of(ids)
        read = {
            _IDS: own,
            _POSITIONS: self.of(places),
            # With a mask, no model takes falling positions for segments of the stretch.
            "attention_mask": torch.ones_like(own),
        }
        last = ids.shape[1] - 1 if packed is None else packed.max()
        return read, self.of(labels, IGNORED), WholeSequences(self.exchange, packed, last)

    def _filled(self, whole: torch.Tensor, filler: int) -> torch.Tensor:
        return functional.pad(whole, (0, -whole.shape[1] % self.exchange.ranks), value=filler)

    def _of_filled(self, filled: torch.Tensor) -> torch.Tensor:
        return filled.chunk(self.exchange.ranks, dim=1)[self.exchange.index].contiguous()


def split_sequences(model: Any, group: WorldGroup, sequence_ranks: int) -> None:
    """Change `model` so that groups of `sequence_ranks` ranks compute its loss together, each rank
    on a part of every sequence.

    The ranks of a group get the same sequences and, with tensor parallelism, hold the same part of
    the layers. All ranks of the job must call this function.
    """
    if sequence_ranks == 1:
        return
    rank = group.rank
    shape = (rank.data_ranks, sequence_ranks, rank.tensor_ranks)
    mesh = init_device_mesh(group.device.type, shape, mesh_dim_names=("share", "stretch", "part"))
    index = rank.index // rank.tensor_ranks % sequence_ranks
    set_sequence_part(
        model, SequencePart(GroupExchange(mesh.get_group("stretch"), index, sequence_ranks))
    )


def set_sequence_part(model: Any, sequence_part: SequencePart) -> None:
    """Make `model` read only `sequence_part` of each sequence inside `reading_own_part`."""
    use_whole_length(model)
    setattr(model, _ATTRIBUTE, sequence_part)


def sequence_part_of(model: Any) -> SequencePart | None:
    """Return the part of each sequence that `model` computes; None if it computes whole
    sequences.
    """
    found: SequencePart | None = getattr(model, _ATTRIBUTE, None)
    return found


@contextmanager
def reading_own_part(
    model: Any, arguments: dict[str, torch.Tensor], labels: torch.Tensor
) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
    """Return a context manager that yields (arguments, labels) for this rank's part of a batch.

    The model must be called inside the context.
    """
    sequence_part = sequence_part_of(model)
    if sequence_part is None:
        yield arguments, labels
        return
    read, own, whole = sequence_part.read(arguments, labels)
    with reading_part(whole):
        yield read, own


_BY_LENGTH = ("dynamic", "longrope")


def use_whole_length(model: nn.Module) -> None:
    """Make the rotary modules of `model` use the length of the whole sequence.

    "dynamic" and "longrope" compute the angles from the largest position id. A rank has only the
    position ids of its part. So these modules also get the last position of the whole sequence, and
    the result for this position is removed.
    """
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        named = list(kinds.values()) if isinstance(kinds, Mapping) else [kinds]
        if any(kind in _BY_LENGTH for kind in named):
            module.register_forward_pre_hook(_with_last, with_kwargs=True)
            module.register_forward_hook(_without_last)


def _with_last(module: nn.Module, args: Any, arguments: Any) -> Any:
    whole = whole_sequences()
    if whole is None:
        return None
    ids = arguments[_POSITIONS] if _POSITIONS in arguments else args[1]
    last = torch.as_tensor(whole.last, dtype=ids.dtype, device=ids.device).expand(len(ids), 1)
    more = torch.cat([ids, last], dim=1)
    if _POSITIONS in arguments:
        return args, {**arguments, _POSITIONS: more}
    return (args[0], more, *args[2:]), arguments


def _without_last(module: nn.Module, args: Any, output: Any) -> Any:
    if whole_sequences() is None:
        return None
    if isinstance(output, torch.Tensor):  # as complex numbers
        return output[:, :-1]
    return tuple(each[:, :-1] for each in output)

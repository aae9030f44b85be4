"""The flat buffers of the output, and the state next to them, at all stages.

A flat buffer holds a param group at stages 1 and 2, and a sub-group at stage 3. Every rank has one
partition of the buffer for each role.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zerotools.core.checkpoint import Key, Tensor
from zerotools.formats.deepspeed.mp_rank_logical_state import LogicalState, StatePart
from zerotools.formats.deepspeed.partitioning.flat_layout import FlatLayout, WholeParameters
from zerotools.formats.deepspeed.partitioning.stack_experts import in_whole, joined_blocks
from zerotools.formats.deepspeed.schema.expert_parallel import ExpertBlock, ExpertPlacement
from zerotools.formats.deepspeed.schema.optim_states import FlatPartition
from zerotools.formats.deepspeed.writing.plan_pt_file import FileLayout
from zerotools.io.torchzip.pickle_values import Ordered, Storage, StoredTensor
from zerotools.io.torchzip.tree_tensors import as_tensor

BufferRole = tuple[int, str]
"""(number of a flat buffer, role)."""


@dataclass(frozen=True)
class FlatBuffer:
    """One flat buffer of the output, over all ranks that share it.

    Attributes:
        state_part: the optimizer state for the parameters of the buffer. It is that of one part of
            the source, even if several are joined: their values are equal except for partitions.
        geometry: the layout over the ranks that share the buffer.
        expert_placement: the layout over all ranks.
        experts: for each expert-parallel rank, the names of the buffer's parameters, if they differ
            between these ranks.
        whole_roles: the roles for which a rank stores the whole of every parameter that its
            partition touches.
        is_stacked: True if the buffer has AutoEP's stacked experts; each expert-parallel rank has a
            block of them.
    """

    geometry: FlatLayout
    state_part: StatePart
    expert_placement: ExpertPlacement
    experts: Sequence[Mapping[str, str]] = ()
    whole_roles: frozenset[str] = frozenset()
    is_stacked: bool = False

    def part_of(self, rank: int) -> int:
        """Return the index of the partition that data-parallel rank `rank` stores."""
        return self.expert_placement.of(rank)[1]

    def names(self, expert_rank: int) -> Sequence[str]:
        """Return the names, over all ranks, of the parameters on one expert-parallel rank."""
        return list(self.experts[expert_rank].values() if self.experts else self.geometry.shapes)

    def tensors(
        self, role: str, partitions: Sequence[FlatPartition | None]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) of each parameter, joined from the partitions of all ranks.

        `partitions` has an entry for each rank, None if the rank lacks the role. An expert has the
        name that it has in the whole model, not on its rank.
        """
        dtype = self.state_part.dtypes[role]
        layout = WholeParameters(self.geometry) if role in self.whole_roles else self.geometry
        stacked: dict[str, list[tuple[ExpertBlock, Tensor]]] = {}
        for expert_rank in range(self.expert_placement.ep_size):
            own = [partitions[rank] for rank in self.expert_placement.ranks_of(expert_rank)]
            names = self.experts[expert_rank] if self.experts else {}
            for name, tensor in layout.tensors(dtype, own):
                if self.is_stacked:
                    block = self._block(expert_rank, tensor.shape[0])
                    stacked.setdefault(name, []).append((block, in_whole(tensor, block)))
                else:
                    yield names.get(name, name), tensor
        for name, parts in stacked.items():
            yield name, joined_blocks(name, parts)

    def _block(self, expert_rank: int, count: int) -> ExpertBlock:
        return ExpertBlock(expert_rank * count, count, self.expert_placement.ep_size * count)


@dataclass
class BufferScalars:
    """The 0-d tensors of the optimizer state, such as `step`.

    Attributes:
        found: (number of the flat buffer, role) -> the tensor.
        copies: storage key in the output -> the storage in the source that is copied there. If one
            group of the source becomes several buffers, each buffer needs its own copy.
    """

    found: dict[BufferRole, StoredTensor] = field(default_factory=dict)
    copies: dict[str, Storage] = field(default_factory=dict)


def scalars_of(buffers: Sequence[FlatBuffer]) -> BufferScalars:
    """Return the 0-d tensors of all buffers, each in a separate storage."""
    scalars, used = BufferScalars(), set[str]()
    for number, buffer in enumerate(buffers):
        for role, value in (buffer.state_part.state or {}).items():
            stored = as_tensor(value)
            if role in buffer.state_part.dtypes or stored is None or stored.shape != ():
                continue
            if stored.storage.key in used:
                key = f"copy-{number}-{role}"
                scalars.copies[key] = stored.storage
                stored = replace(stored, storage=replace(stored.storage, key=key))
            used.add(stored.storage.key)
            scalars.found[number, role] = stored
    return scalars


def placed_scalars(
    buffers: Sequence[FlatBuffer],
    scalars: BufferScalars,
    outputs: Sequence[FileLayout],
    files: Sequence[str],
) -> Iterator[tuple[Key, Tensor]]:
    """Yield (key, tensor) for each 0-d tensor, such as `step`, with its position in the output.

    The files of all ranks have equal values; the position is in the file of the first rank that has
    the parameter.
    """
    for (number, role), stored in scalars.found.items():
        buffer = buffers[number]
        for expert_rank in range(buffer.expert_placement.ep_size):
            rank = buffer.expert_placement.ranks_of(expert_rank)[0]
            tensor = outputs[rank].placed(files[rank], stored)
            yield from ((Key(name, role), tensor) for name in buffer.names(expert_rank))


def param_shapes_of(logical: LogicalState, buffers: Sequence[FlatBuffer]) -> list[Ordered]:
    """Return `param_shapes`: for each flat buffer, the names of its parameters, in order, with
    their shapes.
    """
    return [
        Ordered(
            {
                name: _shape_like(logical.shapes[name], shape)
                for name, shape in buffer.geometry.shapes.items()
            }
        )
        for buffer in buffers
    ]


def _shape_like(saved: Any, shape: tuple[int, ...]) -> Any:
    """Return `shape` in the type that the source uses for shapes: torch.Size or a plain tuple."""
    return saved if tuple(saved) == shape else type(saved)(shape)


def optimizer_state_of(
    buffers: Sequence[FlatBuffer], values: Mapping[BufferRole, StoredTensor]
) -> dict[int, dict[str, Any]]:
    """Return `state` of torch's optimizer, keyed by the number of the flat buffer. Tensors of the
    source are replaced by tensors of the output; plain numbers are kept.
    """
    return {
        number: {role: values.get((number, role), value) for role, value in state.items()}
        for number, state in enumerate(buffer.state_part.state for buffer in buffers)
        if state is not None
    }

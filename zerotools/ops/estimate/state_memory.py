"""Bytes of training state that one rank holds, from the shapes of the parameters.

`textbook_state` is the arithmetic of the ZeRO paper (Rajbhandari et al. 2020, section 3.1). In
mixed precision with Adam, a parameter has 2 bytes of weights, 2 of gradients and 12 of optimizer
state (fp32 master, momentum, variance). Each of these is divided by the number of ranks if the ZeRO
stage shards it. `torch_engine_state` is the exact allocation of engine `torch` on the rank with the
most memory.

Activations are not included: they depend on the model's code, the batch and the sequence length.
Only `loss_bytes` computes a part of them, that after the last hidden state, which is the largest
for long sequences. Tensors that exist only during one or two blocks of the backward pass are not
included either: gradients that are being sent to other ranks, and the fp32 buffers of their
reduction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

from zerotools.core.loss_chunk_sizes import LossSize
from zerotools.core.training_memory_layout import (
    DEVICE,
    DISK,
    EIGHT_BIT_BLOCK,
    GRADIENTS,
    ITEM_BYTES,
    LOCAL,
    MASTERS,
    MOMENTS,
    NF4_BLOCK,
    UPDATE_BUCKET_BYTES,
    WEIGHTS,
    MemoryLayout,
    has_eight_bit_moments,
    nf4_bytes,
)

State = Mapping[tuple[str, str], int]
"""A mapping from a memory tier and a kind of state to a number of bytes."""

_FULL = ITEM_BYTES["fp32"]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a model, with the properties that determine its memory.

    Attributes:
        block: the name of the parameter's block; None: it is outside of the blocks. The parameters
            of a block are gathered together, and those outside for the whole pass.
        in_fp32: the parameter is in fp32, whatever the dtype of the other parameters.
        is_hidden: the parameter is a matrix in a block, and not an embedding or the head. The
            optimizer Muon updates such matrices.
        cut: the dimension that tensor-parallel ranks divide, or None.
        is_packed: the parameter is frozen, and every rank has all of it in 4 bits.
    """

    shape: tuple[int, ...]
    is_trained: bool = True
    block: str | None = None
    in_fp32: bool = False
    is_hidden: bool = False
    cut: int | None = None
    is_packed: bool = False

    def width(self, dtype: str) -> int:
        """Return the size of one element in bytes, for a model with weights of `dtype`."""
        return _FULL if self.in_fp32 else ITEM_BYTES[dtype]

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def rows(self, ranks: int, tensor_ranks: int = 1) -> int:
        """Return the number of elements on the rank with the most, if dimension 0 is divided among
        `ranks` ranks. With tensor parallelism, `tensor_ranks` of these ranks first divide the
        parameter along `cut`."""
        part = self if ranks == 1 else self.part(tensor_ranks)
        among = ranks if part is self else ranks // tensor_ranks
        return ceil(part.shape[0] / among) * prod(part.shape[1:])

    def part(self, tensor_ranks: int) -> Parameter:
        """Return the part of the parameter that one tensor-parallel rank computes with."""
        if self.cut is None or tensor_ranks == 1:
            return self
        own = ceil(self.shape[self.cut] / tensor_ranks)
        shape = (*self.shape[: self.cut], own, *self.shape[self.cut + 1 :])
        return replace(self, shape=shape, cut=None)


def textbook_state(parameters: Iterable[Parameter], layout: MemoryLayout) -> State:
    """Return the bytes of state for each memory tier and kind (weights, gradients, ...), as the
    paper computes them: tensors are divided among the ranks exactly, not by whole rows."""
    trained = frozen = moments = packed = 0
    for parameter, times in _distinct_with_counts(parameters):
        if parameter.is_packed:
            packed += times * nf4_bytes(parameter.numel, double_quant=layout.double_quant)
            continue
        trained += times * parameter.numel * parameter.is_trained
        frozen += times * parameter.numel * (not parameter.is_trained)
        moments += times * _moments(parameter, 1, layout)
    stage, ranks, width = layout.stage, layout.ranks_per_copy, ITEM_BYTES[layout.precision]
    masters = 0 if layout.precision == "fp32" else _FULL
    return {
        (layout.params_tier, WEIGHTS): _share(
            width * (trained + frozen), ranks if stage >= 3 else 1
        )
        + packed,
        (layout.gradients_tier, GRADIENTS): _share(width * trained, ranks if stage >= 2 else 1),
        (layout.state_tier, MASTERS): _share(masters * trained, layout.update_ranks),
        (layout.state_tier, MOMENTS): _share(moments, layout.update_ranks),
    }


def nvme_offload_state(parameters: Sequence[Parameter], layout: MemoryLayout) -> State:
    """Return the state with DeepSpeed: `textbook_state`, except that with offload to disk the files
    hold fp32 masters and fp32 gradients, even if the training is in fp32."""
    state = dict(textbook_state(parameters, layout))
    if layout.state_tier == DISK:
        trained = sum(parameter.numel for parameter in parameters if parameter.is_trained)
        state[DISK, MASTERS] = state[DISK, GRADIENTS] = _share(
            _FULL * trained, layout.ranks_per_copy
        )
    return state


def torch_engine_state(parameters: Sequence[Parameter], layout: MemoryLayout) -> State:
    """Return the state of engine `torch` on the rank with the most memory, when all gradients of a
    step exist. If gradients are summed on the host, return the maximum of each memory tier."""
    found: Counter[tuple[str, str]] = Counter()
    for parameter, times in _distinct_with_counts(parameters):
        if parameter.is_packed:
            size = nf4_bytes(parameter.numel, double_quant=layout.double_quant)
            found[DEVICE, WEIGHTS] += times * size
            continue
        whole, own = (
            parameter.rows(ranks, layout.tensor_ranks)
            for ranks in (layout.weight_ranks, layout.update_ranks)
        )
        dtype = layout.weights_dtype if parameter.is_trained else layout.frozen_dtype
        found[layout.params_tier, WEIGHTS] += times * parameter.width(dtype) * whole
        if parameter.is_trained:
            gradients = _gradients(parameter, whole, own, layout)
            found.update({place: times * size for place, size in gradients.items()})
        if layout.has_master(is_trained=parameter.is_trained):
            found[layout.state_tier, MASTERS] += times * _FULL * own
        moments = _moments(parameter, layout.update_ranks, layout)
        found[layout.state_tier, MOMENTS] += times * moments
    return +found


def _distinct_with_counts(parameters: Iterable[Parameter]) -> Iterator[tuple[Parameter, int]]:
    """Yield one parameter of each set of parameters that need the same memory, and the size of the
    set. Most blocks of a model are equal, so there are few sets, and the estimate is fast."""
    counts: dict[tuple[Any, ...], tuple[Parameter, int]] = {}
    for each in parameters:  # hundreds of times for one search: no Parameter is made for each
        key = (each.shape, each.is_trained, each.in_fp32, each.is_hidden, each.cut, each.is_packed)
        first, times = counts.get(key, (each, 0))
        counts[key] = (first, times + 1)
    yield from counts.values()


def _gradients(parameter: Parameter, whole: int, own: int, layout: MemoryLayout) -> State:
    """Return the bytes of a parameter's gradient on a rank that has `whole` elements and updates
    `own` of them."""
    waiting = parameter.width(layout.gradients_dtype) * (own if layout.has_masters else whole)
    found = Counter({(layout.gradients_tier, GRADIENTS): waiting})
    if layout.accumulate == LOCAL:
        summed = _FULL * parameter.part(layout.tensor_ranks).numel
        if not layout.has_masters and layout.gradients_tier == DEVICE:
            return {(DEVICE, GRADIENTS): summed}  # the reduced gradient replaces it
        found[DEVICE, GRADIENTS] += summed
    return found


def state_of(parameters: Sequence[Parameter], layout: MemoryLayout) -> State:
    """Return the state of a rank with the engine that the layout names."""
    if layout.engine == "torch":
        return torch_engine_state(parameters, layout)
    return nvme_offload_state(parameters, layout)


def optimizer_state_of_all_ranks(parameters: Iterable[Parameter], layout: MemoryLayout) -> int:
    """Return the size in bytes of masters and moments of engine `torch`, for all ranks together."""
    total = 0
    for parameter in parameters:
        if layout.has_master(is_trained=parameter.is_trained):
            total += _FULL * parameter.numel
        total += _moments(parameter, 1, layout)
    return total * layout.state_copies


def gathered_bytes(parameters: Iterable[Parameter], layout: MemoryLayout) -> int:
    """Return the bytes of gathered weights on the device during the passes, in addition to
    `torch_engine_state`.

    If the engine keeps gathered weights, all weights count. Otherwise the weights of one block and
    those outside of the blocks count. Without sharding they count as 0, because the rank computes
    with its own weights directly. Weights in 4 bits are unpacked one matrix at a time, with their
    scales in fp32, and the largest one counts.
    """
    blocks: Counter[str | None] = Counter()
    unpacked = 0
    for parameter in parameters:
        if parameter.is_packed:
            scales = _FULL * ceil(parameter.numel / NF4_BLOCK)
            unpacked = max(unpacked, parameter.width(layout.precision) * parameter.numel + scales)
            continue
        part = parameter.part(layout.tensor_ranks)
        if layout.is_sharded:
            blocks[parameter.block] += parameter.width(layout.precision) * part.numel
    outside = blocks.pop(None, 0) + unpacked
    if layout.keeps_gathered:
        return outside + sum(blocks.values())
    return outside + max(blocks.values(), default=0)


def update_buffer(parameters: Iterable[Parameter], layout: MemoryLayout) -> int:
    """Return the bytes of the fp32 buffer that engine `torch` needs to widen 16-bit gradients for
    the optimizer. It holds the rank's rows of one bucket of parameters. A parameter that is larger
    than a bucket is a bucket of its own."""
    if not layout.has_masters or layout.gradients_dtype == "fp32":
        return 0
    most = bucket = free = 0
    for parameter in parameters:
        if not parameter.is_trained or parameter.is_packed:
            continue
        size = _FULL * parameter.numel
        if size > free:
            bucket, free = 0, UPDATE_BUCKET_BYTES
        bucket += _FULL * parameter.rows(layout.update_ranks, layout.tensor_ranks)
        free -= size
        most = max(most, bucket)
    return most


def loss_bytes(size: LossSize, precision: str, *, trains_head: bool = True) -> int:
    """Return the peak memory in bytes of the cross-entropy on the device, which is in the backward
    pass. The hidden states are not included.

    If the loss is computed at once, the peak is the larger of two sizes:

    - the logarithms of the probabilities, their gradient and the gradient of the logits, all in
      fp32
    - the gradients of the logits, of the hidden states and of the head (a matrix of `size.hidden`
      by `size.vocabulary`)

    If the loss is computed in parts, the peak is the larger of two such sizes for one part, plus
    the gradients of all hidden states, plus the sum of the head's gradients in fp32.
    """
    width, logits = ITEM_BYTES[precision], size.rows * size.vocabulary
    head = size.hidden * size.vocabulary if trains_head else 0
    of_hidden = width * size.rows * size.hidden
    if not size.is_cut():
        return max(3 * _FULL * logits, width * (logits + head) + of_hidden)
    rows = size.rows_at_a_time()
    logits = rows * size.vocabulary
    wide = 2 * _FULL + (0 if width == _FULL else width)  # 16-bit logits, in fp32, their softmax
    sums = _FULL * head if rows < size.rows else 0
    own = width * rows * size.hidden  # hidden states of the part; their gradient is added below
    return max(wide * logits + own, width * (2 * logits + head) + 2 * own) + sums + of_hidden


def bytes_at(state: State, tier: str) -> int:
    """Return the bytes of `state` in the memory tier `tier`."""
    return sum(size for (where, _), size in state.items() if where == tier)


def _moments(parameter: Parameter, ranks: int, layout: MemoryLayout) -> int:
    """Return the bytes of optimizer state for the part of a parameter that one of `ranks` ranks
    updates, without the step count."""
    own = parameter.rows(ranks, layout.tensor_ranks)
    if layout.optimizer == "adamw8bit" and has_eight_bit_moments(parameter.shape):
        blocks = ceil(prod(parameter.shape[1:]) / EIGHT_BIT_BLOCK)
        scales = ceil(parameter.shape[0] / ranks) * blocks
        return 2 * (own + _FULL * scales) * parameter.is_trained
    match layout.optimizer:
        case "adamw" | "adamw8bit" | "adam":
            values = 2 * own
        case "muon":
            values = own if parameter.is_hidden else 2 * own
        case "sgd":
            values = own if layout.has_momentum else 0
        case _:
            values = _factored(parameter.shape, ranks)
    return _FULL * values * parameter.is_trained


def _factored(shape: tuple[int, ...], ranks: int) -> int:
    """Return the number of values that Adafactor stores on one rank for a parameter. Each rank has
    all column sums of a matrix. Other values are divided among the ranks by rows."""
    rows = ceil(shape[0] / ranks)
    if len(shape) < 2:
        return rows
    if len(shape) == 2:
        return rows + shape[1]
    return rows * prod(shape[1:-1]) + rows * prod(shape[1:-2]) * shape[-1]


def _share(size: int, ranks: int) -> int:
    return ceil(size / ranks)

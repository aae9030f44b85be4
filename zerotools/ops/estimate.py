"""Bytes of training state that one rank holds, from the shapes of the parameters alone.

Two answers. `textbook` is the arithmetic of the ZeRO paper (Rajbhandari et al. 2020, section 3.1):
in mixed precision with Adam 2 bytes of weights, 2 of gradients and 12 of optimizer (fp32 master,
momentum, variance) per parameter, each divided by the ranks from the stage on that shards it.
`torch_engine_state` is what the engine `torch` allocates, to the byte, on the rank that has most.

Activations are not estimated: they depend on the model's code, the batch and the sequence length.
Nor is what lives for one or two blocks at a time in the backward pass: gradients on their way to
the other ranks, and the fp32 buffers in which they are reduced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

DEVICE, HOST, DISK = "device", "host", "disk"
WEIGHTS, MASTERS, MOMENTS, GRADIENTS = "weights", "masters", "moments", "gradients"

State = Mapping[tuple[str, str], int]
"""Bytes by (place, sort)."""

_FULL, _HALF = 4, 2
_PLACES = {"none": DEVICE, "cpu": HOST, "disk": DISK}


@dataclass(frozen=True)
class Parameter:
    """One parameter; those of a `block` are gathered together, and those of none with the model."""

    shape: tuple[int, ...]
    is_trained: bool = True
    block: str | None = None

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def rows(self, ranks: int) -> int:
        """Elements of the most that one of `ranks` has, where dimension 0 is cut."""
        return ceil(self.shape[0] / ranks) * prod(self.shape[1:])


@dataclass(frozen=True)
class Setup:
    """How a run is laid out: the job file's words. `shard_size` ranks share one copy at stages 2
    and 3; all of them, if None."""

    stage: int
    ranks: int
    precision: str = "bf16"
    optimizer: str = "adamw"
    has_momentum: bool = True
    offload_optimizer: str = "none"
    offload_params: str = "none"
    shard_size: int | None = None

    @property
    def width(self) -> int:
        """Bytes of an element in the forward and backward pass."""
        return _FULL if self.precision == "fp32" else _HALF

    @property
    def sharing(self) -> int:
        """Ranks that share one copy of what the stage shards."""
        return self.shard_size or self.ranks

    @property
    def state_place(self) -> str:
        """Where the optimizer's state is."""
        if self.offload_optimizer == "disk":
            return DISK
        return DEVICE if (self.offload_optimizer, self.offload_params) == ("none", "none") else HOST

    @property
    def has_masters(self) -> bool:
        """Whether engine `torch` keeps masters apart: see `has_masters`."""
        return has_masters(
            self.stage,
            half=self.width == _HALF,
            offloads=self.offload_optimizer != "none",
            params_on_host=self.offload_params != "none",
        )


def has_masters(stage: int, *, half: bool, offloads: bool, params_on_host: bool) -> bool:
    """Whether engine `torch` keeps fp32 masters apart from the weights that are computed with.

    Elsewhere its fp32 weights are the masters, and 16-bit ones are gathered from them. `half` says
    that the passes compute in 16 bits, `offloads` that the optimizer's state is offloaded.
    """
    return not params_on_host and (offloads or (stage == 1 and half))


def textbook(parameters: Iterable[Parameter], setup: Setup) -> State:
    """The paper's arithmetic, not rounded to rows; bytes by (place, sort)."""
    trained = frozen = moments = 0
    for parameter in parameters:
        trained += parameter.numel * parameter.is_trained
        frozen += parameter.numel * (not parameter.is_trained)
        moments += _moments(parameter, 1, setup)
    stage, ranks = setup.stage, setup.sharing
    masters = 0 if setup.width == _FULL else _FULL
    params = _PLACES[setup.offload_params]
    place, of_state = setup.state_place, ranks if stage >= 1 else 1
    return {
        (params, WEIGHTS): _share(setup.width * (trained + frozen), ranks if stage >= 3 else 1),
        (DEVICE if place == DEVICE else HOST, GRADIENTS): _share(
            setup.width * trained, ranks if stage >= 2 else 1
        ),
        (place, MASTERS): _share(masters * trained, of_state),
        (place, MOMENTS): _share(moments, of_state),
    }


def nvme_offload_state(parameters: Sequence[Parameter], setup: Setup) -> State:
    """What DeepSpeed holds where it offloads to disk: as the textbook says, and in its files fp32
    masters and gradients, in fp32 training too."""
    state = dict(textbook(parameters, setup))
    if setup.state_place == DISK:
        trained = sum(parameter.numel for parameter in parameters if parameter.is_trained)
        state[DISK, MASTERS] = state[DISK, GRADIENTS] = _share(_FULL * trained, setup.sharing)
    return state


def torch_engine_state(parameters: Sequence[Parameter], setup: Setup) -> State:
    """What engine `torch` holds when all gradients of a step are there, on the largest rank."""
    found: Counter[tuple[str, str]] = Counter()
    params = DEVICE if setup.offload_params == "none" else HOST
    place, parts = setup.state_place, setup.sharing if setup.stage >= 1 else 1
    for parameter in parameters:
        whole = parameter.rows(setup.sharing if setup.stage >= 2 else 1)
        own = parameter.rows(parts)
        if setup.has_masters:
            found[params, WEIGHTS] += setup.width * whole
            found[place, MASTERS] += _FULL * own
            found[HOST if place == DISK else place, GRADIENTS] += (
                setup.width * own * parameter.is_trained
            )
        else:
            found[params, WEIGHTS] += _FULL * whole
            found[params, GRADIENTS] += _FULL * whole * parameter.is_trained
        found[place, MOMENTS] += _moments(parameter, parts, setup)
    return +found


def gathered(parameters: Iterable[Parameter], setup: Setup) -> int:
    """Bytes of whole weights on the device in the passes, beside what `torch_engine_state` says.

    Stage 2 keeps those of all blocks until the backward pass is done with them, where ranks share
    them; the other stages have one block's at a time, and those outside of the blocks.
    """
    blocks: Counter[str | None] = Counter()
    for parameter in parameters:
        blocks[parameter.block] += setup.width * parameter.numel
    outside = blocks.pop(None, 0)
    keeps = setup.stage == 2 and setup.sharing > 1
    return outside + (sum(blocks.values()) if keeps else max(blocks.values(), default=0))


def bytes_at(state: State, place: str) -> int:
    """Bytes of `state` at a place."""
    return sum(size for (where, _), size in state.items() if where == place)


def _moments(parameter: Parameter, ranks: int, setup: Setup) -> int:
    """fp32 bytes that the optimizer keeps of what one of `ranks` updates, its step count aside."""
    own = parameter.rows(ranks)
    match setup.optimizer:
        case "adamw":
            values = 2 * own
        case "sgd":
            values = own if setup.has_momentum else 0
        case _:
            values = _factored(parameter.shape, ranks)
    return _FULL * values * parameter.is_trained


def _factored(shape: tuple[int, ...], ranks: int) -> int:
    """Values of Adafactor: a matrix's columns are whole on every rank, all else is cut by rows."""
    rows = ceil(shape[0] / ranks)
    if len(shape) < 2:
        return rows
    if len(shape) == 2:
        return rows + shape[1]
    return rows * prod(shape[1:-1]) + rows * prod(shape[1:-2]) * shape[-1]


def _share(size: int, ranks: int) -> int:
    return ceil(size / ranks)

"""Attention over sequences that are split among ranks: each rank has some of the positions.

Before the attention, the ranks exchange heads for positions. Then each rank has all positions of
`heads / ranks` heads, and uses an existing implementation with the mask of the whole sequence. The
results are sent back by the reverse exchange. With 2 ranks, 4 heads and 6 positions:

    rank 0 has positions 0-2 of heads 0-3   <->   positions 0-5 of heads 0, 1
    rank 1 has positions 3-5 of heads 0-3   <->   positions 0-5 of heads 2, 3

If the number of ranks does not divide the number of key/value heads, each rank gets the key/value
heads that its queries need.

The base model gets a `WholeMask` instead of its mask, and passes the `WholeMask` to its layers. The
layers also use it when activations are computed again in the backward pass. Without an active
`WholeSequences`, as in text generation, each implementation works as usual.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from zerotools.core.errors import Unsupported
from zerotoolsd.trainer.sequence_parallel.all_to_all import Exchange, swapped_blocks

OVER_RANKS = "_over_ranks"
"""Suffix of the names of attention implementations that work over ranks."""
EAGER, _EAGER_FUNCTION = "eager", "eager_attention_forward"
_SINKS, _SINKS_OPTION = "sinks", "s_aux"
"""Names for attention sinks: numbers for each head that compete with the positions for attention,
as in GPT-OSS.

The first is the attribute of a module, the second the argument of an attention implementation.
"""

Seen = Callable[..., torch.Tensor]
"""A mask function of transformers.

It gets the numbers of a sequence, a head, a query and a key, and returns whether the query sees the
key.
"""


@dataclass(frozen=True)
class WholeSequences:
    """Describes the whole sequences, if a model on this rank reads only a part of each sequence.

    `positions` are the position ids, `[batch, length]`, if they restart with each segment; None
    otherwise. `last` is the largest position id.
    """

    exchange: Exchange
    positions: torch.Tensor | None
    last: int | torch.Tensor

    def positions_of(self, length: int) -> torch.Tensor | None:
        """Return the position ids of all ranks, if each rank has `length` positions.

        If `length` is smaller than a rank's part, as in the check of a chunked loss, only the first
        position ids of each rank are returned. Returns None if `positions` is None.
        """
        if self.positions is None:
            return None
        by_rank = self.positions.unflatten(1, (self.exchange.ranks, -1))
        return by_rank[:, :, :length].flatten(1)


_now: ContextVar[WholeSequences | None] = ContextVar("sequences that ranks share", default=None)


@contextmanager
def reading_part(whole: WholeSequences) -> Iterator[None]:
    """Return a context manager. Inside its context, a model reads only this rank's part of the
    sequences `whole`.
    """
    token = _now.set(whole)
    try:
        yield
    finally:
        _now.reset(token)


def whole_sequences() -> WholeSequences | None:
    """Return the argument of the current `reading_part` context; None outside of such a context."""
    return _now.get()


@dataclass(frozen=True)
class WholeMask:
    """Replaces the attention mask of this rank's part.

    `mask` is the mask of the whole sequences, in the form that the attention implementation needs.
    """

    mask: Any
    exchange: Exchange


def over_ranks(implementation: str) -> str:
    """Register a version of the attention `implementation` of transformers that works over ranks.

    Returns the name of this version.
    """
    name = f"{implementation}{OVER_RANKS}"
    if name not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        AttentionInterface.register(name, partial(_attend, implementation))
        AttentionMaskInterface.register(name, partial(_mask, implementation))
    return name


def attend_over_ranks(model: Any, ranks: int) -> None:
    """Make `model` compute attention over `ranks` ranks, with its own attention implementation.

    Raises:
        Unsupported: transformers cannot replace the attention of this model.
    """
    if ranks == 1:
        return
    wanted = over_ranks(model.config.get_text_config()._attn_implementation)
    try:
        model.set_attn_implementation(wanted)
    except (ValueError, ImportError) as error:
        raise _cannot_set(model, ranks, f": {' '.join(str(error).split())}") from None
    if model.config.get_text_config()._attn_implementation != wanted:
        raise _cannot_set(model, ranks)


def _cannot_set(model: Any, ranks: int, reason: str = "") -> Unsupported:
    return Unsupported(
        f"zero.sequence_ranks = {ranks}: transformers cannot replace the attention of "
        f"{type(model).__name__}, so it cannot be computed over ranks; remove "
        f"zero.sequence_ranks{reason}"
    )


def _mask(implementation: str, **arguments: Any) -> Any:
    made = ALL_MASK_ATTENTION_FUNCTIONS[implementation]
    whole = _now.get()
    if whole is None:
        return made(**arguments)
    own = arguments["q_length"] if "q_length" in arguments else len(arguments["cache_position"])
    length = own * whole.exchange.ranks
    changed: dict[str, Any] = {"kv_length": length, "attention_mask": None}
    if "q_length" in arguments:
        changed["q_length"] = length
    else:  # transformers 5.1
        changed["cache_position"] = torch.arange(length, device=arguments["cache_position"].device)
    places = whole.positions_of(own)
    if places is not None:
        changed["mask_function"] = _within_segments(arguments["mask_function"], places)
        changed["allow_is_causal_skip"] = False
    return WholeMask(made(**{**arguments, **changed}), whole.exchange)


def _within_segments(seen: Seen, places: torch.Tensor) -> Seen:
    """Return the mask function `seen`, restricted so that a query sees only keys of its own
    segment.

    `places` are the position ids, which restart with each segment.
    """
    begins = torch.diff(places, prepend=places[:, :1] - 1) != 1
    segments = begins.cumsum(-1)

    def within(row: Any, head: Any, query: Any, key: Any) -> torch.Tensor:
        same = segments[row, query] == segments[row, key]
        return same & seen(row, head, places[row, query], places[row, key])

    return within


# Else a block that is compiled would have the exchange in it.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend(
    implementation: str,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    **options: Any,
) -> tuple[torch.Tensor, Any]:
    """Compute attention over the ranks.

    This function replaces an attention function of transformers. `query`, `key` and `value` are
    `[batch, heads, positions, width]`; the result is `[batch, positions, heads, width]`.
    """
    attend = _function(implementation, module)
    if not isinstance(attention_mask, WholeMask):
        found: tuple[torch.Tensor, Any] = attend(
            module, query, key, value, attention_mask, **options
        )
        return found
    exchange, heads = attention_mask.exchange, query.shape[1]
    if heads % exchange.ranks:
        raise Unsupported(
            f"zero.sequence_ranks = {exchange.ranks}: must divide the {heads} attention heads of "
            f"{type(module).__name__}"
        )
    copies = exchange.ranks // gcd(key.shape[1], exchange.ranks)
    if copies > 1:
        key, value = (each.repeat_interleave(copies, dim=1) for each in (key, value))
    query, key, value = (_by_heads(each, exchange) for each in (query, key, value))
    some = _SomeHeads(module, copies, exchange)
    if options.get(_SINKS_OPTION) is not None:
        options[_SINKS_OPTION] = some.own(options[_SINKS_OPTION])
    result, _ = attend(some, query, key, value, attention_mask.mask, **options)
    return _by_positions(result, exchange), None


def _function(implementation: str, module: Any) -> Callable[..., Any]:
    if implementation == EAGER:  # each model file has its own
        files = (sys.modules.get(kind.__module__) for kind in type(module).__mro__)
        own: Callable[..., Any] = next(
            found for file in files if (found := getattr(file, _EAGER_FUNCTION, None)) is not None
        )
        return own
    known: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS[implementation]
    return known


class _SomeHeads:
    """Replaces an attention `module`, and has only the heads of one rank. Each key/value head is
    repeated `copies` times.
    """

    def __init__(self, module: Any, copies: int, exchange: Exchange) -> None:
        self._module = module
        self._exchange = exchange
        if copies > 1:
            self.num_key_value_groups = getattr(module, "num_key_value_groups", copies) // copies
        if _SINKS in module._parameters:
            self.sinks = self.own(module.sinks)

    def own(self, of_heads: torch.Tensor) -> torch.Tensor:
        """Return the part of `of_heads` for this rank's attention heads. `of_heads` has one number
        for each head.
        """
        return of_heads.chunk(self._exchange.ranks)[self._exchange.index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _by_heads(own: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """Exchange positions for heads among the ranks.

    The tensor changes from `[batch, heads, positions / ranks, width]` to `[batch, heads / ranks,
    positions, width]`.
    """
    blocks = own.unflatten(1, (exchange.ranks, -1)).movedim(1, 0)
    return swapped_blocks(blocks, exchange).movedim(0, 2).flatten(2, 3)


def _by_positions(whole: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """Exchange heads for positions among the ranks.

    The tensor changes from `[batch, positions, heads / ranks, width]` to `[batch, positions /
    ranks, heads, width]`.
    """
    blocks = whole.unflatten(1, (exchange.ranks, -1)).movedim(1, 0)
    return swapped_blocks(blocks, exchange).movedim(0, 2).flatten(2, 3)

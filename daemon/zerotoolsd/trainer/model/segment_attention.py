"""Computes attention over packed sequences one segment at a time, with torch's
scaled_dot_product_attention.

transformers separates the segments with a mask that has an element for each pair of positions. Here
each segment is a separate call, which needs no such mask and does no work for hidden positions. The
base model gets the lengths of the segments in place of a mask, and passes them on to its layers.

Without packed sequences, transformers still searches for segments in the position ids of every
batch. This search makes the host wait for the device. This module avoids the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils.generic import is_flash_attention_requested

SEGMENTED = "sdpa_by_segment"
"""The name of this attention implementation in transformers."""

Lengths = Sequence[Sequence[int]]
"""For each sequence in a batch, the lengths of its segments.

The rest of the sequence is padding.
"""
_now: ContextVar[Lengths | None] = ContextVar("lengths of segments", default=None)
_one_each: ContextVar[bool] = ContextVar("each sequence is one segment", default=False)


def is_flash(model: Any) -> bool:
    """Return whether `model` uses one of the flash_attention packages."""
    return bool(is_flash_attention_requested(model.config.get_text_config()))


@contextmanager
def segments_of(model: Any, lengths: Lengths) -> Iterator[None]:
    """Return a context manager. Inside its context, `lengths` are the segments of the batch that
    `model` reads.
    """
    # Over several ranks its name has more to it.
    applies = model.config.get_text_config()._attn_implementation.startswith(SEGMENTED)
    is_packed = any(len(row) > 1 for row in lengths)
    token = _now.set(lengths if applies and is_packed else None)
    one_each = _one_each.set(not is_packed)
    try:
        yield
    finally:
        _one_each.reset(one_each)
        _now.reset(token)


@dataclass(frozen=True)
class SegmentMask:
    """Replaces an attention mask. It has the lengths of the segments.

    If a segment is longer than `window` (a sliding window), a token does not see all earlier tokens
    of the segment. Only then is `hides` called, which returns the mask of the segment.
    """

    lengths: Lengths
    hides: Callable[..., torch.Tensor]
    window: int | None = None

    def bounds(self, row: int, length: int) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of each segment of sequence `row` in the batch. The padding is a
        segment, too.

        `length` is the number of positions of the sequence that are computed: all, or only the
        first positions in the check of a chunked loss.
        """
        begin = 0
        for size in (*self.lengths[row], length):
            end = min(begin + size, length)
            if begin < end:
                yield begin, end
            begin = end

    def of(self, row: int, begin: int, end: int, device: torch.device) -> torch.Tensor | None:
        """Return the mask for the segment from `begin` to `end` of sequence `row`, `[1, 1, length,
        length]`.

        Returns None if a causal mask is enough.
        """
        if self.window is None or end - begin <= self.window:
            return None
        places = torch.arange(begin, end, device=device)
        seen = self.hides(row, 0, places[:, None], places[None, :])
        return seen[None, None]


def _mask(**arguments: Any) -> Any:
    """Return a `SegmentMask`, if the lengths of the segments are set; else the mask of
    transformers.

    This function replaces `sdpa_mask` of transformers.
    """
    lengths = _now.get()
    if lengths is None or arguments.get("use_vmap") or arguments.get("attention_mask") is not None:
        return sdpa_mask(**arguments)
    return SegmentMask(lengths, arguments["mask_function"], arguments.get("local_size"))


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention segment by segment.

    This replaces `sdpa_attention_forward` of transformers. `query`, `key` and `value` are `[batch,
    heads, length, width]`.
    """
    if not isinstance(attention_mask, SegmentMask):
        found: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return found
    rows = []
    for row in range(query.shape[0]):
        parts = []
        for begin, end in attention_mask.bounds(row, query.shape[2]):
            own = (slice(row, row + 1), slice(None), slice(begin, end))
            mask = attention_mask.of(row, begin, end, query.device)
            part, _ = sdpa_attention_forward(
                module, query[own], key[own], value[own], mask, **options
            )
            parts.append(part)
        rows.append(torch.cat(parts, dim=1))
    return torch.cat(rows), None


_find_segments: Any = getattr(masking_utils, "find_packed_sequence_indices", None)


def _segment_numbers(position_ids: torch.Tensor, **options: Any) -> torch.Tensor | None:
    """Return the segment number of each position; None if sequences are not packed.

    This function replaces `find_packed_sequence_indices` of transformers.
    """
    if _one_each.get() and not torch.compiler.is_compiling():
        return None
    found: torch.Tensor | None = _find_segments(position_ids, **options)
    return found


if _find_segments is not None:
    masking_utils.find_packed_sequence_indices = _segment_numbers
AttentionInterface.register(SEGMENTED, _attend)
AttentionMaskInterface.register(SEGMENTED, _mask)

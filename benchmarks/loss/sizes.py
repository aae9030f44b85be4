"""The loss alone, from hidden states to their gradient and the head's: predicted and held."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.loss.live_bytes import LiveBytes
from zerotools.core.loss_chunk_sizes import LossSize
from zerotools.ops.estimate.state_memory import loss_bytes
from zerotoolsd.trainer.allocate_tensors import TORCH_DTYPES
from zerotoolsd.trainer.engine.chunked_loss import LossParts, SummedLoss, summed_cross_entropy

SIZES = [(2048, 8192, 256), (4096, 32768, 256), (4096, 50304, 512)]
"""Rows, vocabulary, and width of the hidden states."""
MIB = 1 << 20


def held(size: LossSize, precision: str) -> int:
    """Bytes that a forward and a backward pass of the loss hold at most."""
    dtype = TORCH_DTYPES[precision]
    torch.manual_seed(0)
    head = nn.Linear(size.hidden, size.vocabulary, bias=False, dtype=dtype)
    hidden = torch.randn(1, size.rows, size.hidden, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, size.vocabulary, (size.rows,))
    with LiveBytes([head.weight, hidden, targets]) as bytes_alive:
        if not size.is_cut():
            summed_cross_entropy(head(hidden), targets).backward()
        else:
            rows = torch.arange(size.rows).split(size.rows_at_a_time())
            parts = LossParts(head, targets, rows, list(head.parameters()))
            SummedLoss.apply(parts, hidden, *parts.weights).backward()
    return bytes_alive.peak


def table() -> Iterator[str]:
    """One row for each size, precision and way."""
    yield (
        "| rows | vocabulary | hidden | precision | chunked_loss | rows of a part "
        "| predicted MiB | held MiB | held over predicted | bytes per logit |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for rows, vocabulary, hidden in SIZES:
        for precision in ("fp32", "bf16"):
            for cut in ("off", "auto", "on"):
                size = LossSize(rows, vocabulary, hidden, cut)
                predicted, found = loss_bytes(size, precision), held(size, precision)
                part = size.rows_at_a_time() if size.is_cut() else rows
                cells = (
                    f"{rows} | {vocabulary} | {hidden} | {precision} | {cut} | {part}",
                    f"{predicted / MIB:.1f} | {found / MIB:.1f}",
                    f"{100 * (found / predicted - 1):+.2f} %",
                    f"{found / (rows * vocabulary):.2f}",
                )
                yield f"| {' | '.join(cells)} |"

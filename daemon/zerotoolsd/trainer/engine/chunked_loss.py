"""Cross-entropy without a tensor of logits: the head works on a part of the rows at a time.

A row is the hidden state of one position. The model's `forward` computes its logits (the head, and
the scaling or bounding of logits). It is called with the base model replaced by one that returns
part of the hidden states. So this code is independent of the architecture; the equality of the
logits is checked once, on the model itself.

The backward pass computes the logits of each part again. Gradients of the head are summed over the
parts in fp32, as in one product over all rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from zerotools.core.errors import Unsupported
from zerotools.core.loss_chunks import LossSize
from zerotoolsd.trainer.data.sequences import IGNORED
from zerotoolsd.trainer.engine.backbone import BaseModel, CannotCut

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest difference of logits, relative to the largest logit."""
HALF_TOLERANCE = 2e-2
"""The same for 16-bit logits: products of other shapes round differently."""
CHECKED_POSITIONS, CHECKED_ROWS = 16, 5
"""Positions of each sequence, and rows of each part, which thus is not a whole sequence."""


def summed_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum over all positions with a target other than `IGNORED`, at least in fp32.

    Args:
        logits: `[..., vocabulary]`.
        targets: As many positions, int64.
    """
    wide = logits.to(_wide(logits.dtype)).flatten(0, -2)
    return functional.cross_entropy(wide, targets.flatten(), ignore_index=IGNORED, reduction="sum")


def takes_targets(model: Any) -> bool:
    """Return whether a call of `model` with `targets` returns their loss."""
    return hasattr(model, "chunked_loss")


@dataclass
class ChunkedLoss:
    """Wraps the `forward` of a causal `model`, which then also accepts `targets`.

    They are `[batch, length]`; with them the output's `loss` is the sum of the cross-entropies, and
    its `logits` must not be used. If the loss cannot be computed in parts, this is an error; or
    `say` gets the reason and all is computed at once.
    """

    model: Any
    size: LossSize
    say: Callable[[str], None] | None = None
    _forward: Any = field(init=False)
    _base: BaseModel = field(init=False)
    _agrees: bool | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._forward = self.model.forward
        self._base = BaseModel(self.model)

    def install(self) -> None:
        """Let the model's `forward` accept `targets`."""

        @functools.wraps(self._forward)
        def forward(*args: Any, targets: torch.Tensor | None = None, **arguments: Any) -> Any:
            if targets is None:
                return self._forward(*args, **arguments)
            return self._with_loss(arguments, targets)

        self.model.forward = forward
        self.model.chunked_loss = self

    def _with_loss(self, arguments: dict[str, Any], targets: torch.Tensor) -> Any:
        if self._agrees is None:
            self._agrees = self._is_right(arguments)
        if not self._agrees or not self.size.is_cut(targets.numel()):
            output = self._forward(**arguments)
            output.loss = summed_cross_entropy(output.logits, targets)
            return output
        output, hidden, tail = self._before_the_head(arguments)
        rows = (targets.flatten() != IGNORED).nonzero().flatten()
        parts = rows.split(self.size.rows_at_a_time(len(rows)))
        work = Parts(tail, targets.flatten(), parts, self._base.weights_outside())
        output.loss = SummedLoss.apply(work, hidden, *work.weights)
        return output

    def _before_the_head(self, arguments: dict[str, Any]) -> tuple[Any, torch.Tensor, Tail]:
        """Return (the output without logits, the hidden states, the function from rows of them to
        logits)."""
        with self._base.watched() as seen:
            output = self._forward(**arguments)
        rest = dict(arguments)
        if getattr(self.model.config.get_text_config(), "output_router_logits", False):
            rest["output_router_logits"] = False  # their loss is in `output`

        def tail(rows: torch.Tensor) -> torch.Tensor:
            with self._base.answering(seen, rows[None]):
                logits: torch.Tensor = self._forward(**rest).logits.squeeze(0)
            return logits

        return output, seen.hidden, tail

    def _is_right(self, arguments: dict[str, Any]) -> bool:
        """Return whether the logits of the first positions, computed row by row, equal the
        model's."""
        try:
            with torch.no_grad():
                self._check(_shortened(arguments))
        except CannotCut as error:
            if self.say is None:
                raise Unsupported(
                    f'train.chunked_loss = "on": {error}; set it to "auto" or "off"'
                ) from None
            self.say(f"note: the loss is computed with all logits at once: {error}")
            return False
        return True

    def _check(self, arguments: dict[str, Any]) -> None:
        kind = type(self.model).__name__
        wanted = self._forward(**arguments).logits
        _, hidden, tail = self._before_the_head(arguments)
        rows = hidden.flatten(0, 1)
        found = torch.cat([tail(part) for part in rows.split(CHECKED_ROWS)])
        wanted = wanted.flatten(0, 1)
        dropout = self._base.random_outside()
        if dropout is not None:
            raise CannotCut(f"{kind} draws random numbers in {dropout}, after its hidden states")
        if found.shape != wanted.shape:
            raise CannotCut(f"{kind} does not make its logits position by position")
        error = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))
        if not error <= TOLERANCES.get(wanted.dtype, HALF_TOLERANCE):
            raise CannotCut(
                f"the logits of {kind}, computed position by position, differ from its logits "
                f"for the whole sequence by {error:.2g} of the largest"
            )


Tail = Callable[[torch.Tensor], torch.Tensor]
"""Function from hidden states `[rows, hidden]` to logits `[rows, vocabulary]`."""


def _shortened(arguments: dict[str, Any]) -> dict[str, Any]:
    batch, length = arguments["input_ids"].shape
    shapes = (batch, length), (1, length)  # positions are the same in all sequences
    return {
        name: value[:, :CHECKED_POSITIONS]
        if isinstance(value, torch.Tensor) and tuple(value.shape[:2]) in shapes
        else value
        for name, value in arguments.items()
    }


@dataclass(frozen=True)
class Parts:
    """`rows` are numbers of positions, part by part; at least one part, which may have none. All of
    them have a target."""

    tail: Tail
    targets: torch.Tensor
    rows: tuple[torch.Tensor, ...]
    weights: list[nn.Parameter]

    def loss(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the loss of `rows` with the hidden states `hidden`."""
        logits = self.tail(hidden)
        logs = torch.log_softmax(logits, -1, dtype=_wide(logits.dtype))
        return -logs.gather(1, self.targets[rows, None]).sum()

    def gradients(
        self, hidden: torch.Tensor, rows: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        """Return that loss's gradients, times `gradient`: for `hidden` and for each weight it uses.

        Autograd would need two more tensors of the logits' size.
        """
        with torch.enable_grad():
            logits = self.tail(hidden.requires_grad_())
        slopes = torch.softmax(logits.detach(), -1, dtype=_wide(logits.dtype))
        own = self.targets[rows, None]
        slopes.scatter_add_(1, own, slopes.new_full(own.shape, -1.0)).mul_(gradient)
        slopes = slopes.to(logits.dtype)
        found: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
            logits, [hidden, *self.weights], slopes, allow_unused=True
        )
        return found


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class SummedLoss(torch.autograd.Function):  # type: ignore[misc]
    """The loss of all parts. It keeps only the hidden states for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, parts: Parts, hidden: torch.Tensor, *weights: nn.Parameter
    ) -> torch.Tensor:
        del weights  # for autograd to know of
        ctx.save_for_backward(hidden)
        ctx.parts = parts
        kind = hidden.device.type
        ctx.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        flat = hidden.flatten(0, 1)
        losses = [parts.loss(flat[rows], rows) for rows in parts.rows]
        return torch.stack(losses).sum()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        (hidden,), parts = ctx.saved_tensors, ctx.parts
        flat = hidden.flatten(0, 1)
        of_hidden = torch.zeros_like(flat)
        of_weights = _Sums(parts.weights, several=len(parts.rows) > 1)
        kind, dtype, enabled = ctx.autocast
        for rows in parts.rows:
            with torch.autocast(kind, dtype, enabled):
                of_hidden[rows] = of_weights.added(parts.gradients(flat[rows], rows, gradient))
        return None, of_hidden.view_as(hidden), *of_weights.taken()


class _Sums:
    """Gradients of `weights`: of `several` parts they are summed in fp32 at least."""

    def __init__(self, weights: list[nn.Parameter], *, several: bool) -> None:
        self._weights = weights
        self._several = several
        self._sums: list[torch.Tensor | None] = [None] * len(weights)

    def added(self, gradients: tuple[torch.Tensor | None, ...]) -> torch.Tensor | None:
        """Add those of one part but the first, which comes back, and is not of a weight. A weight
        that the part does not use has None."""
        first, *others = gradients
        for number, gradient in enumerate(others):
            so_far = self._sums[number]
            if so_far is not None and gradient is not None:
                so_far += gradient
            elif gradient is not None:
                wide = _wide(gradient.dtype) if self._several else gradient.dtype
                self._sums[number] = gradient.to(wide)
        return first

    def taken(self) -> list[torch.Tensor | None]:
        """Return the sums, each with its weight's type."""
        return [
            None if total is None else total.to(weight.dtype)
            for total, weight in zip(self._sums, self._weights, strict=True)
        ]

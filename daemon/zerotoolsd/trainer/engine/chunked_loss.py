"""Computes the cross-entropy without a tensor of all logits: the head computes the logits of some
positions at a time.

A row is the hidden state of one position. The model's own `forward` computes the logits of a few
rows, with all its operations after the head, such as a scale or a cap. For this, the base model is
replaced by a function that returns only these rows. So the code does not depend on the
architecture. The logits are compared once with the logits of the unchanged model.

The backward pass computes the logits of each part again. The gradients of the head are summed over
the parts in fp32.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from zerotools.core.errors import Unsupported
from zerotools.core.loss_chunk_sizes import LossSize
from zerotools.jobs.jobfile_tables.data import longest_sequence
from zerotools.jobs.jobfile_tables.job_rules import why_loss_is_whole
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.trainer.data.example_pools import IGNORED
from zerotoolsd.trainer.data.training_data import positions_of
from zerotoolsd.trainer.model.tiny_model import small_model

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest accepted difference of logits for each type, relative to the largest logit."""
HALF_TOLERANCE = 2e-2
"""Largest accepted difference of 16-bit logits, relative to the largest logit.

It is not 0, because matrix products of different shapes are rounded differently.
"""
CHECKED_POSITIONS, CHECKED_ROWS = 16, 5
"""For the check: number of positions of each sequence, and number of positions in each part.

They are chosen so that a part is not a whole sequence.
"""


def summed_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum of the cross-entropies of all targets other than `IGNORED`, in fp32 or fp64.

    Args:
        logits: `[..., vocabulary]`.
        targets: one int64 target for each position.
    """
    wide = logits.to(_wide(logits.dtype)).flatten(0, -2)
    return functional.cross_entropy(wide, targets.flatten(), ignore_index=IGNORED, reduction="sum")


def accepts_targets(model: Any) -> bool:
    """Return whether `model` returns the loss if it is called with the argument `targets`."""
    return hasattr(model, "chunked_loss")


@dataclass
class ChunkedLoss:
    """Changes the `forward` of a causal `model` so that it accepts `targets`, `[batch, length]`.

    With targets, the output's `loss` is the sum of the cross-entropies, and its `logits` must not
    be used. `rows` are the numbers of the positions with a target, on the device of `targets`.
    Without `rows`, the device computes these numbers, and the host has to wait for the device.

    For some models, the loss cannot be computed in parts. Then `log_line` is called with the
    reason, and the loss is computed with all logits at once. If `log_line` is None, Unsupported is
    raised instead.
    """

    model: Any
    size: LossSize
    log_line: Callable[[str], None] | None = None
    _forward: Any = field(init=False)
    _base: BaseModel = field(init=False)
    _agrees: bool | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._forward = self.model.forward
        self._base = BaseModel(self.model)

    def install(self) -> None:
        """Replace the `forward` of the model by a function that also accepts `targets`."""

        @functools.wraps(self._forward)
        def forward(
            *args: Any,
            targets: torch.Tensor | None = None,
            rows: torch.Tensor | None = None,
            **arguments: Any,
        ) -> Any:
            if targets is None:
                return self._forward(*args, **arguments)
            return self._with_loss(arguments, targets, rows)

        self.model.forward = forward
        self.model.chunked_loss = self

    def _with_loss(
        self, arguments: dict[str, Any], targets: torch.Tensor, rows: torch.Tensor | None
    ) -> Any:
        if self._agrees is None:
            self._agrees = self._is_right(arguments)
        if not self._agrees or not self.size.is_cut(targets.numel()):
            output = self._forward(**arguments)
            output["loss"] = summed_cross_entropy(output.logits, targets)
            return output
        output, hidden, tail = self._before_the_head(arguments)
        if rows is None:
            rows = (targets.flatten() != IGNORED).nonzero().flatten()
        parts = rows.split(self.size.rows_at_a_time(len(rows)))
        work = LossParts(tail, targets.flatten(), parts, self._base.weights_outside())
        # By its key: older ModelOutputs take an attribute for no value, and FSDP2 does not see it.
        output["loss"] = SummedLoss.apply(work, hidden, *work.weights)
        return output

    def _before_the_head(self, arguments: dict[str, Any]) -> tuple[Any, torch.Tensor, Tail]:
        """Run the model up to its head. Return three values: the model's output without logits, the
        hidden states, and a function of the type `Tail`, which computes logits from hidden states.
        """
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
        """Return whether the logits of the first positions, computed in parts, equal the model's
        own logits.

        Raises:
            Unsupported: they differ, and the loss must not be computed at once.
        """
        try:
            with torch.no_grad():
                self._check(_shortened(arguments))
        except CannotChunk as error:
            if self.log_line is None:
                raise Unsupported(
                    f'train.chunked_loss = "on": {error}; set it to "auto" or "off"'
                ) from None
            self.log_line(f"note: the loss is computed with all logits at once: {error}")
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
            raise CannotChunk(f"{kind} applies dropout after its hidden states, in {dropout}")
        if found.shape != wanted.shape:
            raise CannotChunk(f"{kind} does not compute its logits position by position")
        error = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))
        if not error <= TOLERANCES.get(wanted.dtype, HALF_TOLERANCE):
            raise CannotChunk(
                f"the logits of {kind}, computed position by position, differ from its logits "
                f"for the whole sequence by {error:.2g} of the largest logit"
            )


Tail = Callable[[torch.Tensor], torch.Tensor]
"""A function from hidden states `[rows, hidden]` to logits `[rows, vocabulary]`."""


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
class LossParts:
    """The positions that have a target, divided into parts.

    `rows` has, for each part, the numbers of its positions. There is at least one part, which may
    be empty. `weights` are the parameters of the head.
    """

    tail: Tail
    targets: torch.Tensor
    rows: tuple[torch.Tensor, ...]
    weights: list[nn.Parameter]

    def loss(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the summed loss of the positions `rows`. `hidden` are their hidden states."""
        logits = self.tail(hidden)
        logs = torch.log_softmax(logits, -1, dtype=_wide(logits.dtype))
        return -logs.gather(1, self.targets[rows, None]).sum()

    def gradients(
        self, hidden: torch.Tensor, rows: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of `loss` times `gradient`: first for `hidden`, then for each of
        `weights`.

        The gradient of an unused weight is None. The gradients are computed without autograd, which
        would need two more tensors of the size of the logits.
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
    """The autograd function that computes the summed loss in parts.

    It keeps only the hidden states for the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, parts: LossParts, hidden: torch.Tensor, *weights: nn.Parameter
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
        return None, of_hidden.view_as(hidden), *of_weights.in_weight_dtypes()


class _Sums:
    """Adds up the gradients of `weights` over the parts. If there are `several` parts, the sums are
    computed in fp32 or fp64.
    """

    def __init__(self, weights: list[nn.Parameter], *, several: bool) -> None:
        self._weights = weights
        self._several = several
        self._sums: list[torch.Tensor | None] = [None] * len(weights)

    def added(self, gradients: tuple[torch.Tensor | None, ...]) -> torch.Tensor | None:
        """Add the gradients of the weights in one part to the sums. Return the first of
        `gradients`, the gradient of the hidden states, which is not added.
        """
        first, *others = gradients
        for number, gradient in enumerate(others):
            so_far = self._sums[number]
            if so_far is not None and gradient is not None:
                so_far += gradient
            elif gradient is not None:
                wide = _wide(gradient.dtype) if self._several else gradient.dtype
                self._sums[number] = gradient.to(wide)
        return first

    def in_weight_dtypes(self) -> list[torch.Tensor | None]:
        """Return the sum for each weight, in the dtype of the weight; None if the weight has no
        gradient.
        """
        return [
            None if total is None else total.to(weight.dtype)
            for total, weight in zip(self._sums, self._weights, strict=True)
        ]


HIDDEN = "last_hidden_state"


class CannotChunk(Exception):
    """The loss of this model cannot be computed in parts. The message is the reason."""


@dataclass
class RecordedOutput:
    """The output of the base model, recorded during a call.

    `name` is the module name of the base model.
    """

    output: Any = None
    name: str = ""
    depth: int = 0

    @property
    def hidden(self) -> torch.Tensor:
        """The hidden states in the output, `[batch, length, hidden]`."""
        value = self.output[0] if isinstance(self.output, tuple) else self.output.get(HIDDEN)
        if not isinstance(value, torch.Tensor) or value.dim() != 3:
            raise CannotChunk("its base model returns no hidden states")
        return value

    def with_hidden(self, hidden: torch.Tensor) -> Any:
        """Return a copy of the output in which the hidden states are `hidden`."""
        if isinstance(self.output, tuple):
            return (hidden, *self.output[1:])
        other = copy.copy(self.output)
        other[HIDDEN] = hidden
        return other


class BaseModel:
    """The base model of a causal `model`: the module that the model's `forward` calls before the
    head.

    It is the outermost called module that contains the token embeddings. Usually this is the whole
    base model. If `forward` calls only the decoder inside the base model, this decoder is used.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        embeddings = model.get_input_embeddings()
        name = next((name for name, module in model.named_modules() if module is embeddings), "")
        parts = name.split(".")[:-1]
        self._names = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        self._called = ""

    def random_outside(self) -> str | None:
        """Return the name of an active dropout module outside of the base model; None if no such
        module exists.
        """
        for name, module in self._model.named_modules():
            if isinstance(module, nn.Dropout) and module.p and not self._contains(name):
                return str(name)
        return None

    def weights_outside(self) -> list[nn.Parameter]:
        """Return the trained parameters outside of the base model: the parameters of the head."""
        found: dict[nn.Parameter, None] = {}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            if parameter.requires_grad and not self._contains(name):
                found[parameter] = None
        return list(found)

    def _contains(self, name: str) -> bool:
        return name.startswith(f"{self._called}.")

    @contextmanager
    def watched(self) -> Iterator[RecordedOutput]:
        """Return a context manager that records the output of the base model. It yields a
        `RecordedOutput`.

        Inside the context, the base model returns only the hidden state of the first position. So
        the head has little to compute.

        Raises:
            CannotChunk: the base model was not called, or it returned no hidden states.
        """
        seen = RecordedOutput()

        def answer(name: str, module: Any, args: Any, arguments: Any) -> Any:
            seen.depth += 1
            output = module(*args, **arguments)
            seen.depth -= 1
            if seen.depth:
                return output
            seen.output, seen.name = output, name
            return seen.with_hidden(seen.hidden[:, :1].detach())

        with self._replaced(answer):
            yield seen
        if seen.output is None:
            raise CannotChunk(f"{type(self._model).__name__} has no base model without its head")
        self._called = seen.name

    @contextmanager
    def answering(self, seen: RecordedOutput, hidden: torch.Tensor) -> Iterator[None]:
        """Return a context manager. Inside its context, the base model does not run, and returns
        the recorded output `seen`.

        The hidden states in this output are replaced by `hidden`.
        """
        output = seen.with_hidden(hidden)
        with self._replaced(lambda *_: output):
            yield

    @contextmanager
    def _replaced(self, answer: Callable[..., Any]) -> Iterator[None]:
        modules = {name: self._model.get_submodule(name) for name in self._names}
        places = [(self._parent_of(name), name.rpartition(".")[2]) for name in self._names]
        for (parent, last), (name, module) in zip(places, modules.items(), strict=True):
            parent._modules[last] = _StandIn(name, module, answer)
        try:
            yield
        finally:
            for (parent, last), module in zip(places, modules.values(), strict=True):
                parent._modules[last] = module

    def _parent_of(self, name: str) -> nn.Module:
        parent: nn.Module = self._model.get_submodule(name.rpartition(".")[0])
        return parent


class _StandIn:
    """A replacement for a module during a forward pass. A call returns the result of `answer`.
    Attributes are read from the module.
    """

    def __init__(self, name: str, module: Any, answer: Callable[..., Any]) -> None:
        self._name, self._module, self._answer = name, module, answer

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        return self._answer(self._name, self._module, args, arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


TRIED = 12
"""Number of tokens in the test of a small model."""
UNBOUNDED = 1 << 17
"""Assumed length of a sequence in tokens if neither the job nor the model limits it."""


def loss_size_of(spec: JobSpec, config: Any, longest: int | None = None) -> LossSize:
    """Return the size of the largest input of the loss, for the job `spec` and a model of `config`.

    `longest` is the largest number of tokens that the model reads from one example; None if
    unknown.

    Raises:
        Unsupported: the job requires that the loss is computed in parts, but its settings do not
            allow this.
    """
    train, text = spec.train, config.get_text_config()
    sequences = train.micro_batch_size or train.batch_size // spec.data_ranks
    if spec.eval.has_data:
        sequences = max(sequences, spec.eval.batch_size or 1)
    if spec.data.preferences:
        sequences *= 2  # both answers of a pair
    why = _why_whole(spec, config)
    if why is not None and train.chunked_loss == "on":
        raise Unsupported(f'train.chunked_loss = "on": {why}; set it to "auto" or "off"')
    most = longest_sequence(spec.data, positions_of(config)) or UNBOUNDED
    most = most if longest is None else min(most, longest)
    return LossSize(
        sequences * ceil(most / spec.zero.sequence_ranks),
        text.vocab_size,
        text.hidden_size,
        "off" if why is not None else train.chunked_loss,
    )


def _why_whole(spec: JobSpec, config: Any) -> str | None:
    if config.is_encoder_decoder:
        return "only causal models support it, and this model has an encoder and a decoder"
    return why_loss_is_whole(spec)


def check_chunked_loss(spec: JobSpec, config: Any) -> list[str]:
    """If the job computes the loss in parts, test this on a small model with the same layers.

    Returns notes. If the loss will be computed with all logits at once, a note has the reason.

    Raises:
        Unsupported: the loss cannot be computed in parts, and the job requires it.
    """
    size = loss_size_of(spec, config)
    if not size.is_cut():
        return []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = small_model(config)
        return [] if model is None else try_on_model(model, size)


def try_on_model(model: Any, size: LossSize) -> list[str]:
    """Test the loss in parts on `model`. Return the same notes as `check_chunked_loss`."""
    notes: list[str] = []
    install_chunked_loss(model.eval(), size, notes.append)
    ids = torch.randint(3, model.config.get_text_config().vocab_size, (1, TRIED))
    model(input_ids=ids, use_cache=False, targets=ids)
    return notes


def install_chunked_loss(model: Any, size: LossSize, log_line: Callable[[str], None]) -> None:
    """Change `model` so that it computes its loss in parts, if `size` requires this.

    If the loss cannot be computed in parts and the job does not require it, `log_line` is called
    with the reason.
    """
    if size.is_cut():
        ChunkedLoss(model, size, None if size.cut == "on" else log_line).install()

"""Balances the experts of a mixture-of-experts model with an auxiliary loss, as in transformers, or
with a bias, as in DeepSeek-V3.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import nn

from zerotools.core.errors import Unsupported
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.trainer.data.example_pools import Example
from zerotoolsd.trainer.model.tiny_model import small_model
from zerotoolsd.trainer.sequence_parallel.split_batch import SequencePart

TOLERANCE = 1e-4
"""Largest accepted relative difference from the loss of transformers: the rounding of fp32."""
_LOSS_ATTRIBUTE = "added_router_loss"
_KEY = "output_router_logits"
_COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")
_TOP_KS = ("num_experts_per_tok", "top_k", "moe_topk")


@dataclass(frozen=True)
class RouterLoss:
    """The auxiliary loss of routers that send each token to `top_k` experts.

    For each expert, `f` is the fraction of tokens that are sent to this expert, and `p` is the
    average probability that the router gives to it. The loss is `coefficient`
    (`router_aux_loss_coef`) times the number of experts times sum(f * p). `f` and `p` are averages
    over all layers and over the tokens of all ranks in a forward pass. So the loss does not depend
    on the number of ranks. Padding does not count.

    Source: `load_balancing_loss_func` of transformers' Mixtral.
    """

    coefficient: float
    top_k: int

    def __call__(
        self,
        routers: Sequence[torch.Tensor],
        examples: Sequence[Example],
        sequence_part: SequencePart | None = None,
    ) -> torch.Tensor:
        """Return the loss, a scalar. All ranks call it together.

        The average of the ranks' losses is the loss of the whole batch, and the average of the
        ranks' gradients is its gradient.

        Args:
            routers: the logits of each layer, `[rows, experts]`, for all tokens of `examples`,
                padded to the longest example; with `sequence_part`, only for the tokens of this
                part of each sequence.
        """
        device = routers[0].device
        real = rows_of_tokens(examples, device, sequence_part)
        experts = routers[0].shape[-1]
        chosen = torch.zeros(experts, dtype=torch.float32, device=device)
        likely, rows = torch.zeros_like(chosen), 0
        for logits in routers:
            weights = logits.flatten(0, -2)[real].softmax(-1)
            choices = weights.topk(self.top_k, dim=-1).indices.flatten()
            chosen.scatter_add_(0, choices, torch.ones_like(choices, dtype=torch.float32))
            likely = likely + weights.float().sum(0)
            rows += weights.shape[0]
        counted = torch.full((1,), float(rows), device=device)
        everyone = torch.cat([chosen, likely.detach(), counted])
        if dist.is_initialized():
            dist.all_reduce(everyone)
        shares = everyone[:-1] / everyone[-1]
        value = experts * (shares[:experts] * shares[experts:]).sum()
        mine = experts * (shares[:experts] * likely).sum() / everyone[-1]
        # Gradients are averaged over the ranks, and each rank has only those of its own tokens.
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        return self.coefficient * (value + ranks * (mine - mine.detach()))


def rows_of_tokens(
    examples: Sequence[Example], device: torch.device, sequence_part: SequencePart | None = None
) -> torch.Tensor:
    """Return the numbers of the rows that contain tokens and not padding.

    Sequences are padded on the right. With `sequence_part`, only the rows of this part of each
    sequence exist.
    """
    # The host knows the lengths, and need not wait for the device to count.
    lengths = [len(example.inputs) for example in examples]
    width, first = max(lengths), 0
    if sequence_part is not None:
        width = -(-width // sequence_part.exchange.ranks)
        first = width * sequence_part.exchange.index
    rows = [
        torch.arange(row * width, row * width + min(max(length - first, 0), width))
        for row, length in enumerate(lengths)
    ]
    return torch.cat(rows).to(device, non_blocking=True)


def router_loss_of(spec: JobSpec, model: Any) -> RouterLoss | None:
    """Return the auxiliary loss of `model`; None if the model's config has no such loss or the
    coefficient 0, or if the job disables it.

    Raises:
        Unsupported: transformers does not add such a loss to this model.
    """
    text = model.config.get_text_config()
    if not (spec.train.router_loss and getattr(text, _KEY, False)):
        return None
    coefficient = _first_number(_COEFFICIENTS, model, text)
    top_k = _first_number(_TOP_KS, model, text)
    if coefficient is None or top_k is None or model.config.is_encoder_decoder:
        raise _unsupported(model)
    return RouterLoss(float(coefficient), int(top_k)) if coefficient else None


def add_router_loss(spec: JobSpec, model: Any) -> None:
    """Store the result of `router_loss_of` in `model`, so that the training loss includes it."""
    setattr(model, _LOSS_ATTRIBUTE, router_loss_of(spec, model))


def router_loss_in(model: Any) -> RouterLoss | None:
    """Return the auxiliary loss that `add_router_loss` has stored in `model`; None if nothing is
    stored.
    """
    found: RouterLoss | None = getattr(model, _LOSS_ATTRIBUTE, None)
    return found


def check_router_loss(spec: JobSpec, model: Any) -> None:
    """Compare the auxiliary loss with the loss of transformers, on a small model with the same
    layers.

    Raises:
        Unsupported: the losses differ, transformers has no such loss, or the data is preferences.
    """
    if router_loss_of(spec, model) is None:
        return
    if spec.data.preferences:
        raise Unsupported(
            "train.router_loss = true: the loss of preferences cannot include the loss of a "
            "router; set train.router_loss = false"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        small = small_model(model.config)
        if small is None:
            raise _unsupported(model)
        ids = torch.randint(3, small.config.get_text_config().vocab_size, (2, 8))
        with torch.no_grad():
            output = small(input_ids=ids, use_cache=False)
        own, examples = (
            getattr(output, "aux_loss", None),
            [Example(row, row) for row in ids.tolist()],
        )
        ours = router_loss_of(spec, small)
    same = (
        isinstance(own, torch.Tensor)
        and ours is not None
        and math.isclose(
            float(ours(output.router_logits, examples)),
            ours.coefficient * float(own),
            rel_tol=TOLERANCE,
        )
    )
    if not same:
        raise _unsupported(model)


def balance_note(config: Any) -> str | None:
    """Return a note if the model has an auxiliary loss that its config switches off; None
    otherwise.
    """
    text = config.get_text_config()
    coefficient = _first_number(_COEFFICIENTS, text)
    if not coefficient or getattr(text, _KEY, True):
        return None
    return (
        "note: the model's config has output_router_logits = false, so the loss that balances "
        "its experts is not added, as in transformers; set output_router_logits = true to add "
        f"{coefficient:g} times this loss"
    )


def _first_number(names: Sequence[str], *owners: Any) -> float | None:
    found = (getattr(owner, name, None) for owner in owners for name in names)
    return next((value for value in found if isinstance(value, int | float)), None)


def _unsupported(model: Any) -> Unsupported:
    return Unsupported(
        f"output_router_logits = true: a {model.config.model_type} model has no such loss in "
        "transformers, or zerotools does not support its loss; set output_router_logits = "
        "false in the model's config, or train.router_loss = false"
    )


BIAS = "e_score_correction_bias"
_BIAS_ATTRIBUTE = "moved_router_bias"


def routers(model: nn.Module) -> list[nn.Module]:
    """Return the modules of `model` that have the bias `BIAS` as a buffer."""
    return [module for module in model.modules() if BIAS in module._buffers]


def check_router_bias(spec: JobSpec, model: nn.Module) -> str | None:
    """Return a note if the routers of `model` have a bias that the job does not update.

    Raises:
        Unsupported: the job updates the bias, but the model has no bias, or its routers do not
            return the chosen experts.
    """
    found = routers(model)
    if spec.train.router_bias_rate and not found:
        raise Unsupported(
            f"train.router_bias_rate = {spec.train.router_bias_rate:g}: the model has no router "
            f"with a buffer {BIAS}; remove train.router_bias_rate"
        )
    if spec.train.router_bias_rate:
        router = copy.deepcopy(found[0]).to("meta")
        try:
            output = router(torch.empty(1, 1, next(router.parameters()).shape[-1], device="meta"))
        except Exception:  # of a router with other arguments; the first step finds out
            return None
        _chosen_experts(output)
    elif found:
        return (
            f"note: {BIAS} of the model's {len(found)} routers is not updated, as in transformers; "
            "to update it as in DeepSeek-V3's training, set train.router_bias_rate = 0.001"
        )
    return None


def _chosen_experts(output: Any) -> torch.Tensor:
    """Return the experts that a router chose: the int64 tensor in its `output`.

    Raises:
        Unsupported: the output has no int64 tensor, as in older releases of transformers.
    """
    for each in output if isinstance(output, tuple) else ():
        if isinstance(each, torch.Tensor) and each.dtype == torch.int64:
            return each
    raise Unsupported(
        f"train.router_bias_rate: the routers of transformers {transformers.__version__} do not "
        "return the experts that they choose; upgrade transformers, or remove "
        "train.router_bias_rate"
    )


class RouterBias:
    """Counts the tokens that the routers of a model send to each expert, and updates the routers'
    bias.

    After each step, the bias of an expert rises by `rate` if the expert got fewer tokens than the
    average expert of its layer. It falls by `rate` if the expert got more tokens. The tokens of all
    ranks and micro batches count. The bias has no gradient. transformers loads the bias and never
    changes it.

    Source: DeepSeek-V3's technical report, section 2.1.2 (rate 0.001).
    """

    def __init__(self, model: nn.Module, rate: float) -> None:
        self._routers = routers(model)
        self._rate = rate
        self._rows: torch.Tensor | None = None
        self._counts = [
            torch.zeros_like(self._bias(each), dtype=torch.float32) for each in self._routers
        ]
        for number, module in enumerate(self._routers):
            module.register_forward_hook(self._counting(number))

    def _bias(self, module: nn.Module) -> torch.Tensor:
        found: torch.Tensor = getattr(module, BIAS)
        return found

    def expect(
        self,
        examples: Sequence[Example],
        device: torch.device,
        sequence_part: SequencePart | None = None,
    ) -> None:
        """Set the examples of the next forward pass, so that their padding is not counted.

        With `sequence_part`, only the tokens of this part of each sequence count.
        """
        self._rows = rows_of_tokens(examples, device, sequence_part)

    def _counting(self, number: int) -> Any:
        def count(module: nn.Module, arguments: Any, output: Any) -> None:
            # Activations that are computed again count again, in every layer alike.
            if self._rows is None or not torch.is_grad_enabled():
                return
            chosen = _chosen_experts(output).flatten(0, -2)[self._rows].flatten()
            counts = self._counts[number]
            counts.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=counts.dtype))

        return count

    def step(self, *, skipped: bool) -> None:
        """Update the bias after an optimizer step, unless the step was `skipped`; then reset the
        counts.

        All ranks call it together.
        """
        if not skipped:
            together = torch.stack(self._counts)
            if dist.is_initialized():
                dist.all_reduce(together)
            for module, counts in zip(self._routers, together, strict=True):
                bias = self._bias(module)
                bias.add_((counts.mean() - counts).sign().to(bias.dtype), alpha=self._rate)
        self._rows = None
        for each in self._counts:
            each.zero_()


def move_router_bias(spec: JobSpec, model: Any) -> None:
    """Make each training step update the router bias of `model`, if the job `spec` requires it."""
    if spec.train.router_bias_rate:
        setattr(model, _BIAS_ATTRIBUTE, RouterBias(model, spec.train.router_bias_rate))


def router_bias_in(model: Any) -> RouterBias | None:
    """Return the `RouterBias` that `move_router_bias` has stored in `model`; None if nothing is
    stored.
    """
    found: RouterBias | None = getattr(model, _BIAS_ATTRIBUTE, None)
    return found

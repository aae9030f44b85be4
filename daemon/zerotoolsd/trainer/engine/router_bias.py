"""The bias for the choice of experts in DeepSeek's routers, moved towards those with few tokens.

After each step the bias of an expert with fewer tokens than the mean of its layer rises by `rate`,
that of one with more falls by it; tokens of all ranks and micro batches count. It gets no gradient.
Source: DeepSeek-V3's technical report, section 2.1.2 (there 0.001). transformers loads the bias and
never moves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zerotools.core.errors import Unsupported
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.trainer.data.sequences import Example
from zerotoolsd.trainer.engine.router_loss import rows_of_tokens
from zerotoolsd.trainer.sequence_parallel.split_batch import Stretch

BIAS = "e_score_correction_bias"
_ATTRIBUTE = "moved_router_bias"


def routers(model: nn.Module) -> list[nn.Module]:
    """Return the modules of `model` that have such a bias as a buffer."""
    return [module for module in model.modules() if BIAS in module._buffers]


def check_router_bias(spec: JobSpec, model: nn.Module) -> str | None:
    """Return a note if `model` has such a bias and the job does not move it.

    Raises:
        Unsupported: the job moves it, and the model does not have one.
    """
    found = routers(model)
    if spec.train.router_bias_rate and not found:
        raise Unsupported(
            f"train.router_bias_rate = {spec.train.router_bias_rate:g}: the model has no router "
            f"with a buffer {BIAS}; leave it out"
        )
    if found and not spec.train.router_bias_rate:
        return (
            f"note: {BIAS} of the model's {len(found)} routers stays as it is, as in transformers; "
            "train.router_bias_rate = 0.001 moves it as DeepSeek-V3's training did"
        )
    return None


class RouterBias:
    """Counts the tokens that each router of a model sends to each expert, and moves its bias."""

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
        self, examples: Sequence[Example], device: torch.device, stretch: Stretch | None = None
    ) -> None:
        """Announce the examples of the next forward pass of training, or a `stretch` of each.

        Padding does not count.
        """
        self._rows = rows_of_tokens(examples, device, stretch)

    def _counting(self, number: int) -> Any:
        def count(module: nn.Module, arguments: Any, output: Any) -> None:
            # Activations that are computed again count again, in every layer alike.
            if self._rows is None or not torch.is_grad_enabled():
                return
            chosen = next(each for each in output if each.dtype == torch.int64)
            chosen = chosen.flatten(0, -2)[self._rows].flatten()
            counts = self._counts[number]
            counts.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=counts.dtype))

        return count

    def step(self, *, skipped: bool) -> None:
        """Move the bias after the optimizer has taken a step, or `skipped` it. All ranks call it
        together."""
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
    """Let the steps of `model` move the bias of its routers, if `spec` requires it."""
    if spec.train.router_bias_rate:
        setattr(model, _ATTRIBUTE, RouterBias(model, spec.train.router_bias_rate))


def moved_by(model: Any) -> RouterBias | None:
    """Return the RouterBias that `move_router_bias` has made for `model`."""
    found: RouterBias | None = getattr(model, _ATTRIBUTE, None)
    return found

"""Engine `torch`: FSDP2 for several ranks, torch's optimizers, and checkpoints by torch's DCP."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from zerotools.core.training_memory_layout import DEVICE, LOCAL, MemoryLayout
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.jobfile_tables.train import TrainSpec
from zerotools.runs import find_job_checkpoints
from zerotools.runs.training_record import JobRecord, LossScaleRecord
from zerotoolsd.trainer.data.example_pools import Example, RankBatch
from zerotoolsd.trainer.engine.conditional_layers import check_parameters_marks, parameters_mark
from zerotoolsd.trainer.engine.engine_interface import LossSum, Rewards, StepResult
from zerotoolsd.trainer.engine.learning_rate import learning_rate
from zerotoolsd.trainer.engine.nan_and_loss_scale import (
    DivergencePolicy,
    initial_loss_scale,
    loss_scale_after,
    resumed_loss_scale,
)
from zerotoolsd.trainer.engine.router_balance import router_bias_in
from zerotoolsd.trainer.engine.start_from_other_program import ForeignStart
from zerotoolsd.trainer.engine.text_generation import Decoding, generate
from zerotoolsd.trainer.engine.training_loss import (
    are_preferences,
    log_probabilities,
    preference_loss,
    summed_loss,
    summed_preference_loss,
    training_loss,
)
from zerotoolsd.trainer.engine_torch.save_and_load_shards import (
    HostCopy,
    load_foreign,
    load_shards,
    tensors_to_write,
    write_tensors,
)
from zerotoolsd.trainer.engine_torch.training_tensors import LiveState
from zerotoolsd.trainer.rank.process_group import WorldGroup, join_values


@dataclass
class TorchEngine:
    """Implements `Engine` with FSDP2.

    `skipped` is the number of skipped steps of the run. `loss_scale` is the loss scale of the next
    step; None if the job does not train in fp16.
    """

    spec: JobSpec
    live: LiveState
    group: WorldGroup
    skipped: int = 0
    loss_scale: LossScaleRecord | None = None
    _divergence: DivergencePolicy = field(init=False)
    _host: HostCopy = field(default_factory=HostCopy)

    def __post_init__(self) -> None:
        self._divergence = DivergencePolicy(self.spec.train.stop_after_nan)
        if self.spec.train.precision == "fp16":
            self.loss_scale = initial_loss_scale(self.spec.fp16)

    def step(self, batch: RankBatch, step: int, stop_asked: Callable[[], bool]) -> StepResult:
        """Do an optimizer step. If fp16 gradients overflow, it is skipped, and the loss scale is
        adapted.
        """
        scale = self.loss_scale
        outcome = train_step(
            self.live,
            batch,
            step,
            self.spec.train,
            self.group,
            stop_asked=stop_asked,
            scaling=Scaling(
                divergence=self._divergence,
                loss_scale=None if scale is None else scale.cur_scale,
                skipped=self.skipped,
            ),
            beta=self.spec.dpo.beta,
        )
        self.skipped = outcome.skipped
        fixed = scale.cur_scale if scale is not None and not scale.dynamic else None
        self._divergence.count(outcome.is_skipped, fixed_scale=fixed)
        if scale is not None:
            self.loss_scale = loss_scale_after(scale, overflow=outcome.is_skipped)
        return outcome

    def evaluate(self, examples: Sequence[Example]) -> LossSum:
        with self._only_read() as model:
            if are_preferences(examples):
                return summed_preference_loss(
                    model, examples, self.group.device, self.spec.dpo.beta
                )
            return summed_loss(model, examples, self.group.device)

    def log_probabilities(self, examples: Sequence[Example]) -> list[float]:
        with self._only_read() as model, torch.no_grad():
            found: list[float] = log_probabilities(model, examples, self.group.device).tolist()
            return found

    def generate(self, prompts: Sequence[list[int]], decoding: Decoding) -> list[list[int]]:
        with self._only_read() as model:
            # An encoder is called separately, and reads embeddings that the whole model gathers.
            if isinstance(model, FSDPModule):
                model.unshard()
            return generate(model, prompts, decoding, self.group.device)

    @contextmanager
    def _only_read(self) -> Iterator[Any]:
        """Yield the model in evaluation mode, without dropout, for forward passes only.

        Afterwards, gathered weights are freed and training mode is restored.
        """
        model = self.live.model
        model.eval()
        try:
            yield model
        finally:
            # Without a backward pass nothing else frees the gathered weights.
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
            model.train()

    def write(self, staging: Path) -> None:
        """Write this rank's tensors with torch's DCP. If several ranks hold the same tensor, one of
        them writes it.
        """
        tree = tensors_to_write(self.live.tree(), self.group.rank)
        write_tensors(tree, staging / find_job_checkpoints.DCP, self.group)

    def copy(self) -> Callable[[Path, WorldGroup], None]:
        tree = self._host.copy(tensors_to_write(self.live.tree(), self.group.rank))
        return lambda staging, group: write_tensors(tree, staging / find_job_checkpoints.DCP, group)

    def describe(self, record: JobRecord) -> JobRecord:
        return dataclasses.replace(
            record,
            optimizer=self.live.optimizer.describe(),
            replicated=self.live.replicated(),
            skipped_steps=self.skipped,
            loss_scale=self.loss_scale,
        )

    def load(self, directory: Path, record: JobRecord) -> None:
        """Load a checkpoint that any number of ranks saved at any stage."""
        load_shards(self.live, directory / find_job_checkpoints.DCP, self.group)
        self._count_from(record)

    def load_foreign(self, start: ForeignStart) -> None:
        """Load a checkpoint of another program, in any supported format, at any stage and number of
        ranks.
        """
        load_foreign(self.live, start)
        self._count_from(start.record)

    def _count_from(self, record: JobRecord) -> None:
        self.skipped = record.skipped_steps
        if self.spec.train.precision == "fp16":
            self.loss_scale = resumed_loss_scale(self.spec.fp16, record.loss_scale)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The loss scale of a step, and the rule that decides whether the step is skipped.

    `divergence` decides what happens if the loss or gradients are not finite, with the same result
    on all ranks. `skipped` is the number of steps that the run has skipped; the learning rate
    schedule does not count them. `loss_scale` is None if the job does not train in fp16.
    """

    divergence: DivergencePolicy
    loss_scale: float | None = None
    skipped: int = 0


def train_step(
    live: LiveState,
    batch: RankBatch,
    step: int,
    train: TrainSpec,
    group: WorldGroup,
    *,
    stop_asked: Callable[[], bool],
    scaling: Scaling,
    beta: float = 0.0,
) -> StepResult:
    """Do optimizer step `step`, counted from 0.

    This rank computes the examples of `batch`. `stop_asked` returns whether this rank was asked to
    stop. `beta` is the parameter of DPO.

    The loss is the average over the tokens of the global batch. A micro batch is weighted by its
    number of tokens and by the number of ranks, because FSDP2 averages gradients over the ranks.
    The tensor ranks of a group compute the same values and count as one rank. For preferences, the
    loss is the average of the DPO loss over the pairs.

    Raises:
        Diverged: the loss or a gradient is not finite, and no more steps may be skipped. The
            weights are unchanged.
        Unsupported: the ranks have gradients of different parameters.
    """
    loss_scale, skipped = scaling.loss_scale, scaling.skipped
    examples = batch.examples
    micro = train.micro_batch_size or len(examples)
    pieces = [examples[first : first + micro] for first in range(0, len(examples), micro)]
    alike = group.rank.tensor_ranks
    weight = group.rank.world_size / (alike * max(1, batch.predicted))
    loss = torch.zeros((), dtype=torch.float32, device=group.device)
    rewards = torch.zeros(3, dtype=torch.float32, device=group.device)
    for number, piece in enumerate(pieces):
        before_micro_batch(live.model, live.layout, is_last=number == len(pieces) - 1)
        if are_preferences(piece):
            part, sums = preference_loss(live.model, piece, group.device, beta)
            part, rewards = part * weight, rewards + sums
        else:
            part = training_loss(
                live.model, piece, group.device, weight=weight, router_weight=1 / len(pieces)
            )
        (part if loss_scale is None else part * loss_scale).backward()
        loss += part.detach()
    live.optimizer.update_path.forget(live.experts.untaken(group))
    # That of the scaled gradients, which is not finite if any of them is not.
    norm = live.optimizer.norm().to(group.device, non_blocking=True)
    # The stop request travels with the loss, so that all ranks stop after the same step.
    own = parameters_mark(live.optimizer.update_path.received())
    numbers = [float(stop_asked()), float(own), float(own * own)]
    tensors = [loss, ~norm.isfinite(), rewards]
    # The only point of a step at which the host waits for the device.
    summed, own_norm = group.total_of(join_values(numbers, tensors, group.device), norm)
    stops, marks, squares, total, overflows, *rest = summed
    grad_norm = own_norm if loss_scale is None else own_norm / loss_scale
    overflow = not math.isfinite(grad_norm)
    check_parameters_marks((marks, squares), group.rank.world_size, step)
    mean = total / group.rank.world_size
    worst_norm = math.nan if overflows and not overflow else grad_norm
    skip = scaling.divergence.skips(step, mean, worst_norm, scaled=loss_scale is not None)
    rate = learning_rate(train, step - skipped)
    if not skip:
        live.optimizer.step(
            rate, norm=grad_norm, max_norm=train.max_grad_norm, loss_scale=loss_scale or 1.0
        )
    else:
        live.optimizer.discard()
    bias = router_bias_in(live.model)
    if bias is not None:
        bias.step(skipped=skip)
    means = None
    if are_preferences(examples):
        means = Rewards(*(each / (alike * max(1, batch.predicted)) for each in rest))
    return StepResult(mean, grad_norm, rate, stops > 0, loss_scale, skip, skipped + skip, means)


def before_micro_batch(model: Any, layout: MemoryLayout, *, is_last: bool) -> None:
    """Tell FSDP2, if it wraps `model`, how to reduce the gradients of the next backward pass.

    With `local` accumulation, each rank keeps its whole gradients in fp32, and the last micro batch
    reduces them. This needs only one reduction per step, but 4 bytes for every parameter on every
    rank. With `sharded` accumulation, every micro batch is reduced, and the result is added to the
    rank's part of the gradients in fp32. If groups of ranks share a copy of the weights and the
    gradients stay on the device, the sum over the groups is computed only after the last micro
    batch.
    """
    if not layout.is_sharded:
        return
    if layout.accumulate == LOCAL:
        model.set_requires_gradient_sync(is_last)
    elif layout.replicates_weights and not layout.has_masters and layout.params_tier == DEVICE:
        model.set_requires_all_reduce(is_last)

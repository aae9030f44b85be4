"""Engine `torch`: FSDP2 for several ranks, torch's optimizers, and checkpoints by torch's DCP."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs import checkpoint_dirs
from zerotools.runs.training_record import JobRecord, LossScaleRecord
from zerotoolsd.trainer.data.example_pools import Example, RankBatch
from zerotoolsd.trainer.engine.engine_interface import LossSum, StepResult
from zerotoolsd.trainer.engine.foreign_start import ForeignStart
from zerotoolsd.trainer.engine.nan_and_loss_scale import (
    DivergencePolicy,
    initial_loss_scale,
    loss_scale_after,
    resumed_loss_scale,
)
from zerotoolsd.trainer.engine.text_generation import Decoding, generate
from zerotoolsd.trainer.engine.training_loss import (
    are_preferences,
    log_probabilities,
    summed_loss,
    summed_preference_loss,
)
from zerotoolsd.trainer.engine_torch.live_state import LiveState
from zerotoolsd.trainer.engine_torch.load_shards import load_foreign, load_shards
from zerotoolsd.trainer.engine_torch.save_shards import HostCopy, tensors_to_write, write_tensors
from zerotoolsd.trainer.engine_torch.train_step import Scaling, train_step
from zerotoolsd.trainer.rank.process_group import WorldGroup


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
        write_tensors(tree, staging / checkpoint_dirs.DCP, self.group)

    def copy(self) -> Callable[[Path, WorldGroup], None]:
        tree = self._host.copy(tensors_to_write(self.live.tree(), self.group.rank))
        return lambda staging, group: write_tensors(tree, staging / checkpoint_dirs.DCP, group)

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
        load_shards(self.live, directory / checkpoint_dirs.DCP, self.group)
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

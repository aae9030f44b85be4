"""Engine `deepspeed`: DeepSpeed with its own configuration, in the loop of the trainer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from zerotools.jobs.jobfile_tables.complete_deepspeed_config import completed_config
from zerotools.jobs.jobfile_tables.deepspeed import config_value, on_nvme, optimizer_of, stage_of
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs.training_record import JobRecord
from zerotoolsd.trainer.checkpoints.resume_point import ResumePoint
from zerotoolsd.trainer.data.example_pools import Example, RankBatch
from zerotoolsd.trainer.engine.chunked_loss import install_chunked_loss, loss_size_of
from zerotoolsd.trainer.engine.engine_interface import LossSum, StepResult
from zerotoolsd.trainer.engine.learning_rate import learning_rate
from zerotoolsd.trainer.engine.nan_and_loss_scale import DivergencePolicy, overflow_at_smallest
from zerotoolsd.trainer.engine.router_balance import (
    add_router_loss,
    move_router_bias,
    router_bias_in,
)
from zerotoolsd.trainer.engine.start_from_other_program import ForeignStart
from zerotoolsd.trainer.engine.text_generation import Decoding, generate
from zerotoolsd.trainer.engine.training_loss import summed_loss, training_loss
from zerotoolsd.trainer.engine_deepspeed.build_model import (
    make_model,
    replace_buffers,
    weight_groups,
)
from zerotoolsd.trainer.engine_deepspeed.native_checkpoint import (
    DeepSpeedCheckpoints,
    groups_of,
    loss_scale_of,
)
from zerotoolsd.trainer.engine_deepspeed.setup_deepspeed import (
    import_deepspeed,
    make_adam_ready,
    make_nvme_ready,
    refused_by_deepspeed,
)
from zerotoolsd.trainer.model.keep_fp32 import kept_in_fp32
from zerotoolsd.trainer.model.match_pretrained import Pretrained
from zerotoolsd.trainer.model.meta_model import MetaModel, checkpoint_activations
from zerotoolsd.trainer.model.optimizer_groups import decayed_names
from zerotoolsd.trainer.rank.process_group import WorldGroup, join_values
from zerotoolsd.trainer.reporting.reporter import Reporter


class _Called:
    """Calls the model through DeepSpeed's engine. It also has the attributes of the model."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __call__(self, **arguments: Any) -> Any:
        return self._engine(**arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine.module, name)


@dataclass
class DeepSpeedEngine:
    """Implements `Engine` with DeepSpeed.

    `engine` is DeepSpeed's own engine, which counts steps, keeps the loss scale and clips
    gradients. `groups` are the parameter names of each group of its optimizer.
    """

    spec: JobSpec
    config: Mapping[str, Any]
    group: WorldGroup
    engine: Any
    files: DeepSpeedCheckpoints
    groups: tuple[tuple[str, ...], ...]
    _divergence: DivergencePolicy = field(default_factory=DivergencePolicy, init=False)
    _model: _Called = field(init=False)

    def __post_init__(self) -> None:
        self._model = _Called(self.engine)

    def step(self, batch: RankBatch, step: int, stop_asked: Callable[[], bool]) -> StepResult:
        engine, group = self.engine, self.group
        scale = float(engine.optimizer.cur_scale) if self._scales else None
        rate = self._rate(step)
        micro = engine.train_micro_batch_size_per_gpu()
        examples = batch.examples
        pieces = [examples[first : first + micro] for first in range(0, len(examples), micro)]
        # DeepSpeed averages over ranks and pieces; tokens count alike, wherever they are.
        weight = group.rank.world_size * len(pieces) / max(1, batch.predicted)
        losses, before = list[torch.Tensor](), engine.skipped_steps
        for number, piece in enumerate(pieces):
            part = training_loss(self._model, piece, group.device, weight=weight, router_weight=1.0)
            engine.backward(part)
            losses.append(part.detach())
            if number < len(pieces) - 1 and self._counts_pieces:
                engine.step()
        loss = torch.stack(losses).double().mean()
        whole_norm = self._norm_of_whole_gradients()
        self._update()
        # Read once, at the end: the GPU has nothing to do while the host waits for it.
        norm_tensor = self._norm_of_update() if whole_norm is None else whole_norm
        numbers = join_values([float(stop_asked())], [loss], group.device)
        (stops, total), norm = group.total_of(
            numbers, norm_tensor.to(group.device, non_blocking=True)
        )
        mean = total / group.rank.world_size
        skip = engine.skipped_steps > before
        bias = router_bias_in(self._model)
        if bias is not None:
            bias.step(skipped=skip)
        if whole_norm is None:
            norm = math.nan if norm < 0 else norm  # DeepSpeed writes -1 for NaN
        if not self._scales:
            self._divergence.check(step, mean, 0.0 if whole_norm is None else norm)
        if not skip:
            self._divergence.check(step, mean, norm)
        self._divergence.count(skip, fixed_scale=scale if self._scale_is_fixed else None)
        return StepResult(mean, norm, rate, stops > 0, scale, skip, engine.skipped_steps)

    @property
    def _counts_pieces(self) -> bool:
        """True if DeepSpeed itself counts the micro batches of a step, and so knows the last one.

        If this is False, each call of DeepSpeed's `step` updates the weights.
        """
        return config_value(self.config, "managed_gradient_accumulation", True) is not False

    @property
    def _scales(self) -> bool:
        return bool(self.engine.fp16_enabled())

    @property
    def _scale_is_fixed(self) -> bool:
        return bool(config_value(self.config, "fp16.loss_scale", 0))

    def _rate(self, step: int) -> float:
        """Return the learning rate of step `step`.

        If DeepSpeed has a schedule, that schedule decides. Otherwise the job's schedule decides,
        and the rate is set in the optimizer.
        """
        if self.engine.lr_scheduler is not None:
            return float(self.engine.get_lr()[0])
        rate = learning_rate(self.spec.train, step - self.engine.skipped_steps)
        for each in self.engine.optimizer.param_groups:
            each["lr"] = rate
        return rate

    def _norm_of_whole_gradients(self) -> torch.Tensor | None:
        """Return the gradient norm of fp32 training at stage 0, which DeepSpeed does not compute.

        Call it before the update, which frees the gradients. Returns None in all other cases.
        """
        if stage_of(self.config) or self.engine.fp16_enabled() or self.engine.bfloat16_enabled():
            return None
        gradients = [p.grad for p in self.engine.module.parameters() if p.grad is not None]
        norm: torch.Tensor = torch.nn.utils.get_total_norm(gradients)
        return norm

    def _norm_of_update(self) -> torch.Tensor:
        """Return the gradient norm that DeepSpeed has computed in its update, a scalar."""
        norm = self.engine.get_global_grad_norm()  # a tensor at some stages
        return torch.as_tensor(0.0 if norm is None else norm)

    def _update(self) -> None:
        try:
            self.engine.step()
        except Exception as error:  # DeepSpeed raises a bare one
            if "loss scale already at minimum" not in str(error):
                raise
            raise overflow_at_smallest(self.engine.optimizer.cur_scale) from None

    def evaluate(self, examples: Sequence[Example]) -> LossSum:
        self.engine.eval()
        try:
            return summed_loss(self._model, examples, self.group.device)
        finally:
            self.engine.train()

    def generate(self, prompts: Sequence[list[int]], decoding: Decoding) -> list[list[int]]:
        self.engine.eval()
        try:
            return generate(self.engine.module, prompts, decoding, self.group.device)
        finally:
            self.engine.train()

    def write(self, staging: Path) -> None:
        """Write this rank's part of a checkpoint in DeepSpeed's layout.

        With offload to NVMe, only the weights are written, because DeepSpeed could not resume the
        rest.
        """
        if on_nvme(self.config):
            self.files.write_weights(staging)
        else:
            self.files.write(staging)

    def describe(self, record: JobRecord) -> JobRecord:
        name = optimizer_of(self.config) or self.spec.train.optimizer
        return dataclasses.replace(
            record,
            engine="deepspeed",
            weights_only=on_nvme(self.config),
            optimizer=groups_of(name, self.engine.optimizer.param_groups, self.groups),
            skipped_steps=self.engine.skipped_steps,
            loss_scale=loss_scale_of(self.engine) if self._scales else None,
        )

    def load(self, directory: Path, record: JobRecord) -> None:
        """Load a checkpoint that the same number of ranks saved at the same stage."""
        self.files.load(directory, record.step)

    def load_foreign(self, start: ForeignStart) -> None:
        """Load a checkpoint that another program saved with DeepSpeed, with the stage, the number
        of ranks and the parameter groups of this job.
        """
        directory = start.run.directory
        self.files.load(directory.parent, start.record.step, tag=directory.name)


def make_deepspeed_engine(
    spec: JobSpec,
    meta_model: MetaModel,
    group: WorldGroup,
    reporter: Reporter,
    start: ResumePoint | None,
    pretrained: Pretrained | None,
) -> DeepSpeedEngine:
    """Return the DeepSpeed engine of the job `spec`. Its weights come from `pretrained`, or are
    initialised if `pretrained` is None. If `start` is given, its checkpoint will replace the
    weights.

    Raises:
        ZerotoolsError: DeepSpeed is not installed, or it rejects the configuration; or the model
            cannot be initialised.
    """
    deepspeed = import_deepspeed(spec, reporter)
    config = completed_config(spec)
    make_adam_ready(deepspeed, config, reporter.log_line)
    if on_nvme(config):
        output = Path(spec.output_dir or "")
        make_nvme_ready(config, output, group.rank.index, spec.device, reporter.log_line)
    if spec.train.activation_checkpointing:
        checkpoint_activations(meta_model.model)
    deepspeed.init_distributed()  # `zero.Init` reads batch sizes as of one rank before this
    with refused_by_deepspeed():
        model = make_model(
            deepspeed,
            spec,
            config,
            meta_model,
            group.device,
            pretrained,
            to_be_loaded=start is not None,
        )
    model.train()
    add_router_loss(spec, model)
    move_router_bias(spec, model)
    install_chunked_loss(
        model, loss_size_of(spec, meta_model.config), lambda text: reporter.log_line(text)
    )
    decay = config_value(config, "optimizer.params.weight_decay")
    decayed = decayed_names(meta_model.model, spec.train.decay_by, start.record if start else None)
    groups = weight_groups(model, decayed, decay)
    names = tuple(tuple(each.pop("names")) for each in groups)
    kept = kept_in_fp32(meta_model.model, spec.train)
    buffers = {name: b.clone() for name, b in model.named_buffers() if name in kept}
    with refused_by_deepspeed():
        engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=config)
    replace_buffers(engine.module, buffers)  # it casts them with the parameters
    return DeepSpeedEngine(
        spec, config, group, engine, DeepSpeedCheckpoints(deepspeed, engine, group), names
    )

"""Prepares the start of a run from a checkpoint of another program, and checks that the checkpoint
fits the job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.complete_deepspeed_config import completed_config
from zerotools.jobs.jobfile_tables.deepspeed import config_value, optimizer_of
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.jobfile_tables.train import TrainSpec
from zerotools.ops.resume_from_other_program.check_job_fits import (
    OPTIONS_RESTORED,
    FoundState,
    JobOptimizer,
    check_complete,
    check_for_deepspeed,
    check_state,
    check_weights,
    optimizer_differences,
    unknown_values,
    weights_of,
)
from zerotools.ops.resume_from_other_program.foreign_run import ForeignRun, read_run
from zerotools.ops.resume_from_other_program.rename_to_job import WantedModel, with_job_names
from zerotools.runs.foreign_checkpoint_record import foreign_record
from zerotools.runs.training_record import JobRecord, ModelRecord
from zerotoolsd.trainer.engine.learning_rate import learning_rate
from zerotoolsd.trainer.model.fill_shards import persistent_buffers
from zerotoolsd.trainer.model.match_pretrained import (
    Pretrained,
    ShapeMismatch,
    hub_layout,
    match_directory,
)
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.model.optimizer_groups import decayed_names


@dataclass(frozen=True)
class ForeignStart:
    """A checkpoint of another program that a job can continue from.

    Attributes:
        run: the tensors of the checkpoint, with the names of the job's model.
        record: the job record, with the values that the checkpoint has.
        notes: lines for the log.
        pretrained: the weights, if they come from a model directory with the names of the Hugging
            Face Hub; otherwise None.
    """

    run: ForeignRun
    state: FoundState
    record: JobRecord
    notes: tuple[str, ...]
    pretrained: Pretrained | None = None

    def updates_of(self, name: str) -> int | float:
        """Return how many times the optimizer has updated the parameter `name`.

        This is the value `step` of the parameter's optimizer state.
        """
        if name in self.state.fresh:
            return 0
        return self.run.numbers.get(Key(name, "step"), self.run.step - self.record.skipped_steps)


def make_foreign_start(path: Path, spec: JobSpec, meta_model: MetaModel) -> ForeignStart:
    """Read the checkpoint of another program at `path`, and compare it with the job `spec`.

    Raises:
        BadRequest: the checkpoint is of another model or optimizer, has no optimizer state, or is
            already at the last step; or the job trains adapters.
        BadFile: the checkpoint is damaged.
        Unsupported: zerotools cannot continue from this kind of checkpoint.
    """
    if spec.lora.rank is not None:
        raise BadRequest(
            f"resume_from = {path}: is a checkpoint of another program, and its adapters "
            "cannot be used: remove [lora], or start a new run from its weights with model.path"
        )
    model = meta_model.model
    wanted = _wanted(meta_model)
    found = read_run(path)
    weights = with_job_names(found, wanted, by_number=False)
    pretrained = _weights_of_directory(weights, wanted, meta_model)
    if pretrained is None:
        check_weights(weights, wanted)
    run = with_job_names(found, wanted, order=spec.resume_order)
    check_complete(run)
    if spec.train.steps is not None and run.step >= spec.train.steps:
        raise BadRequest(
            f"train.steps = {spec.train.steps}: counts from the beginning of the run, but "
            f"resume_from = {path} is already at step {run.step}; set a number above {run.step}"
        )
    state = check_state(run, wanted, optimizer_of(spec.deepspeed.tree) or spec.train.optimizer)
    trainable, frozen = meta_model.parameter_count()
    record = foreign_record(
        run.training,
        optimizer=state.kind,
        step=run.step,
        world_size=spec.all_ranks,
        stage=spec.zero.stage,
        model=ModelRecord(trainable, frozen),
        made_from=run.title,
    )
    hub = hub_layout(meta_model.plain, pretrained)
    record = replace(record, aliases=dict(meta_model.aliases), hub=hub)
    decayed = decayed_names(model, spec.train.decay_by, record)
    job = _job_optimizer(spec.train, decayed, run.step - record.skipped_steps)
    notes = [
        *unknown_values(run),
        *run.notes,
        *optimizer_differences(run, state, job, spec.train.precision),
    ]
    if spec.engine == "deepspeed":
        check_for_deepspeed(run, spec.zero.stage, spec.all_ranks, _groups(spec, wanted, decayed))
        notes.append(OPTIONS_RESTORED)
    return ForeignStart(run, state, record, tuple(notes), pretrained)


def _groups(spec: JobSpec, wanted: WantedModel, decayed: frozenset[str]) -> list[tuple[str, ...]]:
    """Return the parameter names in each parameter group of DeepSpeed's optimizer, in the order of
    the groups.
    """
    if not config_value(completed_config(spec), "optimizer.params.weight_decay"):
        return [tuple(wanted.parameters)]
    groups = [
        tuple(name for name in wanted.parameters if (name in decayed) is decays)
        for decays in (True, False)
    ]
    return [group for group in groups if group]


def _weights_of_directory(
    run: ForeignRun, wanted: WantedModel, meta_model: MetaModel
) -> Pretrained | None:
    """Return the weights in the model directory of `run`, if the checkpoint `run` is a file of an
    optimizer without the weights of the model; otherwise None.
    """
    if run.optimizer_file is None or wanted.parameters.keys() <= weights_of(run).keys():
        return None
    try:
        found = match_directory(meta_model.plain, meta_model.aliases, run.directory)
    except BadRequest as error:
        why = str(error).removeprefix("model.path: ")
        if isinstance(error, ShapeMismatch):
            why += ": it is a checkpoint of another model; name a checkpoint of the job's model"
        else:
            check_weights(run, wanted)  # more informative for a checkpoint: names on both sides
        raise BadRequest(f"resume_from = {run.path}: {why}") from None
    if found.unused or found.initial:
        why = "; ".join(found.notes())
        raise BadRequest(f"resume_from = {run.path}: is a checkpoint of another model: {why}")
    return found


def _wanted(meta_model: MetaModel) -> WantedModel:
    named = meta_model.model.named_parameters()
    return WantedModel(
        {name: tuple(parameter.shape) for name, parameter in named if parameter.requires_grad},
        {name: tuple(b.shape) for name, b in persistent_buffers(meta_model.model).items()},
        meta_model.aliases,
        decayed_names(meta_model.model, "names"),
    )


def _job_optimizer(train: TrainSpec, decayed: frozenset[str], step: int) -> JobOptimizer:
    adam, sgd = train.optimizer in ("adamw", "adam"), train.optimizer == "sgd"
    return JobOptimizer(
        lr=None if train.steps is None else learning_rate(train, step),
        weight_decay=train.weight_decay,
        decayed=decayed,
        betas=train.betas if adam else None,
        eps=train.eps if adam else None,
        momentum=train.momentum if sgd else None,
    )

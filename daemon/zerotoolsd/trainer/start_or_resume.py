"""Prepares the state before the first step of an attempt: new, or loaded from a checkpoint.

Also makes the record that describes the run in its checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

import zerotools
from zerotools.core.boxes import Box
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.hub_layout import HubLayout
from zerotools.jobs.jobfile_tables.data import kind_of
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs import find_job_checkpoints
from zerotools.runs.base_model_record import BaseRecord, record_base
from zerotools.runs.training_record import (
    RNG_PER_RANK,
    JobRecord,
    LoraRecord,
    ModelRecord,
    OptimizerRecord,
)
from zerotoolsd.trainer.checkpoints.resume_point import ResumePoint, load_error
from zerotoolsd.trainer.data.training_data import TrainingData
from zerotoolsd.trainer.engine.engine_interface import Engine
from zerotoolsd.trainer.engine.learning_rate import schedule_changes, schedule_of
from zerotoolsd.trainer.engine.start_from_other_program import make_foreign_start
from zerotoolsd.trainer.model import rng_state
from zerotoolsd.trainer.model.add_lora_adapters import BASE, base_name, fan_in_fan_out
from zerotoolsd.trainer.model.match_pretrained import Pretrained
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.rank.process_group import WorldGroup
from zerotoolsd.trainer.rank.rank_errors import BadCheckpoint
from zerotoolsd.trainer.reporting.reporter import Reporter


def begin_training(
    spec: JobSpec, engine: Engine, group: WorldGroup, reporter: Reporter, start: ResumePoint | None
) -> None:
    """Seed the random number generators, and load the checkpoint `start` into `engine` if it is
    given.

    Raises:
        ZerotoolsError: the checkpoint does not fit this model, or cannot be read.
    """
    rank = group.rank
    # Dropout is the same on ranks that compute the same.
    leader = rank.index - rank.index % rank.tensor_ranks
    rng_state.seed_rank(spec.seed, start.record.step if start else 0, leader)
    if start is None:
        return
    if start.foreign is not None:
        engine.load_foreign(start.foreign)
        reporter.resumed_foreign(start.foreign, rank.world_size)
        return
    same = start.record.rng == RNG_PER_RANK and start.record.world_size == rank.world_size
    try:
        engine.load(start.path, start.record)
        if same:
            _restore_random(start.path / find_job_checkpoints.rng_name(leader))
    except BadCheckpoint as error:
        raise load_error(start.path, error) from error
    reporter.resumed(start.path, start.record, rank.world_size, same, start.verified)


def _restore_random(path: Path) -> None:
    try:
        rng_state.restore_rng(path)
    except BadFile as error:
        raise BadCheckpoint(str(error)) from error


def is_own(spec: JobSpec, start: ResumePoint) -> bool:
    """Return whether a run that continues from `start` continues in its own output directory."""
    return start.path.resolve().is_relative_to(Path(spec.output_dir or "").resolve())


def check_remaining_steps(spec: JobSpec, start: ResumePoint) -> None:
    """Check that a run that continues from `start` has steps left.

    If a run continues in its own output directory, it is no error that no step is left: perhaps
    only the export is missing.

    Raises:
        BadRequest: the run continues from another directory, and no step is left.
    """
    steps, step = spec.train.total_steps, start.record.step
    if step >= steps and not is_own(spec, start):
        raise BadRequest(
            f"train.epochs gives {steps} steps, counted from the beginning of the run, but "
            f"resume_from = {spec.resume_from} is at step {step}; raise train.epochs"
        )


def warn_of_changes(
    spec: JobSpec,
    data: TrainingData,
    start: ResumePoint,
    meta_model: MetaModel,
    reporter: Reporter,
) -> None:
    """Report the settings and data that have changed since the checkpoint `start` was saved."""
    record = start.record
    if record.made_from is not None:  # it does not know what these were
        if start.foreign is None:
            for note in make_foreign_start(start.path, spec, meta_model).notes:
                reporter.log_line(f"note: {note}")
        return
    pairs = [
        ("seed", record.seed, spec.seed),
        ("tokens in a sequence", record.sequence_length, data.longest),
        ("train.batch_size", record.batch_size, spec.train.batch_size),
    ]
    if record.data is not None:
        pairs.append(
            (f"tokens in data.{kind_of(spec.data)}", record.data.tokens, data.record.tokens)
        )
    for name, before, now in pairs:
        if before != now:
            reporter.log_line(
                f"note: {name} was {before} when {start.path.name} was saved, and is {now} now"
            )
    changes = schedule_changes(record.schedule, schedule_of(spec.train))
    if changes:
        reporter.log_line(
            "note: from here on the learning rate follows the current schedule of the job: "
            f"{changes} when {start.path.name} was saved"
        )
    count = record.data.sequences if record.data is not None else None
    if count is not None and count != data.record.sequences:
        reporter.log_line(
            f"note: an epoch had {count} sequences when {start.path.name} was saved and has "
            f"{data.record.sequences} now (data, data.packing or eval.fraction changed): their "
            "order changes, and this epoch repeats some and leaves out others"
        )
    changes = "" if record.data is None else record.data.changes(data.record)
    if changes:
        reporter.log_line(
            f"note: the data has changed since {start.path.name} was saved ({changes}): "
            "this epoch repeats some sequences and leaves out others"
        )


def describe_run(
    spec: JobSpec,
    meta_model: MetaModel,
    group: WorldGroup,
    data: TrainingData,
    hub: HubLayout,
    base: BaseRecord | None = None,
) -> JobRecord:
    """Return the record for the checkpoints of this run, at step 0.

    The engine adds its values later. `hub` maps each tensor of the model to the tensors of its
    Hugging Face directory. `base` describes the files of the frozen weights; None if checkpoints
    contain these weights.
    """
    train = spec.train
    trainable, frozen = meta_model.parameter_count()
    return JobRecord(
        step=0,
        steps_total=train.total_steps,
        world_size=group.rank.world_size,
        stage=spec.zero.stage,
        precision=train.precision,
        seed=spec.seed,
        consumed_sequences=0,
        batch_size=train.batch_size,
        sequence_length=data.longest,
        optimizer=OptimizerRecord(train.optimizer, ()),
        model=ModelRecord(trainable, frozen),
        aliases={} if base is not None else dict(meta_model.aliases),
        hub=hub,
        schedule=schedule_of(train),
        rng=RNG_PER_RANK,
        lora=_lora(spec, meta_model, base),
        data=data.record,
        torch_version=str(torch.__version__),
        zerotools_version=zerotools.__version__,
    )


def _lora(spec: JobSpec, meta_model: MetaModel, base: BaseRecord | None) -> LoraRecord | None:
    if spec.lora.rank is None:
        return None
    return LoraRecord(spec.lora.rank, spec.lora.scale, fan_in_fan_out(meta_model.model), base)


def check_base(spec: JobSpec, meta_model: MetaModel, pretrained: Pretrained) -> None:
    """Check the directory of the base model, if adapters are trained on 4-bit weights.

    Checkpoints do not contain these weights, so the directory must have them.

    Raises:
        BadRequest: the directory of the base model lacks weights.
        Unsupported: a weight with an adapter is stored in several parts, so that the adapter could
            not be merged.
    """
    said = f'lora.frozen_precision = "{spec.lora.frozen_precision}"'
    if pretrained.initial:
        raise BadRequest(
            f"{said}: {pretrained.directory} lacks {pretrained.initial[0]}, but checkpoints hold "
            "only the adapters; use a directory that has this weight"
        )
    for name, _ in meta_model.model.named_modules():
        if not f"{name}.".endswith(BASE):
            continue
        blocks = pretrained.blocks.get(base_name(f"{name}.weight"), ())
        is_one = len(blocks) == 1 and blocks[0].strides is None
        if not is_one or blocks[0].box != Box.whole(blocks[0].shape):
            raise Unsupported(
                f"{said}: {pretrained.directory} stores {base_name(f'{name}.weight')} in another "
                "shape than the model has, so the adapter of this weight could not be merged; "
                "remove the layer from lora.target_modules, or set "
                'lora.frozen_precision = "train"'
            )


def recorded_base(
    spec: JobSpec, pretrained: Pretrained | None, start: ResumePoint | None, group: WorldGroup
) -> Callable[[], BaseRecord | None]:
    """Start to read the files of the base model on rank 0, in the background.

    Returns a function that all ranks call together. It waits for the record of these files and
    returns it; None if checkpoints contain the weights. It raises BadRequest if the files cannot be
    read, or differ from the files with which the run of `start` was trained.
    """
    if pretrained is None or not spec.lora.packs_frozen:
        return lambda: None
    directory, lora = pretrained.directory.absolute(), spec.lora
    paths = {tensor.path for tensor in pretrained.stored.values()}
    names = {path.relative_to(pretrained.directory).as_posix() for path in paths}
    pool = ThreadPoolExecutor(1)
    read = partial(record_base, double_quant=lora.double_quant)
    reading = (
        pool.submit(read, directory, names, lora.frozen_precision) if group.rank.leads else None
    )
    pool.shutdown(wait=False)

    def decided() -> BaseRecord:
        assert reading is not None, "only rank 0 reads the base"
        found = reading.result()
        before = None if start is None or start.record.lora is None else start.record.lora.base
        if start is not None and before is not None:
            for name, file in before.files.items():
                if found.files.get(name) != file:
                    raise BadRequest(
                        f"model.path: {directory / name} is not the file that the adapters of "
                        f"{start.path} were trained on (SHA-256 {file.sha256[:12]}…); set "
                        "model.path to the directory with that base model"
                    )
        return found

    return lambda: group.decided_by_rank_zero(decided)

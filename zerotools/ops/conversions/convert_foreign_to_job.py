"""`zerotools convert --to job`: write a checkpoint of another program in the form that a job of
zerotools can resume from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import zerotools
from zerotools import formats
from zerotools.core.errors import BadRequest
from zerotools.core.target import Dropped, Target, state_words
from zerotools.formats.dcp.lay_out_resharded import lay_out_job
from zerotools.formats.format import option_flag
from zerotools.formats.torch_optimizers import NUMBERED_STATE, ORDER_UNKNOWN, WEIGHT_ROLES
from zerotools.io.files.source_stamps import recording_sources
from zerotools.ops.conversions.conversion import Conversion, with_target_sources
from zerotools.ops.conversions.convert import JOB, with_names_of_model
from zerotools.ops.conversions.missing_optimizer_options import (
    NAMES,
    RequestedHyperparameters,
    with_missing_options,
)
from zerotools.ops.conversions.reshard import check_world_size
from zerotools.ops.copied_sidecars import requested_sidecars
from zerotools.ops.quantised.dequantise import refuse_quantised, with_true_config
from zerotools.ops.resume_from_other_program.check_job_fits import (
    check_state,
    kind_of,
    unknown_values,
    weights_of,
)
from zerotools.ops.resume_from_other_program.foreign_run import ForeignRun, read_run
from zerotools.ops.resume_from_other_program.name_numbered_state import (
    NamedCheckpoint,
    record_of,
    with_proved_names,
)
from zerotools.ops.resume_from_other_program.parameter_order_option import (
    AskedOrder,
    asked_order,
    how_to_name,
)
from zerotools.ops.resume_from_other_program.rename_to_job import WantedModel
from zerotools.ops.undeclared_dropped_data import left_behind
from zerotools.runs.foreign_checkpoint_record import foreign_record
from zerotools.runs.optimizer_names_record import named_order_of, with_record
from zerotools.runs.training_record import RNG_RESEED, JobRecord, ModelRecord

_TAKEN = {*NAMES, "order", "world_size"}
_KEPT = {"param_groups", "steps", "loss_scale"}
_WHY = {
    "lr_scheduler": "the learning rate follows the job's schedule from that step",
    "ds_config": "it configures DeepSpeed",
    "client": "state that the training program added",
    "frozen": "a job trains all weights, unless it has adapters",
}
_STAGE = 3
"""The ZeRO stage in the record of the output, because the output has every tensor divided among the
ranks. A job of any stage can load it."""


def prepare_job(
    path: Path,
    destination: Path,
    options: Mapping[str, Any],
    *,
    config_dir: Path | None = None,
    **reading: Any,
) -> Conversion:
    """Plan the conversion of the checkpoint at `path` to one that a job can resume from, without
    writing it. `reading` are further keyword arguments for `formats.read`.

    Raises:
        BadRequest: the checkpoint has no optimizer state; jobs do not support its optimizer; it
            already is the checkpoint of a job; or an option does not apply.
        BadFile: `path` is not a checkpoint, or the checkpoint is damaged.
        Unsupported: zerotools does not read this kind of checkpoint.
    """
    useless = [option_flag(name) for name in options if name not in _TAKEN]
    if useless:
        raise BadRequest(f"--to {JOB} does not take {' and '.join(sorted(useless))}; leave it out")
    if "world_size" in options:
        check_world_size(options["world_size"])
    with recording_sources() as sources:
        run = read_run(path, **reading)
        text = repr((JOB, sorted(options.items()), sorted(reading.items()), config_dir))
        done = _prepare(run, destination, options, config_dir, text)
    return replace(done, stamps=sources.stamps)


def _prepare(
    run: ForeignRun,
    destination: Path,
    options: Mapping[str, Any],
    config_dir: Path | None,
    text: str,
) -> Conversion:
    job = formats.format_of(run.checkpoint).job_record(run.checkpoint)
    if job is not None and job.engine == "torch":
        raise BadRequest(
            f"{run.path} is already a checkpoint of a job, which resumes at any number of ranks; "
            "set resume_from to it"
        )
    formats.format_of(run.checkpoint).check_weights(run.checkpoint)
    quantisation = refuse_quantised(run.checkpoint)
    given = {} if config_dir is None else requested_sidecars(config_dir)
    run, order, proof = _named(run, options, given)
    run, notes = _completed(run, options)
    source = run.checkpoint
    source = replace(source, model_sidecars={**source.model_sidecars, **given})
    ranks = options.get("world_size") or source.origin.world_size or 1
    record = _record(run, job, ranks)
    target = lay_out_job(source, run.training.scalars, record, destination)
    target = with_true_config(target, source, quantisation, is_plain=True)
    beside, left = left_behind(source, target)
    target = replace(target, dropped=(*_dropped(run, target), *beside))
    named = named_order_of(source) if order is None else record_of(order, run.training)
    target = with_record(target, named)
    said = [] if job is not None else list(unknown_values(run))
    told = [note for note in source.origin.notes if note not in (NUMBERED_STATE, ORDER_UNKNOWN)]
    notes = [*told, *proof, *notes, *said, *left]
    return Conversion(with_target_sources(source, target), target, tuple(notes), text)


def _named(
    run: ForeignRun, options: Mapping[str, Any], given: Mapping[str, Path]
) -> tuple[ForeignRun, AskedOrder | None, list[str]]:
    """Return `run` with parameter names for numbered optimizer state, the order that the user
    requested or None, and notes. Without a requested order the names must be proved.

    Raises:
        BadRequest: the names cannot be proved.
    """
    if not run.training.unnamed:
        return run, None, []
    if "order" in options:
        order = asked_order(str(options["order"]), run.checkpoint, given)
        named, notes = with_names_of_model(run.checkpoint, run.training, order)
        return _with(run, named), order, notes
    proved = with_proved_names(run.checkpoint, run.training)
    if proved is None:
        raise BadRequest(how_to_name(run.checkpoint, given))
    return _with(run, proved.named), None, [proved.known_by]


def _with(run: ForeignRun, named: NamedCheckpoint) -> ForeignRun:
    numbers = {key: scalar.value for key, scalar in named.training.scalars.items()}
    return replace(run, checkpoint=named.checkpoint, training=named.training, numbers=numbers)


def _completed(run: ForeignRun, options: Mapping[str, Any]) -> tuple[ForeignRun, list[str]]:
    """Return the run with missing options of its param groups added, and notes on them.

    Raises:
        BadRequest: an option, a weight or optimizer state that a job needs is missing.
    """
    wanted = {name: value for name, value in options.items() if name in NAMES}
    asked = RequestedHyperparameters.of(wanted, run.training.ds_config)
    training, notes = with_missing_options(run.checkpoint, run.training, asked)
    lacking = [n for n in ("lr", "weight_decay") for g in training.groups if n not in g.options]
    if lacking or not training.groups:
        names = " and ".join(option_flag(name) for name in dict.fromkeys(lacking)) or "--lr"
        raise BadRequest(
            f"{run.path} does not record all options of its param groups; pass {names}"
        )
    run = replace(run, training=training)
    trained = dict.fromkeys(name for group in training.groups for name in group.params)
    tensors, weights = run.checkpoint.tensors, weights_of(run)
    bare = [name for name in trained if name not in weights]
    if bare or not weights:
        some = f"{bare[0]} and {len(bare) - 1} more" if len(bare) > 1 else "".join(bare)
        raise BadRequest(
            f"{run.path} has optimizer state for weights that are not in it ({some or 'all'}); "
            "pass the directory that also holds the model"
        )
    shapes = {name: tensors[weights[name]].shape for name in trained}
    found = check_state(run, WantedModel(shapes, {}, {}), kind_of(run))
    if found.fresh:
        raise BadRequest(
            f"{run.path} has no optimizer state of {found.fresh[0]} yet, because the program "
            f'never updated it: set resume_from = "{run.path}" in the job, which starts this '
            "state with zeros"
        )
    return run, notes


def _record(run: ForeignRun, job: JobRecord | None, ranks: int) -> JobRecord:
    kept = [key for key in run.checkpoint.tensors if key.role in WEIGHT_ROLES]
    trained = {name for group in run.training.groups for name in group.params}
    sizes = {key.name: prod(run.checkpoint.tensors[key].shape) for key in kept}
    elements = sum(size for name, size in sizes.items() if name in trained)
    record = foreign_record(
        run.training,
        optimizer=kind_of(run),
        step=run.step,
        world_size=ranks,
        stage=_STAGE,
        model=ModelRecord(elements, sum(sizes.values()) - elements),
        made_from=run.title,
    )
    record = replace(
        record,
        aliases=dict(run.checkpoint.aliases),
        zerotools_version=zerotools.__version__,
    )
    if job is None:
        return record
    return replace(
        job,
        engine="torch",
        stage=_STAGE,
        world_size=ranks,
        rng=RNG_RESEED,
        optimizer=record.optimizer,
        loss_scale=job.loss_scale or record.loss_scale,
    )


def _dropped(run: ForeignRun, target: Target) -> Iterator[Dropped]:
    for word in state_words(run.checkpoint, run.training):
        if word not in _KEPT:
            yield Dropped(word, _WHY[word])
    roles = {key.role for key in run.checkpoint.tensors}
    if "param16" in roles and "param" in roles:
        yield Dropped("param16", "a job casts the masters itself")

"""Show the contents of a checkpoint from its metadata, and statistics of its values if
requested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from zerotools import formats
from zerotools.core.adapter_tensor_names import adapter_names
from zerotools.core.checkpoint import Checkpoint, Chunk, Problem
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadRequest
from zerotools.formats.list_run_checkpoints import RunListing, find_run_listing
from zerotools.io.files.source_stamps import recording_sources
from zerotools.io.stores.parse_url import path_of
from zerotools.ops.inspection.inspect import Inspection, RoleSummary, to_json
from zerotools.ops.inspection.inspect import inspect as carry_out
from zerotools.ops.inspection.next_commands import next_commands
from zerotools.ops.inspection.training_summary import json_value, scaler_to_json
from zerotools.public.command_options.declare_and_bind_options import (
    OUTPUT,
    Option,
    StrPath,
    bind_options,
    declared_options,
    takes_options,
)
from zerotools.public.command_options.read_options import CheckingOptions, ReadingOptions
from zerotools.public.progress import ProgressWanted, metering

if TYPE_CHECKING:
    from zerotools.ops.statistics.checkpoint_statistics import CheckpointStatistics


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """The optimizer of a checkpoint.

    Attributes:
        name: the class of the optimizer.
        wrapper: the class of the framework that wraps the optimizer.
        states: the kinds of the optimizer's tensors, such as `exp_avg`.
    """

    name: str | None
    wrapper: str | None
    states: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParamGroupFacts:
    """One param group of the optimizer.

    `params` are the names of the parameters, or their numbers in torch if the files have no names.
    `elements` is the total number of elements, or None if the files have no names.
    """

    params: tuple[str | int, ...]
    elements: int | None
    hyperparameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QuantisedFacts:
    """The weights with one kind of quantisation: `kind` describes it, `tensors` is the number of
    weights, and `scales` is the number of their scale tensors."""

    kind: str
    tensors: int
    scales: int


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One tensor, and the parts of files that contain its values."""

    name: str
    role: str
    dtype: DType
    shape: tuple[int, ...]
    chunks: Sequence[Chunk] = field(repr=False)


@dataclass(frozen=True)
class InspectResult:
    """The contents of a checkpoint. The attributes have the names of the keys of `zerotools inspect
    --json`.

    A value is None if the files do not have it. Counts of parameters are numbers of elements, and
    tied weights count once. Sizes are in bytes.

    Attributes:
        files: the size of each file, keyed by name.
        run: the run that the checkpoint belongs to; None if no known program wrote it.
        next: commands that the user may want to run next.
        problems: empty if no damage was found.
        statistics: the statistics of each tensor, if they were requested.
        inspection: the result of `zerotools.ops.inspection`.
    """

    path: Path
    format: str
    framework_version: str | None
    stage: int | None
    world_size: int | None
    tag: str | None
    other_tags: tuple[str, ...]
    step: int | None
    parameters: int
    trainable_parameters: int | None
    frozen_parameters: int | None
    shared_parameters: int
    weights_dtype: str | None
    masters_dtype: str | None
    optimizer: OptimizerFacts | None
    param_groups: tuple[ParamGroupFacts, ...] | None = field(repr=False)
    lr_scheduler: Any = field(repr=False)
    loss_scaler: Mapping[str, Any] | None
    skipped_steps: int | None
    roles: tuple[RoleSummary, ...]
    quantised: tuple[QuantisedFacts, ...]
    unclaimed_bytes: int
    files: Mapping[str, int] = field(repr=False)
    tensors: tuple[TensorFacts, ...] = field(repr=False)
    aliases: Mapping[str, str] = field(repr=False)
    run: RunListing | None
    next: tuple[str, ...]
    notes: tuple[str, ...]
    problems: tuple[Problem, ...]
    inspection: Inspection = field(repr=False)
    statistics: CheckpointStatistics | None = field(default=None, repr=False)

    @property
    def is_whole(self) -> bool:
        """True if no problem was found. `inspect` does not check tensor data; `zerotools.verify`
        does."""
        return not self.problems

    def to_json(self, *, chunks: bool = False) -> dict[str, Any]:
        """Return the documented JSON (docs/reference/inspect-json.md). `chunks` adds the chunks of
        each tensor."""
        statistics = None if self.statistics is None else self.statistics.to_json()
        return to_json(
            self.inspection,
            chunks=chunks,
            run=self.run,
            commands=self.next,
            statistics=statistics,
        )

    def to_html(self) -> str:
        """Return a page for browsers that draws the checkpoint: its modules by size, and the
        tensors in each file. The page is one file, and needs no network."""
        from zerotools.ops.picture.checkpoint_page_data import picture_contents
        from zerotools.ops.picture.html_page import page_of

        return page_of(picture_contents(self.inspection, self.statistics))


class InspectKeywords(ReadingOptions, CheckingOptions, total=False):
    """The options of `zerotools inspect`."""

    stats: Annotated[
        bool,
        Option(
            group=OUTPUT,
            help="Read all tensor data, and show min, max, mean, norm, zeros and NaN of each "
            "tensor.",
        ),
    ]


@takes_options(InspectKeywords)
def inspect(
    path: StrPath, *, progress: ProgressWanted = None, **options: Unpack[InspectKeywords]
) -> InspectResult:
    """Read the metadata of the checkpoint at `path`: format, ranks, step, tensors, optimizer state,
    files and problems. If `path` is the directory of a run, the newest checkpoint is read.

    Tensor data is read only with `stats`, once and within `max_memory`. If the checkpoint is
    damaged, `problems` of the result lists the damage.

    Raises:
        BadRequest: `path` does not exist, or lacks the tag or section; or an option was given that
            needs `stats`, but not `stats`.
        BadFile: `path` is not a checkpoint, or it is so damaged that its tensors are not known.
        Unsupported: the format cannot be read.
    """
    given = bind_options(InspectKeywords, options)
    if not given["stats"]:
        for name, each in declared_options(CheckingOptions).items():
            if options.get(name) is not None:
                raise BadRequest(f"{each.flag} needs --stats; give both, or leave {each.flag} out")
    reading = {name: given[name] for name in declared_options(ReadingOptions)}
    place, statistics = path_of(path), None
    with recording_sources():  # an error names a file that changes between two reads
        found = carry_out(formats.read_any(place, **reading))
        if given["stats"]:
            found, statistics = _with_statistics(found, given, progress)
        checkpoint = found.checkpoint
        is_file = checkpoint.origin.path.is_file()
        run = find_run_listing(place, checkpoint.origin.path if is_file else checkpoint.root)
        commands: tuple[str, ...] = ()
        is_training = checkpoint.origin.world_size is not None or found.run.has_optimizer
        can_go_on = is_training or found.is_incomplete or bool(adapter_names(checkpoint.tensors))
        if run is not None or can_go_on:
            asked = [(f"--{name}", str(value)) for name, value in reading.items() if value]
            words = [word for each in asked for word in each]
            wraps = run is not None and run.wraps_models
            commands = next_commands(
                found, place, wraps_models=wraps, says_scale=_records_scale(checkpoint), given=words
            )
    return _result(found, run, commands, statistics)


def _with_statistics(
    found: Inspection, given: Mapping[str, Any], progress: ProgressWanted
) -> tuple[Inspection, CheckpointStatistics]:
    """Compute the statistics of the tensors. Return `found` with a problem added for each tensor
    that cannot be read, and the statistics."""
    from zerotools.ops.statistics.checkpoint_statistics import statistics_of  # imports numpy
    from zerotools.public.command_options.part_and_memory_options import budget_of

    checkpoint = found.checkpoint
    total = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    with metering(progress) as meter, meter(total, "inspect") as on_bytes:
        statistics = statistics_of(checkpoint, found.quantisation, budget_of(given), on_bytes)
    known = {problem.message for problem in found.problems}
    lost = (
        Problem(message, tensor=key.name)
        for key, message in statistics.unread.items()
        if message not in known
    )
    return replace(found, problems=(*found.problems, *lost)), statistics


def _records_scale(checkpoint: Checkpoint) -> bool:
    """Return whether a file of the checkpoint records the scale of its LoRA adapters. Return True
    if the checkpoint has no adapters."""
    if not adapter_names(checkpoint.tensors):
        return True
    from zerotools.ops.weights.adapter_config import says_scale  # which imports Megatron's readers

    return says_scale(checkpoint)


def _result(
    found: Inspection,
    run: RunListing | None,
    commands: tuple[str, ...],
    statistics: CheckpointStatistics | None,
) -> InspectResult:
    checkpoint, origin, summary = found.checkpoint, found.checkpoint.origin, found.run
    training = summary.training
    optimizer = OptimizerFacts(training.optimizer, training.optimizer_wrapper, summary.states)
    groups = tuple(
        ParamGroupFacts(
            tuple(training.unnamed.get(name, name) for name in group.params),
            elements,
            json_value(group.options),
        )
        for group, elements in zip(training.groups, summary.group_elements, strict=True)
    )
    return InspectResult(
        path=origin.path,
        format=origin.format,
        framework_version=origin.framework_version,
        stage=origin.stage,
        world_size=origin.world_size,
        tag=origin.tag,
        other_tags=tuple(origin.other_tags),
        step=found.step,
        parameters=summary.parameters,
        trainable_parameters=summary.trainable,
        frozen_parameters=summary.frozen,
        shared_parameters=summary.shared,
        weights_dtype=summary.weights_dtype,
        masters_dtype=summary.masters_dtype,
        optimizer=optimizer if summary.has_optimizer else None,
        param_groups=groups or None,
        lr_scheduler=json_value(training.lr_scheduler),
        loss_scaler=scaler_to_json(training.loss_scaler),
        skipped_steps=training.skipped,
        roles=found.roles,
        quantised=tuple(
            QuantisedFacts(kind, *counts) for kind, counts in found.quantisation.kinds().items()
        ),
        unclaimed_bytes=found.unclaimed_bytes,
        files=dict(checkpoint.files),
        tensors=tuple(
            TensorFacts(key.name, key.role, tensor.dtype, tensor.shape, tensor.chunks)
            for key, tensor in checkpoint.tensors.items()
        ),
        aliases=dict(checkpoint.aliases),
        run=run,
        next=commands,
        notes=found.notes,
        problems=found.problems,
        inspection=found,
        statistics=statistics,
    )

"""Runs a rank from its start to its end: joins the process group, reads the data, builds the model,
loads the checkpoint, and trains.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.core.hub_layout import HubLayout
from zerotools.core.training_memory_layout import MemoryLayout
from zerotools.io.huggingface.model_sidecars import model_sidecars, sidecar_kind
from zerotools.io.telemetry.step_metrics_files import Metrics
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
from zerotools.jobs.jobfile_tables.data import (
    BYTES,
    bounds_length,
    fixed_length,
    stated_length,
    tokenizer_of,
)
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.preflight.checkpoint_check import not_resumable
from zerotoolsd.trainer.check_attention_leaks import check_leaks
from zerotoolsd.trainer.check_sequence_parallel import check_sequence_ranks
from zerotoolsd.trainer.checkpoints.commit_and_delete_checkpoints import do_nothing, lock_output_dir
from zerotoolsd.trainer.checkpoints.resume_point import (
    ResumePoint,
    choose_resume_point,
    foreign_resume_point,
)
from zerotoolsd.trainer.coordinate_nodes import (
    check_checkpoint_visible,
    check_same_model,
    is_finished,
    rendezvous_of,
    share_failures,
)
from zerotoolsd.trainer.data.collate import check_decoder_start
from zerotoolsd.trainer.data.training_data import DataReading, TrainingData, positions_of
from zerotoolsd.trainer.dpo_reference import ReferenceRun, add_references, as_json
from zerotoolsd.trainer.engine.chunked_loss import loss_size_of
from zerotoolsd.trainer.engine.conditional_layers import check_same_layers_on_ranks
from zerotoolsd.trainer.engine.engine_interface import Engine
from zerotoolsd.trainer.engine.learning_rate import with_steps
from zerotoolsd.trainer.engine_deepspeed.setup_deepspeed import remove_own_directories
from zerotoolsd.trainer.engine_torch.build_model_and_optimizer import build_live_state
from zerotoolsd.trainer.engine_torch.engine import TorchEngine
from zerotoolsd.trainer.evaluation.evaluate import make_evaluation
from zerotoolsd.trainer.loop import TrainingRun
from zerotoolsd.trainer.model.attention_choice import choose_kernel, set_attention
from zerotoolsd.trainer.model.keep_fp32 import kept_in_fp32
from zerotoolsd.trainer.model.match_pretrained import Pretrained, hub_layout, match_directory
from zerotoolsd.trainer.model.meta_model import (
    MetaModel,
    check_data_fits,
    make_meta_model,
    read_config,
)
from zerotoolsd.trainer.model.predict_state_memory import predict_state_memory
from zerotoolsd.trainer.model.sharding import check_cuts
from zerotoolsd.trainer.rank.check_same_files import check_same_files
from zerotoolsd.trainer.rank.notify_supervisor import Notifier
from zerotoolsd.trainer.rank.process_group import START_TIMEOUT, WorldGroup, joined_group
from zerotoolsd.trainer.rank.rank_errors import EXIT_DONE
from zerotoolsd.trainer.rank.rank_settings import (
    Rank,
    StopRequest,
    needed_by_others,
    read_spec,
    saved_before,
)
from zerotoolsd.trainer.reporting.explain_out_of_memory import explain_errors
from zerotoolsd.trainer.reporting.mfu import make_utilization
from zerotoolsd.trainer.reporting.reporter import Phases, Reporter
from zerotoolsd.trainer.reporting.trackers.tracker_feed import start_tracking
from zerotoolsd.trainer.save_during_training import lacks_evaluation, make_checkpointing
from zerotoolsd.trainer.sequence_parallel.sequence_attention import attend_over_ranks
from zerotoolsd.trainer.start_or_resume import (
    begin_training,
    check_base,
    check_remaining_steps,
    describe_run,
    is_own,
    recorded_base,
    warn_of_changes,
)

BeforeCommit = Callable[[Path], None]


def run_training(
    run_dir: Path,
    rank: Rank,
    notifier: Notifier,
    started: float,
    before_commit: BeforeCommit = do_nothing,
) -> int:
    """Train the job in `run_dir` as the rank `rank`, and return the exit status.

    `started` is the value of `time.monotonic` when the process began. `before_commit` is called on
    rank 0 with each staging directory, before this directory is committed as a checkpoint.

    Raises:
        ZerotoolsError: the job cannot run with its settings, or its checkpoint is damaged.
    """
    phases = Phases(started)
    phases.done("import")
    spec = read_spec(run_dir)
    rank = rank.in_job(spec)
    reporter = Reporter(rank, notifier, steps=spec.train.steps)
    meeting = rendezvous_of(spec, run_dir)
    if meeting is not None:
        if is_finished(spec):
            reporter.log_line("all steps are done already")
            return EXIT_DONE
        reporter.prepares(f"waiting for the other nodes at {meeting.address}")
    with (
        explain_errors(
            spec, lambda: notifier.step, lambda: reporter.state, lambda: reporter.has_stepped
        ),
        joined_group(rank, spec.device, notifier.heartbeat_writer, meeting) as group,
        share_failures(Path(spec.output_dir or ""), group),
        ExitStack() as stack,
    ):
        phases.done("process group")
        group.decided_by_rank_zero(lambda: lock_output_dir(Path(spec.output_dir or ""), stack))
        stack.callback(remove_own_directories, spec, rank.index)
        if rank.leads:
            reporter.write_to(_metrics(spec, stack))
            stack.callback(reporter.end_tracking)
        return prepare_training(spec, run_dir, group, reporter, phases, before_commit).train()


def prepare_training(
    spec: JobSpec,
    run_dir: Path,
    group: WorldGroup,
    reporter: Reporter,
    phases: Phases,
    before_commit: BeforeCommit = do_nothing,
) -> TrainingRun:
    """Read the data, build the model and load the checkpoint.

    Return the run, which is ready to train. For `before_commit`, see `run_training`.

    Raises:
        ZerotoolsError: the job cannot run with its settings, or its checkpoint is damaged.
    """
    config = read_config(spec.model)
    length = fixed_length(spec.data, positions_of(config))
    check_data_fits(config, 0, length or stated_length(spec.data))
    # Concurrently with the following code, until the data is needed.
    reading = DataReading(spec, run_dir, group, config).start()
    meta_model = make_meta_model(config, spec.lora)
    check_same_model(meta_model.model, config, group)
    set_attention(spec, meta_model.model)
    if (kernel := choose_kernel(spec, meta_model.model, group.device)) is not None:
        reporter.log_line(kernel)
    attend_over_ranks(meta_model.model, spec.zero.sequence_ranks)
    check_same_layers_on_ranks(meta_model.model, group.rank.world_size, spec.engine)
    for note in check_cuts(meta_model.model, spec.zero.tensor_ranks).notes:
        reporter.log_line(note)
    check_decoder_start(meta_model.model)
    reporter.measure_by(
        make_utilization(
            group,
            config,
            meta_model.parameter_count(),
            length or 0,
            spec.train.precision,
        )
    )
    layout = memory_layout_of(spec)
    loss_size = loss_size_of(spec, config)
    kept = kept_in_fp32(meta_model.model, spec.train)
    on_gpu = spec.device == "cuda"
    predicted = partial(predict_state_memory, meta_model, layout, on_gpu=on_gpu, kept=kept)
    reporter.expect_state(predicted(loss_size if bounds_length(spec.data) else None))
    phases.done("model")
    decision = choose_resume_point(spec, group, saved_before())
    check_checkpoint_visible(decision.path, group)
    for skipped in decision.skipped:
        reporter.skipped(skipped.path, skipped.why)
    start = decision.start
    if start is None:
        # A started job continues as it began, even if a newer version would refuse it.
        group.decided_by_rank_zero(lambda: check_leaks(config, packing=spec.data.packing))
    group.decided_by_rank_zero(lambda: check_sequence_ranks(spec, config))
    if decision.foreign is not None:
        start = foreign_resume_point(decision.foreign, spec, meta_model)
    if group.rank.leads:
        done = None if start is None else start.record.step
        reporter.track(start_tracking(spec, run_dir, done, reporter.log_line))
    data = None
    if spec.train.steps is None and spec.engine == "deepspeed":  # its scheduler needs the number
        data = _opened(reading, reporter, phases)
        spec = _counted(spec, data, start)
    reporter.enter("load")
    reporter.prepares(
        "loading the weights" if start is None else f"loading step {start.record.step}"
    )
    reads = start is None or layout.packs_frozen
    pretrained = _pretrained(spec, meta_model) if reads else None
    if pretrained is not None:
        check_same_files(_weight_files(pretrained), group)
        if layout.packs_frozen:
            check_base(spec, meta_model, pretrained)
        for note in pretrained.notes():
            reporter.log_line(note)
    wait_for_base = recorded_base(spec, pretrained, start, group)
    engine = make_engine(spec, layout, meta_model, group, reporter, start, pretrained)
    base = wait_for_base()
    group.wait_at_most(START_TIMEOUT)  # in groups that the engine has made, too
    phases.done("weights")
    hub = _hub(meta_model, pretrained, start)
    begin_training(spec, engine, group, reporter, start)
    if data is None:
        data = _opened(reading, reporter, phases)
        engine.spec = spec = _counted(spec, data, start)
    stop = StopRequest(run_dir, group.rank)
    stop.listen()
    references: tuple[Path, ...] = ()
    if data.pairs:
        reporter.prepares("computing the reference")
        text = as_json(config.to_dict())
        run = ReferenceRun(spec, text, engine, group, reporter, stop.is_requested)
        references = run.find(data, start)
    reporter.expect(spec.train.total_steps)
    if data.longest_read is not None:
        reporter.expect_state(predicted(loss_size_of(spec, config, data.longest_read)))
    evaluation = make_evaluation(spec, data.held_out, meta_model, group)
    for note in evaluation.notes if evaluation is not None else ():
        reporter.log_line(note)
    if loss_size.is_cut():
        engine.evaluate([data.batches.pool.example(0)])  # sees whether it can be
    if start is not None:
        warn_of_changes(spec, data, start, meta_model, reporter)
        phases.done("resume")
    add_files = partial(_add_files, spec, meta_model, references)
    needed = needed_by_others(run_dir)
    checkpoints = make_checkpointing(
        spec, engine, group, reporter, add_files, before_commit, needed
    )
    reporter.prepares("taking the first step")
    return TrainingRun(
        spec,
        stop,
        group,
        engine,
        data.batches,
        checkpoints,
        reporter,
        phases,
        describe_run(spec, meta_model, group, data, hub, base),
        step=start.record.step if start else 0,
        consumed=start.record.consumed_sequences if start else 0,
        evaluation=evaluation,
        lacks_evaluation=start is not None
        and is_own(spec, start)
        and lacks_evaluation(spec, start.record),
    )


def _hub(
    meta_model: MetaModel, pretrained: Pretrained | None, start: ResumePoint | None
) -> HubLayout:
    """Return, for each tensor of the model, the tensors of a Hugging Face directory that make it
    up.

    A new run computes this layout, and a continued run reads it from the checkpoint `start`. It is
    also computed for a checkpoint that `convert` has made from another program's checkpoint,
    because such a checkpoint does not have it.
    """
    converted = start is not None and start.foreign is None and start.record.made_from is not None
    if start is None or converted:
        return hub_layout(meta_model.plain, pretrained)
    return start.record.hub


def _opened(reading: DataReading, reporter: Reporter, phases: Phases) -> TrainingData:
    """Wait for the data, check that the data fits the model, and return it."""
    reporter.prepares("reading the data")
    data = reading.opened(reporter.reads)
    for note in data.notes:
        reporter.log_line(note)
    check_data_fits(reading.config, data.vocabulary, None)
    phases.done("data")
    return data


def _counted(spec: JobSpec, data: TrainingData, start: ResumePoint | None) -> JobSpec:
    """Return a copy of `spec` with the number of steps that its epochs have.

    Raises BadRequest if no step is left after `start`.
    """
    saved = None if start is None else start.record
    counted = with_steps(spec, len(data.batches.pool), saved)
    if start is not None and spec.train.epochs is not None:
        check_remaining_steps(counted, start)
    return counted


def _pretrained(spec: JobSpec, meta_model: MetaModel) -> Pretrained | None:
    if spec.model.path is None:
        return None
    return match_directory(meta_model.plain, meta_model.aliases, Path(spec.model.path))


def _weight_files(pretrained: Pretrained) -> dict[str, Path]:
    paths = {tensor.path for tensor in pretrained.stored.values()}
    return {f"model.path: {path.name}": path for path in sorted(paths)}


def _metrics(spec: JobSpec, stack: ExitStack) -> Metrics:
    wanted = spec.metrics
    metrics = Metrics(
        Path(spec.output_dir or ""), jsonl=wanted.jsonl, tensorboard=wanted.tensorboard
    )
    stack.callback(metrics.close)
    return metrics


def _add_files(
    spec: JobSpec, meta_model: MetaModel, references: Sequence[Path], staging: Path
) -> None:
    add_references(references, staging)
    meta_model.config.save_pretrained(staging)
    for name, path in sidecars_of(spec).items():
        (staging / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(path, staging / name)


def sidecars_of(spec: JobSpec) -> dict[str, Path]:
    """Return the small files that a checkpoint needs in addition to its config: name -> path.

    These are the files of the data's tokenizer, and the other small files of the model's directory.
    If the data uses another tokenizer than the model, the model's files with token ids are left
    out. For example, `generation_config.json` contains the ids of the end tokens.
    """
    named, own = tokenizer_of(spec.data, spec.model.path), spec.model.path
    found = {} if named is None or named == BYTES else _of_kinds(Path(named), "tokenizer")
    if own is None:
        return found
    if named != BYTES and spec.data.tokenizer in (None, own):
        found |= _of_kinds(Path(own), "tokenizer", "generation")
    return found | _of_kinds(Path(own), "processor")


def _of_kinds(directory: Path, *kinds: str) -> dict[str, Path]:
    there = model_sidecars(directory)
    return {name: path for name, path in there.items() if sidecar_kind(name) in kinds}


def make_engine(
    spec: JobSpec,
    layout: MemoryLayout,
    meta_model: MetaModel,
    group: WorldGroup,
    reporter: Reporter,
    start: ResumePoint | None,
    pretrained: Pretrained | None,
) -> Engine:
    """Return the engine of the job `spec`. Its weights come from `pretrained`, or are initialised
    if `pretrained` is None. If `start` is given, its checkpoint will replace the weights.

    Engine `torch` allocates memory according to `layout`. DeepSpeed's config describes the same
    layout.

    Raises:
        ZerotoolsError: the model cannot be initialised, its weights cannot be read, or `start` does
            not fit this job.
    """
    if start is not None and start.foreign is None:
        for sentence in not_resumable(spec, start.record, start.path):
            raise BadRequest(sentence)
    if spec.engine == "deepspeed":
        from zerotoolsd.trainer.engine_deepspeed.engine import make_deepspeed_engine

        return make_deepspeed_engine(spec, meta_model, group, reporter, start, pretrained)
    record = start.record if start else None
    live = build_live_state(spec, layout, meta_model, group, reporter, record, pretrained)
    return TorchEngine(spec, live, group)

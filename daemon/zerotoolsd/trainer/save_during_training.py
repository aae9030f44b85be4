"""Saves checkpoints while a run trains: one save at a time, in the training thread or in the
background.

The training loop calls `Checkpointing`. `Saves` runs the saves one after another.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import torch

from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs import find_job_checkpoints
from zerotools.runs.training_record import JobRecord
from zerotoolsd.trainer.checkpoints.choose_checkpoints_to_keep import KeepPolicy
from zerotoolsd.trainer.checkpoints.commit_and_delete_checkpoints import Committer
from zerotoolsd.trainer.checkpoints.save_checkpoint import Saved, SaveFailed, Saver
from zerotoolsd.trainer.engine.engine_interface import CopyingEngine, Engine, StepResult
from zerotoolsd.trainer.model import rng_state
from zerotoolsd.trainer.rank.process_group import WorldGroup, control_group
from zerotoolsd.trainer.rank.rank_errors import Diverged
from zerotoolsd.trainer.reporting.reporter import Reporter

LOSS, EVAL_LOSS = "loss", "eval_loss"


@dataclass
class CheckpointMetrics:
    """Collects the losses for the record of the next checkpoint: the training losses since the
    last checkpoint, and the newest evaluation loss.
    """

    _losses: list[float] = field(default_factory=list)
    _saving: dict[int, list[float]] = field(default_factory=dict)
    _evaluated: tuple[int, float] | None = None

    def stepped(self, loss: float) -> None:
        """Add `loss`, the training loss of a step that updated the weights (computed before the
        update).
        """
        self._losses.append(loss)

    def evaluated(self, step: int, loss: float) -> None:
        """Set the newest evaluation loss: `loss`, measured after step `step`."""
        self._evaluated = (step, loss)

    def pop_losses(self, step: int) -> dict[str, float]:
        """Return the losses for the record of the checkpoint of `step`, and clear the list of
        training losses.

        The mapping has `loss`, the average training loss since the last checkpoint, and
        `eval_loss`, if the model was evaluated after `step`. A loss that is not finite is left out.
        Call `save_ended` when the save of this checkpoint has ended.
        """
        found = {}
        if self._losses:
            found[LOSS] = math.fsum(self._losses) / len(self._losses)
        if self._evaluated is not None and self._evaluated[0] == step:
            found[EVAL_LOSS] = self._evaluated[1]
        self._saving[step], self._losses = self._losses, []
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def save_ended(self, step: int, *, is_saved: bool) -> None:
        """Forget the training losses of the checkpoint of `step`. If it could not be saved, they
        count for the next checkpoint.
        """
        losses = self._saving.pop(step, [])
        if not is_saved:
            self._losses[:0] = losses


def lacks_evaluation(spec: JobSpec, record: JobRecord) -> bool:
    """Return whether a stop has ended the evaluation after the step of the checkpoint `record`.

    `spec` is the job that saved it, with its number of steps.
    """
    step, every = record.step, spec.eval.every
    is_due = step == spec.train.total_steps or (every is not None and step % every == 0)
    return spec.eval.has_data and is_due and EVAL_LOSS not in record.measured


@dataclass
class Checkpointing:
    """Saves the checkpoints of a run.

    The training loop calls it. All ranks call each method together.
    """

    saves: Saves
    reporter: Reporter
    measured: CheckpointMetrics = field(default_factory=CheckpointMetrics)

    def stepped(self, outcome: StepResult) -> None:
        """Record the training loss of the step `outcome`, and report a background save that has
        ended.
        """
        if not outcome.is_skipped:
            self.measured.stepped(outcome.loss)
        self._report_ended()

    def save(self, record: JobRecord, *, last: bool) -> None:
        """Save the state as the checkpoint of step `record.step`.

        If `last` is True, wait until the save has ended.

        Raises:
            SaveFailed: the last checkpoint could not be written. If an earlier checkpoint cannot be
                written, this is only reported.
            Diverged: the state has a value that is not finite, so that no run can continue from it.
        """
        self.reporter.enter("save")
        self.saves.begin(replace(record, measured=self.measured.pop_losses(record.step)))
        if last:
            self.saves.settle()
        self._report_ended(must_be=record.step if last else None)
        self.reporter.enter("train")

    def add_evaluation(self, step: int, loss: float) -> None:
        """Record `loss`, the result of the evaluation that a stop had ended after step `step`, for
        the checkpoint of this step.
        """
        self.measured.evaluated(step, loss)
        if not (self.saves.saver.group.rank.leads and math.isfinite(loss)):
            return
        try:
            self.saves.saver.committer.add_evaluation(step, loss)
        except OSError as error:
            self.reporter.log_line(f"the evaluation of step {step} is not recorded: {error}")

    def _report_ended(self, must_be: int | None = None) -> None:
        for ended in self.saves.collect_results():
            self.measured.save_ended(ended.step, is_saved=ended.saved is not None)
            if ended.saved is not None:
                self.reporter.saved(ended.saved, ended.stall_seconds)
            elif ended.step == must_be:
                raise SaveFailed(ended.why)
            else:
                # A full disk must not end a run that can continue: older checkpoints still exist.
                self.reporter.save_failed(ended.step, ended.why)

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Return a context manager that waits for the current save if its body raises an error."""
        try:
            yield
        except BaseException:  # raised again
            with suppress(Exception):
                self.saves.settle()
                self._report_ended()
            raise


def make_checkpointing(
    spec: JobSpec,
    engine: Engine,
    group: WorldGroup,
    reporter: Reporter,
    add_files: Callable[[Path], None],
    before_commit: Callable[[Path], None],
    needed: Path | None = None,
) -> Checkpointing:
    """Return the `Checkpointing` of the job `spec`. All ranks call it together.

    `add_files` copies the config and the tokenizer of the model into a staging directory.
    `before_commit` is called with this staging directory on rank 0, before each commit. `needed` is
    a directory that lists the checkpoints that other jobs need: see `KeepPolicy`.
    """
    wanted = spec.checkpoint
    named = find_job_checkpoints.resolve_hint(Path(spec.resume_from)) if spec.resume_from else None
    keeping = KeepPolicy(wanted.keep_last, wanted.keep_every, wanted.best, named, needed)
    output_dir = Path(spec.output_dir or "")
    committer = Committer(output_dir, keeping, add_files, before_commit, reporter.log_line)
    if not (wanted.asynchronous and isinstance(engine, CopyingEngine)):
        return Checkpointing(Saves(Saver(committer, group), lambda: engine.write), reporter)
    own = replace(group, control=control_group())
    saver = Saver(committer, own)
    return Checkpointing(Saves(saver, _copies(engine, own), in_background=True), reporter)


def _copies(engine: CopyingEngine, group: WorldGroup) -> Callable[[], Write]:
    def prepare() -> Write:
        write = engine.copy()
        return lambda staging: _in_thread(write, staging, group)

    return prepare


def _in_thread(write: Callable[[Path, WorldGroup], None], staging: Path, group: WorldGroup) -> None:
    if group.device.type == "cuda":
        # A new thread's device is the first, where DCP would make every rank a context.
        torch.cuda.set_device(group.device)
    write(staging, group)


Write = Callable[[Path], None]


@dataclass(frozen=True)
class SaveResult:
    """The result of a save that has ended.

    `saved` is the checkpoint. If the save failed, `saved` is None and `why` is the reason. Training
    was paused for `stall_seconds`.
    """

    step: int
    stall_seconds: float
    saved: Saved | None
    why: str = ""


@dataclass
class Saves:
    """Runs the saves of a run, one at a time. All ranks call each method in the same order.

    A background save may end on one rank a step earlier than on another rank. So an error that ends
    the run is raised only by `begin` and `settle`, where all ranks wait for each other.

    `prepare` returns the function that writes this rank's part of the current state. If
    `in_background` is True, this function has its own copy of the state, and runs in a background
    thread while training continues. Only this thread may then use the process group of `saver`.
    """

    saver: Saver
    prepare: Callable[[], Write]
    in_background: bool = False
    _task: BackgroundTask[Saved] | None = None
    _step: int = 0
    _began: float = 0.0
    _stall: float = 0.0
    _diverged: Diverged | None = None
    _ended: list[SaveResult] = field(default_factory=list)

    def begin(self, record: JobRecord) -> None:
        """Start to save the state as the checkpoint of step `record.step`.

        If an earlier save is still running, first wait until it has ended. Without `in_background`,
        this method returns only after the new save has ended.

        Raises:
            Diverged: the state, or the state of the previous save, has a value that is not finite.
        """
        began = time.monotonic()
        self.settle()
        self._step, self._began = record.step, began
        save = partial(self.saver.save, record, self.prepare(), rng_state.capture_rng())
        if not self.in_background:
            self._end(save)
            return
        self._task = BackgroundTask(save)
        self._stall = time.monotonic() - began

    def settle(self) -> None:
        """Wait until no save is running.

        All ranks call it after the same step.

        Raises:
            Diverged: the state of a save has a value that is not finite, so that no run can
                continue from it.
        """
        self._wait()
        if self._diverged is not None:
            raise self._diverged

    def collect_results(self) -> list[SaveResult]:
        """Return the results of the saves that ended since the last call of this method."""
        if self._task is not None and self._task.is_over:
            self._wait()
        ended, self._ended = self._ended, []
        return ended

    def _wait(self) -> None:
        if self._task is None:
            return
        task, self._task = self._task, None
        try:
            self._end(task.result)
        except Diverged as error:
            self._diverged = error

    def _end(self, result: Callable[[], Saved]) -> None:
        saved, why = None, ""
        try:
            saved = result()
        except SaveFailed as error:
            why = str(error)
        stall = self._stall if self.in_background else time.monotonic() - self._began
        self._ended.append(SaveResult(self._step, stall, saved, why))


Value = TypeVar("Value")


class BackgroundTask(Generic[Value]):
    """Runs a function in a daemon thread. The process can end while the function still runs."""

    def __init__(self, act: Callable[[], Value]) -> None:
        self._act = act
        self._value: list[Value] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="save", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value.append(self._act())
        except BaseException as error:  # raised again in the thread that asks
            self._error = error

    @property
    def is_over(self) -> bool:
        """True if the function has returned or raised an error."""
        return not self._thread.is_alive()

    def result(self) -> Value:
        """Wait for the function. Return its result, or raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value[0]

"""The loop's handling of checkpoints: begin them, report them, wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from zerotools.jobs.tables.spec import JobSpec
from zerotools.runs import checkpoint_dirs
from zerotools.runs.job_record import JobRecord
from zerotoolsd.trainer.checkpoints.finalize import Committer
from zerotoolsd.trainer.checkpoints.keeping import KeepPolicy
from zerotoolsd.trainer.checkpoints.measured import CheckpointMetrics
from zerotoolsd.trainer.checkpoints.save_sequence import Saves, Write
from zerotoolsd.trainer.checkpoints.saving import SaveFailed, Saver
from zerotoolsd.trainer.engine.protocol import CopyingEngine, Engine, StepResult
from zerotoolsd.trainer.rank.group import WorldGroup, control_group
from zerotoolsd.trainer.reporting.reporter import Reporter


@dataclass
class Checkpointing:
    """The checkpoints of a run. All ranks call each method together."""

    saves: Saves
    reporter: Reporter
    measured: CheckpointMetrics = field(default_factory=CheckpointMetrics)

    def stepped(self, outcome: StepResult) -> None:
        """Record a step, and report a save that ended meanwhile."""
        if not outcome.is_skipped:
            self.measured.stepped(outcome.loss)
        self._tell()

    def save(self, record: JobRecord, *, last: bool) -> None:
        """Save the state as the checkpoint of `record.step`; for the `last` one, wait.

        Raises:
            SaveFailed: the last checkpoint could not be written; an earlier one may be missing.
            Diverged: the state cannot be continued from.
        """
        self.reporter.enter("save")
        self.saves.begin(replace(record, measured=self.measured.take(record.step)))
        if last:
            self.saves.settle()
        self._tell(must_be=record.step if last else None)
        self.reporter.enter("train")

    def _tell(self, must_be: int | None = None) -> None:
        for ended in self.saves.over():
            if ended.saved is not None:
                self.reporter.saved(ended.saved, ended.stall_seconds)
            elif ended.step == must_be:
                raise SaveFailed(ended.why)
            else:
                # A full disk must not end a run that can continue: older checkpoints still exist.
                self.reporter.save_failed(ended.step, ended.why)

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Wait for the current save before an error ends the process that writes it."""
        try:
            yield
        except BaseException:  # raised again
            with suppress(Exception):
                self.saves.settle()
                self._tell()
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
    """Return the checkpoints of `spec`. All ranks call it together. `needed`: see `KeepPolicy`.

    `add_files` puts the config and tokenizer into a staging directory; `before_commit` is called on
    rank 0 before each commit.
    """
    wanted = spec.checkpoint
    named = checkpoint_dirs.resolve_hint(Path(spec.resume_from)) if spec.resume_from else None
    keeping = KeepPolicy(wanted.keep_last, wanted.keep_every, wanted.best, named, needed)
    output_dir = Path(spec.output_dir or "")
    committer = Committer(output_dir, keeping, add_files, before_commit, reporter.say)
    if not (wanted.asynchronous and isinstance(engine, CopyingEngine)):
        return Checkpointing(Saves(Saver(committer, group), lambda: engine.write), reporter)
    beside = replace(group, control=control_group())
    saver = Saver(committer, beside)
    return Checkpointing(Saves(saver, _copies(engine, beside), beside=True), reporter)


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

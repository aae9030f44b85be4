"""Train to the end, or until asked to stop."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

from zerotools.formats.dcp.jobrecord import JobRecord, LossScaleRecord
from zerotools.jobs.spec import JobSpec
from zerotoolsd.trainer.batches import Batches, rank_share
from zerotoolsd.trainer.failures import EXIT_DONE, EXIT_STOPPED, Diverged
from zerotoolsd.trainer.group import Group
from zerotoolsd.trainer.lossscale import after
from zerotoolsd.trainer.phases import Phases
from zerotoolsd.trainer.reporting import Reporter
from zerotoolsd.trainer.saving import SaveFailed, Saver
from zerotoolsd.trainer.settings import stop_reason
from zerotoolsd.trainer.state import Live
from zerotoolsd.trainer.step import Outcome, train_step

MOST_IN_A_ROW = 20
"""Skipped steps in a row that a fixed loss scale may cause. One that follows the gradients is down
from 2 to the power of 16 before."""


@dataclass
class Run:
    """A run that is ready to train: `step` steps are done, `skipped` of them without an update,
    `consumed` sequences were read, and `loss_scale` is that of the next one (fp16 alone has one).

    `template` is what the records of all its checkpoints have in common.
    """

    spec: JobSpec
    run_dir: Path
    group: Group
    live: Live
    batches: Batches
    saver: Saver
    reporter: Reporter
    phases: Phases
    template: JobRecord
    step: int
    consumed: int
    skipped: int
    loss_scale: LossScaleRecord | None
    _in_a_row: int = 0

    def train(self) -> int:
        """Run the remaining steps; the exit status. All ranks call it together.

        Checkpoints are written every `checkpoint.every` steps, at the end, and at a stop. A stop
        before the first step of this attempt leaves nothing to save.

        Raises:
            SaveFailed: the last checkpoint could not be written; one on the way may be missed.
        """
        steps, every = self.spec.train.total_steps, self.spec.checkpoint.every
        stop = self._asked_before_the_first_step()
        if self.step >= steps:
            self.reporter.say(f"all {steps} steps are done already")
        first = self.step
        while self.step < steps and not stop:
            self.reporter.enter("train") if self.step == first else None
            stop = self._one_step(first).stop
            if stop or self.step == steps:
                self._save()
            elif every and self.step % every == 0:
                self._save_if_possible()
        return self._end(stopped=stop and self.step < steps)

    def _asked_before_the_first_step(self) -> bool:
        asked = self.group.rank.leads and self._stop_asked()
        return self.group.total([float(asked)])[0] > 0

    def _stop_asked(self) -> bool:
        return stop_reason(self.run_dir) is not None

    def _one_step(self, first: int) -> Outcome:
        started = time.monotonic()
        train, rank = self.spec.train, self.group.rank
        share = rank_share(self.consumed, train.batch_size, rank.number, rank.world_size)
        sequences = self.batches.sequences(*share)
        scale = self.loss_scale
        outcome = train_step(
            self.live,
            sequences,
            self.step,
            train,
            self.group,
            stop_asked=self._stop_asked,
            skipped=self.skipped,
            loss_scale=None if scale is None else scale.cur_scale,
        )
        if scale is not None:
            self._rescale(scale, overflow=outcome.is_skipped)
        if self.step == first:
            self.phases.done("first step")
            self.reporter.say(f"ready in {self.phases}")
        self.step += 1
        self.consumed += train.batch_size
        tokens = train.batch_size * self.batches.sequence_length
        self.reporter.stepped(self.step, outcome, tokens, time.monotonic() - started)
        return outcome

    def _rescale(self, scale: LossScaleRecord, *, overflow: bool) -> None:
        self.loss_scale = after(scale, overflow=overflow)
        self.skipped += overflow
        self._in_a_row = self._in_a_row + 1 if overflow else 0
        if not scale.dynamic and self._in_a_row >= MOST_IN_A_ROW:
            raise Diverged(
                f"gradients overflowed in {MOST_IN_A_ROW} steps in a row at fp16.loss_scale = "
                f"{scale.cur_scale:g}: lower it, or leave it out, and resume from a checkpoint"
            )

    def _save(self) -> None:
        self.reporter.enter("save")
        saved = self.saver.save(self._record())
        self.reporter.saved(self.step, saved)
        self.reporter.enter("train")

    def _record(self) -> JobRecord:
        return dataclasses.replace(
            self.template,
            step=self.step,
            consumed_sequences=self.consumed,
            skipped_steps=self.skipped,
            loss_scale=self.loss_scale,
            optimizer=self.live.optimizer.describe(),
        )

    def _save_if_possible(self) -> None:
        # A full disk must not end a run that can go on: the checkpoint before still stands.
        try:
            self._save()
        except SaveFailed as error:
            self.reporter.save_failed(self.step, str(error))
            self.reporter.enter("train")

    def _end(self, *, stopped: bool) -> int:
        if stopped:
            reason = stop_reason(self.run_dir) or "asked"
            self.reporter.say(f"stopped at step {self.step} as asked ({reason})")
        self.reporter.enter("stopped" if stopped else "done")
        return EXIT_STOPPED if stopped else EXIT_DONE

"""Train to the end, or until asked to stop."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.formats.dcp.jobrecord import JobRecord
from zerotools.jobs.spec import JobSpec
from zerotoolsd.trainer.batches import Batches
from zerotoolsd.trainer.enginetype import Engine, Outcome
from zerotoolsd.trainer.evaluating import Evaluation
from zerotoolsd.trainer.failures import EXIT_DONE, EXIT_STOPPED
from zerotoolsd.trainer.group import Group
from zerotoolsd.trainer.phases import Phases
from zerotoolsd.trainer.reporting import Reporter
from zerotoolsd.trainer.saving import SaveFailed, Saver
from zerotoolsd.trainer.settings import stop_reason


@dataclass
class Run:
    """A run that is ready to train: `step` steps are done and `consumed` sequences were read.

    `template` is what the records of all its checkpoints have in common.
    """

    spec: JobSpec
    run_dir: Path
    group: Group
    engine: Engine
    batches: Batches
    saver: Saver
    reporter: Reporter
    phases: Phases
    template: JobRecord
    step: int
    consumed: int
    evaluation: Evaluation | None = None

    def train(self) -> int:
        """Run the remaining steps; the exit status. All ranks call it together.

        Evaluations come before checkpoints of the same step. These
        are written every `checkpoint.every` steps, at the end, and at a stop. A stop
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
            if self.evaluation is not None and self.evaluation.is_due(self.step, steps):
                self._evaluate(self.evaluation)
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
        first_position, size = self.consumed, train.batch_size
        share = self.batches.share(first_position, size, rank.number, rank.world_size)
        outcome = self.engine.step(share, self.step, self._stop_asked)
        if self.step == first:
            self.phases.done("first step")
            self.reporter.say(f"ready in {self.phases}")
        self.step += 1
        self.consumed += size
        tokens = self.batches.tokens(first_position, size)
        self.reporter.stepped(self.step, outcome, tokens, time.monotonic() - started)
        return outcome

    def _evaluate(self, evaluation: Evaluation) -> None:
        self.reporter.enter("eval")
        found = evaluation.run(self.engine, self.group, self.reporter.alive)
        self.reporter.evaluated(self.step, found)
        self.reporter.enter("train")

    def _save(self) -> None:
        self.reporter.enter("save")
        saved = self.saver.save(self._record())
        self.reporter.saved(self.step, saved)
        self.reporter.enter("train")

    def _record(self) -> JobRecord:
        now = replace(self.template, step=self.step, consumed_sequences=self.consumed)
        return self.engine.describe(now)

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

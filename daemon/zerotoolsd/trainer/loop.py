"""Trains until the last step, or until a stop is requested."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs import find_job_checkpoints
from zerotools.runs.training_record import JobRecord
from zerotoolsd.supervisor.heartbeats.stall_limits import END
from zerotoolsd.trainer.data.batches import Batches, Prefetch
from zerotoolsd.trainer.engine.engine_interface import Engine, StepResult
from zerotoolsd.trainer.evaluation.evaluate import Evaluation
from zerotoolsd.trainer.rank.process_group import CONTROL_TIMEOUT, STEP_TIMEOUT, WorldGroup
from zerotoolsd.trainer.rank.rank_errors import EXIT_DONE, EXIT_STOPPED, Diverged, MachineNotReady
from zerotoolsd.trainer.rank.rank_settings import StopRequest
from zerotoolsd.trainer.reporting.reporter import Phases, Reporter
from zerotoolsd.trainer.save_during_training import Checkpointing

COMPILING_STEPS = 10
"""With torch.compile, this many steps at the beginning have the long timeout.

Each rank compiles its blocks again whenever it gets sequences of a new length.
"""


@dataclass
class TrainingRun:
    """A run that is ready to train.

    `step` is the number of completed steps, and `consumed` the number of sequences that were read.
    `template` is a record with the values that all checkpoints of the run share. If
    `lacks_evaluation` is True, an evaluation after step `step` is due, but a stop has ended it.
    """

    spec: JobSpec
    stop: StopRequest
    group: WorldGroup
    engine: Engine
    batches: Batches
    checkpoints: Checkpointing
    reporter: Reporter
    phases: Phases
    template: JobRecord
    step: int
    consumed: int
    evaluation: Evaluation | None = None
    lacks_evaluation: bool = False

    def train(self) -> int:
        """Do the remaining steps, and return the exit status.

        All ranks call it together. Checkpoints are saved every `checkpoint.every` steps, at the
        end, and when the run is stopped. If a step has an evaluation and a checkpoint, the
        evaluation comes first. But a stop ends an evaluation, and the next attempt begins with it.
        A stop before the first step of this attempt saves nothing. The method returns after the
        last save has ended.

        Raises:
            SaveFailed: the last checkpoint could not be written. If an earlier checkpoint cannot be
                written, this is only reported.
            Diverged: the loss or a gradient is not finite, and the step may not be skipped; or the
                state has a value that is not finite, so that no run can continue from it.
        """
        rank, size = self.group.rank, self.spec.train.batch_size
        with (
            self.checkpoints.settled(),
            Prefetch(self.batches, size, rank.data_rank, rank.data_ranks) as batches,
        ):
            try:
                return self._train(batches)
            except Diverged as error:
                raise Diverged(f"{error}; {self._resume_advice()}") from error

    def _resume_advice(self) -> str:
        saved = find_job_checkpoints.list_checkpoints(Path(self.spec.output_dir or ""))
        if not saved:
            return "no checkpoint was saved; submit the changed job again, from the start"
        return f"then resume from {saved[0].name}"

    def _train(self, batches: Prefetch) -> int:
        steps, every = self.spec.train.total_steps, self.spec.checkpoint.every
        stop = self._stop_requested_before_first_step()
        if self.step >= steps:
            self.reporter.log_line(f"all {steps} steps are done already")
        first = self.step
        if self.evaluation is not None and self.lacks_evaluation:
            stop = self._evaluate(self.evaluation, stop=stop)
        while self.step < steps and not stop:
            self.reporter.enter("train") if self.step == first else None
            stop = self._one_step(first, batches).stop
            if self.evaluation is not None and self.evaluation.is_due(self.step, steps):
                stop = self._evaluate(self.evaluation, stop=stop)
            last = stop or self.step == steps
            if last or (every and self.step % every == 0):
                self.checkpoints.save(self._record(), last=last)
        return self._end(stopped=stop and (self.step < steps or self.lacks_evaluation))

    def _stop_requested_before_first_step(self) -> bool:
        return self.group.total([float(self.stop.is_requested())])[0] > 0

    def _one_step(self, first: int, batches: Prefetch) -> StepResult:
        started = time.monotonic()
        train = self.spec.train
        batch = batches.rank_batch(self.consumed)
        outcome = self.engine.step(batch, self.step, self.stop.is_requested)
        if self.step == first:
            self.phases.done("first step")
            self.reporter.log_line(f"ready in {self.phases}")
        self.step += 1
        if self.step - first == (COMPILING_STEPS if train.compile else 1):
            self.reporter.warmed_up()
            ends = self.spec.stall.action == END and self.group.heartbeat.connected
            self.group.wait_at_most(CONTROL_TIMEOUT if ends else STEP_TIMEOUT)
        self.consumed += train.batch_size
        self.reporter.stepped(self.step, outcome, batch.tokens, time.monotonic() - started)
        self.checkpoints.stepped(outcome)
        return outcome

    def _evaluate(self, evaluation: Evaluation, *, stop: bool) -> bool:
        """Evaluate after the current step, unless `stop` is True. Return whether the run must stop
        without the evaluation.
        """
        found = None
        if not stop:
            self.reporter.enter("eval")
            found = evaluation.run(
                self.engine, self.group, self.step, self.reporter.alive, self.stop.is_requested
            )
        was_saved, self.lacks_evaluation = self.lacks_evaluation, found is None
        if found is None:
            return True
        self.reporter.evaluated(self.step, found)
        if was_saved:
            self.checkpoints.add_evaluation(self.step, found.loss)
        else:
            self.checkpoints.measured.evaluated(self.step, found.loss)
        self.reporter.enter("train")
        return False

    def _record(self) -> JobRecord:
        now = replace(self.template, step=self.step, consumed_sequences=self.consumed)
        return self.engine.describe(now)

    def _end(self, *, stopped: bool) -> int:
        if stopped:
            self._check_own_stop()
            self.reporter.log_line(f"stopped at step {self.step} on request ({self.stop.reason()})")
        self.reporter.enter("stopped" if stopped else "done")
        return EXIT_STOPPED if stopped else EXIT_DONE

    def _check_own_stop(self) -> None:
        """If a node was asked to stop, check that this node was asked too.

        Raises:
            MachineNotReady: only another node was asked. This node ends, and its next attempt waits
                for that node.
        """
        rank = self.group.rank
        if rank.nodes == 1:
            return
        reasons = self.group.gathered(self.stop.own_reason())
        first = rank.node * rank.node_ranks
        if any(reasons[first : first + rank.node_ranks]):
            return
        asked = next(index for index, reason in enumerate(reasons) if reason)
        raise MachineNotReady(
            f"node {asked // rank.node_ranks} was stopped at step {self.step} "
            f"({reasons[asked]}), and has saved a checkpoint; this node waits until that node "
            "continues"
        )

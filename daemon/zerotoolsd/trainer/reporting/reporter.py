"""Reports the events of a rank: log lines for people, from the first rank of a node, and datagrams
to the supervisor, from all ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from zerotools.core.counts_and_sizes import count_text
from zerotools.core.step_timer import StepTimer
from zerotools.io.telemetry.step_metrics_files import Metrics, scalars_of
from zerotools.runs.training_record import JobRecord
from zerotoolsd.supervisor.heartbeats.stall_limits import EVALUATING, FIRST_STEP, SAVING, STEPPING
from zerotoolsd.trainer.checkpoints.save_checkpoint import Saved
from zerotoolsd.trainer.engine.engine_interface import Rewards, StepResult
from zerotoolsd.trainer.engine.start_from_other_program import ForeignStart
from zerotoolsd.trainer.evaluation.evaluate import EvaluationResult
from zerotoolsd.trainer.model.predict_state_memory import Prediction
from zerotoolsd.trainer.rank.notify_supervisor import Notifier, resident_bytes
from zerotoolsd.trainer.rank.rank_settings import Rank
from zerotoolsd.trainer.reporting.mfu import Utilization
from zerotoolsd.trainer.reporting.trackers.tracker_feed import TrackerFeed

LOG_SECONDS = 1.0
READING_SECONDS = 30.0
GIB = 1 << 30
AT_SAVE = "at_save"
"""How a checkpoint was verified: its structure was checked when it was saved, and digests were
recorded.
"""
LONGEST_WHY = 1000
_PHASES = {
    "init": "importing",
    "load": "loading",
    "train": STEPPING,
    "eval": EVALUATING,
    "save": SAVING,
    "done": "finishing",
    "stopped": "finishing",
}
_PREPARING = {
    "loading": "loading",
    "reading the data": "reading the data",
    "taking the first step": FIRST_STEP,
    "compiling": "compiling",
    "waiting for": "compiling",
}
"""The phases of activities before the first step, keyed by the beginning of the activity's text."""


class Reporter:
    """Reports each event of a rank, as a log line and as a datagram to the supervisor."""

    def __init__(self, rank: Rank, notifier: Notifier, *, steps: int | None) -> None:
        self._leads = rank.leads_node
        self._notifier = notifier
        self._steps = steps or 0
        self._logged = 0.0
        self._timer = StepTimer()
        self._metrics: Metrics | None = None
        self._trackers: Sequence[TrackerFeed] = ()
        self._utilization: Utilization | None = None
        self.state: Prediction | None = None
        self.has_stepped = False
        self.doing: str | None = None
        self._is_warm = False
        self._reported_reading = -READING_SECONDS

    def write_to(self, metrics: Metrics) -> None:
        """From now on, also write the results of steps into `metrics`. Only rank 0 calls it."""
        self._metrics = metrics

    def track(self, trackers: Sequence[TrackerFeed]) -> None:
        """From now on, also send the results of steps to `trackers` (wandb, MLflow). Only rank 0
        calls it.
        """
        self._trackers = trackers

    def end_tracking(self) -> None:
        """Let the trackers end, and wait until they have written their data."""
        trackers, self._trackers = self._trackers, ()
        for tracker in trackers:
            if (problem := tracker.close()) is not None:
                self.log_line(f"{tracker.name}: may lack the last steps: {problem}")

    def measure_by(self, utilization: Utilization | None) -> None:
        """From now on, also report the MFU with each step, unless `utilization` is None."""
        self._utilization = utilization

    def expect(self, steps: int) -> None:
        """Set the total number of steps of the run."""
        self._steps = steps

    def expect_state(self, state: Prediction) -> None:
        """Report `state`, the predicted memory of a rank's state, unless it was reported
        already.
        """
        if state != self.state:
            self.log_line(str(state))
        self.state = state

    def log_line(self, line: str) -> None:
        if self._leads:
            print(line, flush=True)

    def enter(self, phase: str) -> None:
        """Report that a phase begins: init, load, train, eval, save, done or stopped."""
        for tracker in self._trackers if phase in ("done", "stopped") else ():
            tracker.ends_as(phase)
        if phase == "train" and not self._is_warm:
            self._notifier.heartbeat_writer.enter(FIRST_STEP)
        else:
            self._notifier.heartbeat_writer.enter(_PHASES[phase])
        self._notifier.enter(phase)

    def warmed_up(self) -> None:
        """Record that from now on all steps take about the same time."""
        self._is_warm = True
        self._notifier.heartbeat_writer.enter(STEPPING)

    def prepares(self, doing: str) -> None:
        """Report an activity before the first step that may take minutes, such as `loading the
        weights`.
        """
        self.doing = doing
        found = (phase for word, phase in _PREPARING.items() if doing.startswith(word))
        self._notifier.heartbeat_writer.enter(next(found, "preparing"), doing)
        if self._leads:
            self._notifier.event("phase", doing=doing)

    def reads(self, how_far: str) -> None:
        """Report the progress of reading the data, for example `420 of 1000 MB, 8.1 MB/s, 71s
        left`.
        """
        doing = f"reading the data: {how_far}"
        self.prepares(doing)
        now = time.monotonic()
        if now - self._reported_reading >= READING_SECONDS:
            self._reported_reading = now
            self.log_line(doing)

    def at(self, step: int) -> None:
        """Record that `step` optimizer steps are completed."""
        self._notifier.step = step
        self._notifier.heartbeat_writer.beat(step)

    def stepped(self, step: int, outcome: StepResult, tokens: int, seconds: float) -> None:
        """Report the result of step `step`, counted from 1, which took `seconds` and had `tokens`
        tokens on all ranks together.
        """
        self.at(step)
        self.has_stepped = True
        if not self._leads:
            self._notifier.heartbeat()
            return
        self._timer.step_done(step, time.monotonic())
        peak = torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else None
        rate = tokens / seconds
        scale = outcome.loss_scale
        mfu = None if self._utilization is None else self._utilization.of(rate)
        fields = {
            "loss": outcome.loss,
            "grad_norm": outcome.grad_norm,
            "lr": outcome.learning_rate,
            **({} if scale is None else {"loss_scale": scale, "skipped_steps": outcome.skipped}),
            **({} if outcome.rewards is None else outcome.rewards.fields()),
            "tokens_per_second": rate,
            "step_seconds": seconds,
            **({} if mfu is None else {"mfu": mfu}),
            "gpu_peak_bytes": peak,
        }
        left = self._timer.seconds_left(self._steps)
        self._notifier.event("step", steps=self._steps, seconds_left=left, **fields)
        self._write(step, {**fields, "host_bytes": resident_bytes()})
        if outcome.is_skipped:
            self.log_line(f"step {step}/{self._steps} skipped: {_why_skipped(outcome)}")
            return
        now = time.monotonic()
        if step != self._steps and now - self._logged < LOG_SECONDS:
            return
        self._logged = now
        gpu = "" if peak is None else f"  gpu {peak / GIB:.2f} GiB"
        used = "" if mfu is None else f"MFU {mfu:.1%}  "
        scaled = "" if scale is None else f"scale {scale:g}  "
        if outcome.rewards is not None:
            scaled += f"{_of_rewards(outcome.rewards)}  "
        self.log_line(
            f"step {step}/{self._steps}  loss {outcome.loss:.4f}  lr {outcome.learning_rate:.2e}  "
            f"grad {outcome.grad_norm:.3f}  {scaled}{rate:,.0f} tokens/s  {used}"
            f"host {resident_bytes() / GIB:.2f} GiB{gpu}"
        )

    def alive(self) -> None:
        """Report that a long activity still makes progress."""
        self._notifier.heartbeat()

    def evaluated(self, step: int, found: EvaluationResult) -> None:
        """Report the result of the evaluation after step `step`."""
        predicted = found.predicted
        if self._leads:
            self._notifier.event(
                "eval",
                loss=found.loss,
                perplexity=found.perplexity,
                sequences=found.sequences,
                tokens=found.tokens,
                seconds=found.seconds,
                **({} if found.rewards is None else found.rewards.fields()),
                **({} if predicted is None else predicted.fields()),
            )
        self.log_line(f"evaluated step {step}: loss {found.loss:.4f}  {_of_evaluation(found)}")
        if predicted is not None:
            self.log_line(f"predicted step {step}: {predicted}")
        scores = {} if predicted is None else predicted.scores.values()
        rewards = {} if found.rewards is None else found.rewards.fields()
        measured = {"loss": found.loss, "perplexity": found.perplexity, **rewards, **scores}
        self._write(step, {f"eval_{name}": value for name, value in measured.items()})

    def _write(self, step: int, fields: dict[str, Any]) -> None:
        known = {name: value for name, value in fields.items() if value is not None}
        for tracker in self._trackers:
            lost = tracker.append(step, scalars_of(known))
            if lost is not None:
                self.log_line(
                    f"{tracker.name}: lacks steps from {step} on ({lost}); training continues"
                )
        if self._metrics is None:
            return
        line = {"time": time.time(), **known}
        problem = self._metrics.append(step, line)
        if problem is not None:
            self.log_line(
                f"metrics are missing from step {step} on ({problem}); training continues"
            )

    def saved(self, saved: Saved, stall_seconds: float) -> None:
        """Report a committed checkpoint. Training was paused for `stall_seconds`."""
        if self._metrics is not None:
            self._metrics.sync()
        step, done = saved.step, saved.committed
        if self._leads:
            self._notifier.event(
                "checkpoint",
                step=step,
                path=str(done.path),
                bytes=done.size_bytes,
                seconds=saved.seconds,
                stall_seconds=stall_seconds,
                verified=None if done.doubt else AT_SAVE,
                not_verified=done.doubt and done.doubt[:LONGEST_WHY],
            )
        size = done.size_bytes / 2**20
        self.log_line(
            f"saved step {step}: {done.path} ({size:.1f} MiB in {saved.seconds:.2f} s, training "
            f"waited {stall_seconds:.2f} s)"
        )
        if done.note is not None:
            self.log_line(
                f"the checkpoint of step {step} is complete, but a later task failed: {done.note}"
            )

        if done.doubt is not None:
            self.log_line(
                f"the checkpoint of step {step} did not pass its verification, so older "
                "checkpoints are kept: "
                f"{done.doubt}"
            )

    def save_failed(self, step: int, why: str) -> None:
        """Report that the checkpoint of `step` could not be written. The run continues."""
        if self._leads:
            self._notifier.event("save_failed", step=step, why=why)
        self.log_line(f"step {step} could not be saved ({why}); training continues")

    def skipped(self, path: Path, why: str) -> None:
        """Report that the checkpoint at `path` is damaged and is not used."""
        if self._leads:
            self._notifier.event("skipped_checkpoint", path=str(path), why=why)
        self.log_line(f"skipped {path}: {why}")

    def resumed(
        self,
        path: Path,
        record: JobRecord,
        world_size: int,
        same_rng: bool,
        verified: str | None = None,
    ) -> None:
        """Report the checkpoint that the run resumes from.

        `same_rng` is True if the states of the random number generators are restored. `verified`
        says how the bytes of the checkpoint were checked.
        """
        self.at(record.step)
        rng = "restored" if same_rng else "reseeded"
        if self._leads:
            self._notifier.event(
                "resumed",
                path=str(path),
                saved_world_size=record.world_size,
                rng=rng,
                verified=verified,
            )
        self.log_line(
            f"resumed at step {record.step} from {path}: saved at world size "
            f"{record.world_size}, now {world_size}; random numbers {rng}"
            + ("" if verified is None else f"; verified ({verified})")
        )

    def resumed_foreign(self, start: ForeignStart, world_size: int) -> None:
        """Report that the run continues from a checkpoint of another program."""
        record, directory = start.record, start.run.directory
        self.at(record.step)
        if self._leads:
            self._notifier.event(
                "resumed", path=str(directory), made_from=record.made_from, rng="reseeded"
            )
        self.log_line(
            f"resumed at step {record.step} from {directory}: {record.made_from}, saved by another "
            f"program, now at world size {world_size}"
        )
        for note in start.notes:
            self.log_line(f"note: {note}")

    def event(self, name: str, **fields: Any) -> None:
        """Send the event `name` with its fields to the supervisor."""
        self._notifier.event(name, **fields)


def _of_rewards(rewards: Rewards) -> str:
    margin = rewards.chosen - rewards.rejected
    return f"margin {margin:.3f}  accuracy {rewards.right:.0%}"


def _of_evaluation(found: EvaluationResult) -> str:
    if found.rewards is not None:
        took = f"{count_text(found.sequences, 'pair')}, {found.seconds:.2f} s"
        return f"{_of_rewards(found.rewards)}  ({took})"
    perplexity = "too large" if found.perplexity is None else f"{found.perplexity:.4f}"
    return (
        f"perplexity {perplexity}  ({count_text(found.sequences, 'sequence')}, "
        f"{found.tokens} tokens, {found.seconds:.2f} s)"
    )


def _why_skipped(outcome: StepResult) -> str:
    so_far = f"({outcome.skipped} skipped so far)"
    if outcome.loss_scale is not None and math.isfinite(outcome.loss):
        return f"gradients overflowed at loss scale {outcome.loss_scale:g} {so_far}"
    return f"its loss is {outcome.loss:g}, its gradient norm {outcome.grad_norm:g} {so_far}"


class Phases:
    """Measures how long each phase of the start takes.

    The first phase began at `started`, a value of `time.monotonic`.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._last = started
        self._seconds: dict[str, float] = {}

    def done(self, name: str) -> None:
        """Record that the phase `name` has ended. The next phase begins now."""
        now = time.monotonic()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self._seconds.items())
        return f"{self._last - self._started:.2f} s: {parts}"

"""A callback for the Trainer of Lightning, of `lightning.pytorch` or of `pytorch_lightning`.

    from zerotools import worker
    from zerotools.integrations.lightning import ZerotoolsCallback

    trainer = Trainer(..., callbacks=[ZerotoolsCallback()])
    trainer.fit(model, ckpt_path=worker.resume_from())

Outside of a job it does nothing.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import threading
import time
from typing import Any

from zerotools import worker
from zerotools.integrations.agree_between_ranks import TrainingRanks


def _callback_class() -> Any:
    """Return the class `Callback` of the Lightning package that the program has imported. If it has
    imported neither package, return the class of an installed package.
    """
    uses_old_name = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    try:
        if not uses_old_name:
            from lightning.pytorch.callbacks import Callback

            return Callback
    except ModuleNotFoundError as error:
        if error.name not in ("lightning", "lightning.pytorch"):
            raise
    try:
        from pytorch_lightning.callbacks import Callback as CallbackOfOldName
    except ModuleNotFoundError as error:
        if error.name != "pytorch_lightning":
            raise
        raise ModuleNotFoundError(
            "zerotools.integrations.lightning needs Lightning: pip install lightning",
            name="lightning",
        ) from None
    return CallbackOfOldName


_VALIDATION = re.compile(r"(?:val|valid|validation|eval)[_/]")
_LOG_EVERY_STEPS = 50
_HEARTBEAT_SECONDS = 2.0
_LEFT_OUT = ("step", "steps")


class ZerotoolsCallback(_callback_class()):  # type: ignore[misc]  # chosen when it is imported
    """Reports steps, losses, evaluations and checkpoints to the daemon, and stops the training when
    the daemon asks.

    Each optimizer step is reported. Every `log_every_n_steps` steps, the average loss of rank 0 and
    the metrics of the module are reported too. When the job is stopped, a checkpoint
    `stopped-step=N.ckpt` is saved in the directory of the other checkpoints, and `fit` returns.
    """

    def __init__(self) -> None:
        self._is_training = False
        self._is_stopping = False
        self._ranks: Any = None
        self._steps: int | None = None
        self._reported = 0
        self._loss: Any = 0.0
        self._loss_since = 0
        self._before: dict[str, float] = {}
        self._validated: set[str] = set()
        self._unwritten: list[tuple[int, str, Any]] = []
        self._phase_sent = 0.0
        self._limit_val_batches: Any = None

    @worker.never_raises
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Wrap `trainer.save_checkpoint`, so that every save is reported."""
        if not worker.in_job() or stage != "fit" or "save_checkpoint" in vars(trainer):
            return
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def save_and_report(filepath: Any, *arguments: Any, **named: Any) -> Any:
            before = _stamp(filepath)
            worker.phase("save")
            done = save(filepath, *arguments, **named)
            weights_only = arguments[0] if arguments else named.get("weights_only")
            self._after_save(trainer, filepath, before, bool(weights_only))
            return done

        trainer.save_checkpoint = save_and_report

    @worker.never_raises
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Undo the changes to the trainer: the wrapped `save_checkpoint`, and the limit of
        validation batches.
        """
        vars(trainer).pop("save_checkpoint", None)
        if self._is_stopping:
            trainer.limit_val_batches = self._limit_val_batches
        self._is_training = self._is_stopping = False
        self._ranks = None

    @worker.never_raises
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Undo the changes to the trainer after an error, because Lightning then does not call
        `teardown`.
        """
        self.teardown(trainer, pl_module, "fit")

    @worker.never_raises
    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Start to listen for a request to stop."""
        self._begin(trainer)

    @worker.never_raises
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start to count steps, from the step that the training resumes from."""
        if not worker.in_job():
            return
        self._begin(trainer)
        self._is_stopping = False
        self._steps = _total_steps(trainer, pl_module)
        self._reported = self._loss_since = trainer.global_step
        self._loss = 0.0
        self._is_training = True
        worker.phase("train")

    def _begin(self, trainer: Any) -> None:
        if not worker.in_job() or self._ranks is not None:
            return
        self._ranks = TrainingRanks(trainer.world_size, trainer.strategy.root_device)
        if self._ranks.is_complete:
            _take_back_sigterm(trainer)
        self._ranks.begin(trainer.global_step)

    @worker.never_raises
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report the optimizer step if this batch completed one. Stop the training if the daemon
        requests it.
        """
        if not self._is_training:
            return
        self._report_written()
        loss: Any = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if hasattr(loss, "detach"):
            self._loss = self._loss + loss.detach()  # divided already by the accumulated batches
        step = trainer.global_step
        if step == self._reported:
            return
        every = trainer.log_every_n_steps or _LOG_EVERY_STEPS
        is_due = step // every > self._reported // every or step == self._steps
        self._reported = step
        stops = self._ranks.should_stop(step) and not self._is_stopping
        fields = self._logged(trainer, step) if is_due or stops else {}
        worker.report(step, **({} if self._steps is None else {"steps": self._steps}), **fields)
        if stops:
            self._stop(trainer, step)

    def _logged(self, trainer: Any, step: int) -> dict[str, Any]:
        """Return the average loss of the steps since the last call, and the values that the module
        has logged."""
        fields = {
            name: value
            for name, value in trainer.callback_metrics.items()
            if name not in self._validated and name not in _LEFT_OUT
        }
        for optimizer in trainer.optimizers[:1]:
            fields.setdefault("lr", optimizer.param_groups[0]["lr"])
        if hasattr(self._loss, "detach"):
            fields["loss"] = float(self._loss) / max(1, step - self._loss_since)
        self._loss, self._loss_since = 0.0, step
        return fields

    def _stop(self, trainer: Any, step: int) -> None:
        trainer.save_checkpoint(_path_of_stop(trainer, step))
        # From here on, Lightning acts as if the epoch were complete. So a run that resumes from a
        # later checkpoint would continue at a wrong step.
        self._is_stopping = True
        self._limit_val_batches = trainer.limit_val_batches
        trainer.limit_val_batches = 0  # the time until the job is killed is needed for the save
        trainer.fit_loop.min_epochs = 0
        trainer.fit_loop.epoch_loop.min_steps = 0
        trainer.should_stop = True

    @worker.never_raises
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Record the metrics before an evaluation, so that its new metrics can be found
        afterwards.
        """
        if self._is_training and not trainer.sanity_checking:
            self._enter("eval")
            self._before = _numbers(trainer.callback_metrics)

    @worker.never_raises
    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Report from time to time that an evaluation is running, so that a long evaluation does
        not look stalled.
        """
        if self._is_training and time.monotonic() - self._phase_sent > _HEARTBEAT_SECONDS:
            self._enter("eval")

    @worker.never_raises
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the metrics that the evaluation has changed. A prefix such as `val_` is removed
        from their names.
        """
        if not self._is_training or trainer.sanity_checking:
            return
        found = _numbers(trainer.callback_metrics)
        changed = {name for name, value in found.items() if self._before.get(name) != value}
        self._validated |= changed
        metrics = {_VALIDATION.sub("", n, 1): v for n, v in found.items() if n in self._validated}
        kept = {name: value for name, value in metrics.items() if name not in _LEFT_OUT}
        worker.report_evaluation(trainer.global_step, **kept)
        self._enter("train")

    @worker.never_raises
    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the checkpoints that were written in the background. Lightning has waited until
        they are complete.
        """
        if self._is_training:
            self._report_written()
            worker.phase("done")

    @worker.never_raises
    def _after_save(self, trainer: Any, path: Any, before: Any, weights_only: bool) -> None:
        """Record a checkpoint that will be reported when it is on the disk. All ranks have saved
        it, because `save_checkpoint` ends with a barrier. `before` is the `_stamp` of the path
        before the save."""
        where = os.fspath(path)
        if not weights_only and not self._is_stopping and "://" not in where:
            self._unwritten.append((trainer.global_step, where, before))
            self._report_written()
        worker.phase("train")

    def _report_written(self) -> None:
        """Report the recorded checkpoints that are on the disk. A checkpoint may not be there yet,
        because `AsyncCheckpointIO` writes checkpoints in a thread.
        """
        waiting = []
        for step, path, before in self._unwritten:
            if _stamp(path) in (None, before) and not os.path.isdir(path):  # noqa: PTH112
                waiting.append((step, path, before))
            else:
                worker.checkpoint_written(path, step)
        self._unwritten = waiting

    def _enter(self, phase: str) -> None:
        self._phase_sent = time.monotonic()
        worker.phase(phase)


def _stamp(path: Any) -> tuple[int, int] | None:
    """Return values that differ after Lightning has replaced the file by a rename; None if the file
    does not exist."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _take_back_sigterm(trainer: Any) -> None:
    """Restore the handler of SIGTERM. Lightning's own handler ends the training without a
    checkpoint.
    """
    if threading.current_thread() is threading.main_thread():
        before = trainer._signal_connector._original_handlers.get(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _path_of_stop(trainer: Any, step: int) -> str:
    directory = getattr(trainer.checkpoint_callback, "dirpath", None)
    if not directory or "://" in str(directory):
        directory = os.path.join(trainer.default_root_dir, "checkpoints")  # noqa: PTH118
    return os.path.join(directory, f"stopped-step={step}.ckpt")  # noqa: PTH118


def _total_steps(trainer: Any, pl_module: Any) -> int | None:
    if not pl_module.automatic_optimization and len(trainer.optimizers) > 1:
        return None  # each optimizer's step counts
    steps = trainer.estimated_stepping_batches
    return int(steps) if 0 < steps < float("inf") else None


def _numbers(metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}

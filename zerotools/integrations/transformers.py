"""A callback for the Trainer of transformers, and for its subclasses, such as the trainers of TRL.

    from zerotools import worker
    from zerotools.integrations.transformers import ZerotoolsCallback

    trainer = Trainer(..., callbacks=[ZerotoolsCallback()])
    trainer.train(resume_from_checkpoint=worker.resume_from())

Outside of a job it does nothing. Add it on every rank.
"""

from __future__ import annotations

import os
import time
from typing import Any

from zerotools import worker
from zerotools.integrations.agree_between_ranks import SAVE_SECONDS, TrainingRanks

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "zerotools.integrations.transformers needs transformers: pip install transformers",
        name="transformers",
    ) from None

_NAMES = {
    "learning_rate": "lr",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
    "rewards/margins": "reward_margin",
    "rewards/accuracies": "reward_accuracy",
}
"""Names of values in the logs of transformers and TRL, each with the name that zerotools shows."""
_LEFT_OUT = ("step", "steps", "total_flos", "num_input_tokens_seen", "num_tokens")
_OF_SPEED = ("_per_second", "_preparation_time", "_compilation_time")
_HEARTBEAT_SECONDS = 2.0


class ZerotoolsCallback(TrainerCallback):  # type: ignore[misc]  # its types are not followed
    """Reports steps, losses, evaluations and checkpoints to the daemon, and stops the training when
    the daemon asks.

    Each step is reported when it is done, with the loss if the Trainer logs it. A checkpoint is
    reported when all ranks have written their files. When the job is stopped, the Trainer saves
    after the current step without an evaluation, and `train` returns.
    """

    def __init__(self) -> None:
        self._is_training = False
        self._is_stopping = False
        self._ranks: Any = None
        self._saved: list[tuple[int, str, str]] = []
        self._seen: dict[str, tuple[int, float]] = {}
        self._phase = ""
        self._phase_sent = 0.0

    @worker.never_raises
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start to listen for a request to stop."""
        self._is_training = False
        if not worker.in_job() or state.is_hyper_param_search:
            return
        self._is_stopping = False
        self._saved.clear()
        self._seen.clear()
        self._count("num_input_tokens_seen", state.global_step, state.num_input_tokens_seen)
        self._enter("train")
        self._ranks = TrainingRanks(args.world_size, args.device)
        self._ranks.begin(state.global_step)
        self._is_training = True

    @worker.never_raises
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Report the step, unless `on_log` will report it with its loss. Stop the training if the
        daemon requests it.
        """
        if not self._is_training:
            return None
        self._settle()
        if self._ranks.should_stop(state.global_step) and not control.should_training_stop:
            self._is_stopping = True
            control.should_log = control.should_save = control.should_training_stop = True
            control.should_evaluate = (
                False  # the time until the job is killed is needed for the save
            )
        if not control.should_log:
            self._report(state, {})
            self._enter(_next_phase(control))
        return control

    @worker.never_raises
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """After a stop, keep the Trainer from evaluating and saving again."""
        if not self._is_training:
            return None
        if self._is_stopping:
            control.should_evaluate = control.should_save = False
        self._enter(_next_phase(control))
        return control

    @worker.never_raises
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Report the step with the loss and the other values that the Trainer or a subclass
        logs.
        """
        if self._is_training and logs and "loss" in logs:
            self._report(state, logs)
            self._enter(_next_phase(control))

    @worker.never_raises
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report from time to time that an evaluation is running, so that a long evaluation does
        not look stalled.
        """
        if worker.in_job():
            self._enter("eval", again=True)

    @worker.never_raises
    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Report the metrics without their prefix `eval_`."""
        if not worker.in_job() or state.is_hyper_param_search:
            return
        found = {}
        for name, value in (metrics or {}).items():
            short = name[len("eval_") :] if name.startswith("eval_") else name
            if short not in (*_LEFT_OUT, "epoch") and not short.endswith(_OF_SPEED):
                found["seconds" if short == "runtime" else _NAMES.get(short, short)] = value
        worker.report_evaluation(state.global_step, **found)
        self._enter(_next_phase(control) if self._is_training else "done")

    @worker.never_raises
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record a checkpoint that will be reported when the other ranks have written their files,
        too."""
        if not self._is_training:
            return
        step = state.global_step
        path = os.path.join(args.output_dir, f"checkpoint-{step}")  # noqa: PTH118  # any str
        self._saved.append((step, path, self._ranks.count_saved(step)))
        self._settle()
        self._enter(_next_phase(control))

    @worker.never_raises
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the last checkpoint after the other ranks have written their files."""
        if self._is_training:
            self._settle(SAVE_SECONDS)
            self._is_training = False
            self._enter("done")

    def _settle(self, seconds: float = 0.0) -> None:
        """Report the recorded checkpoints that all ranks have saved. Wait at most `seconds` for the
        other ranks.
        """
        waiting = []
        for step, path, key in self._saved:
            if not self._ranks.have_saved(key, seconds) or not _is_committed(path):
                waiting.append((step, path, key))
            elif os.path.isdir(path):  # noqa: PTH112  # save_total_limit may have removed it
                worker.checkpoint_written(path, step)
        self._saved = waiting

    def _report(self, state: Any, logs: Any) -> None:
        step = state.global_step
        fields = {
            _NAMES.get(name, name): value
            for name, value in logs.items()
            if name not in _LEFT_OUT and not name.startswith("train_")
        }
        tokens = self._count("num_input_tokens_seen", step, state.num_input_tokens_seen)
        if not tokens and "num_tokens" in logs:  # TRL counts them itself
            tokens = self._count("num_tokens", step, logs["num_tokens"])
        if tokens:
            fields["tokens"] = tokens
        worker.report(step, steps=state.max_steps, **fields)
        self._phase = "train"

    def _count(self, name: str, step: int, seen: float) -> float:
        """Return the average number of tokens per step since the last call with `name`; 0 if it is
        unknown."""
        before, self._seen[name] = self._seen.get(name), (step, seen)
        if before is None or step <= before[0]:
            return 0
        return max(0, seen - before[1]) / (step - before[0])

    def _enter(self, phase: str, *, again: bool = False) -> None:
        """Report the phase of the training if it has changed. With `again`, repeat the report every
        two seconds.
        """
        now = time.monotonic()
        if phase != self._phase or (again and now - self._phase_sent > _HEARTBEAT_SECONDS):
            self._phase, self._phase_sent = phase, now
            worker.phase(phase)


def _next_phase(control: Any) -> str:
    """Return the phase that follows. If both are due, the Trainer evaluates before it saves."""
    return "eval" if control.should_evaluate else "save" if control.should_save else "train"


def _is_committed(path: str) -> bool:
    """Return True unless DeepSpeed is still writing this checkpoint in the background."""
    try:
        names = os.listdir(path)  # noqa: PTH208
    except OSError:
        return True
    return "latest" in names or not any(name.startswith("global_step") for name in names)

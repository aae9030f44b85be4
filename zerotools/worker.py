"""Connect a training program to the daemon: report progress, and ask whether the job must stop.

For the Trainer of transformers and for Lightning, `zerotools.integrations` has callbacks that make
these calls.

    from zerotools import worker

    for step in range(1, steps + 1):
        loss = train_one_step()
        worker.report(step, steps=steps, loss=loss)
        if worker.should_stop():
            save("checkpoints/last.pt")
            worker.checkpoint_written("checkpoints/last.pt", step)
            break

Outside of a job every call does nothing. No call ever raises. The module needs only the standard
library, and no syntax newer than Python 3.9. In a program of several ranks, all ranks may make
every call. Only rank 0 of a machine (`LOCAL_RANK` in the environment, or `RANK`) reports steps and
checkpoints.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from zerotools.core.step_timer import StepTimer
from zerotools.io.telemetry.datagram_sender import (
    LARGEST_DATAGRAM,
    Sender,
    encode_datagram,
    resident_bytes,
)
from zerotools.io.telemetry.step_metrics_files import Metrics

__all__ = [
    "checkpoint_written",
    "finished",
    "in_job",
    "phase",
    "report",
    "report_evaluation",
    "resume_from",
    "should_stop",
]

HEARTBEAT_SECONDS = 2.0
_TAKEN = ("event", "phase", "rank", "rss_bytes", "time")
_KNOWN = ("steps", "loss", "grad_norm", "lr", "loss_scale", "tokens_per_second", "mfu")

Value = TypeVar("Value")


def never_raises(call: Callable[..., Value]) -> Callable[..., Value | None]:
    """Decorate `call` so that it prints an exception and returns None instead of raising it."""

    @functools.wraps(call)
    def guarded(*args: Any, **kwargs: Any) -> Value | None:
        try:
            return call(*args, **kwargs)
        except Exception as error:  # no error here may end a user's training
            print(f"zerotools.worker: {type(error).__name__}: {error}", file=sys.stderr)
            return None

    return guarded


class Worker:
    """One process of a job, or a process outside of a job. The variables in `environment` identify
    the job.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        run_dir = environment.get("ZEROTOOLS_RUN_DIR")
        self._run_dir = Path(run_dir) if run_dir else None
        self._resume_from = environment.get("ZEROTOOLS_RESUME_FROM") or None
        self._rank = int(environment.get("LOCAL_RANK") or environment.get("RANK") or 0)
        self._sender = Sender(environment.get("ZEROTOOLS_NOTIFY"))
        self._phase = "init"
        self._step = 0
        self._last_loss: dict[str, Any] = {}
        self._evaluation: tuple[int, dict[str, Any]] = (0, {})
        self._sent = 0.0
        self._timer = StepTimer()
        self._metrics: Metrics | None = None
        self._told = False
        self._listens = False

    def report(self, step: int, **metrics: Any) -> None:
        """See the function `report`."""
        if self._run_dir is None:
            return
        now = time.monotonic()
        self._step = int(step)
        seconds = self._timer.step_done(self._step, now)
        self._phase = "train"
        if self._rank:
            if now - self._sent >= HEARTBEAT_SECONDS:
                self._send({})
            return
        fields = {n: _plain(value) for n, value in metrics.items() if n not in _TAKEN}
        fields = {**self._measured(seconds, fields), **fields}
        if "loss" in fields:
            self._last_loss = {"last_loss": fields["loss"]}
        self._send({"event": "step", **({} if "loss" in fields else self._last_loss), **fields})
        self._write(self._step, {**fields, "host_bytes": resident_bytes()})

    def report_evaluation(self, step: int, **metrics: Any) -> None:
        """See the function `report_evaluation`."""
        if self._run_dir is None or self._rank:
            return
        number = int(step)
        new = {n: _plain(value) for n, value in metrics.items() if n not in _TAKEN}
        before, known = self._evaluation
        known = {**known, **new} if before == number else new
        self._evaluation = (number, known)
        self._send({"event": "eval", **known, "step": number}, wait=True)
        self._write(number, {f"eval_{name}": value for name, value in new.items()})

    def _measured(self, seconds: float | None, fields: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"step_seconds": seconds, "gpu_peak_bytes": _gpu_peak()}
        tokens, steps = fields.get("tokens"), fields.get("steps")
        if seconds and isinstance(tokens, (int, float)):
            found["tokens_per_second"] = tokens / seconds
        if isinstance(steps, int):
            found["seconds_left"] = self._timer.seconds_left(steps)
        return {name: value for name, value in found.items() if value is not None}

    def _write(self, step: int, fields: Mapping[str, Any]) -> None:
        if self._metrics is None:
            self._metrics = _metrics_of(self._run_dir or Path())
        shown = {name: value for name, value in fields.items() if name not in _NOT_WRITTEN}
        problem = self._metrics.append(step, {"time": time.time(), **shown})
        if problem is not None:
            print(f"zerotools.worker: no metrics are written: {problem}", file=sys.stderr)

    @property
    def in_job(self) -> bool:
        """True if this process belongs to a job."""
        return self._run_dir is not None

    def phase(self, name: str) -> None:
        """See the function `phase`."""
        self._phase = str(name)
        self._send({})

    def should_stop(self) -> bool:
        """See the function `should_stop`."""
        if self._run_dir is None:
            return False
        self._listen()
        return self._told or (self._run_dir / "stop").exists()

    def _listen(self) -> None:
        """Install a handler for SIGTERM, so that the signal no longer ends the process. Only the
        first call in the main thread has an effect.
        """
        if self._listens or threading.current_thread() is not threading.main_thread():
            return
        self._listens = True
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_term)
            atexit.register(self._ignore_late_term)

    def _ignore_late_term(self) -> None:
        # The interpreter replaces handlers by the default when it ends: a late signal would turn
        # the exit of a program that has saved into a failure.
        if signal.getsignal(signal.SIGTERM) == self._on_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _on_term(self, *_: object) -> None:
        self._told = True

    def checkpoint_written(self, path: Any, step: int | None = None) -> None:
        """See the function `checkpoint_written`."""
        if self._run_dir is None or self._rank:
            return
        where = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  # links stay as they are
        number = self._step if step is None else int(step)
        self._send({"event": "checkpoint", "step": number, "path": where}, wait=True)
        if self._metrics is not None:
            self._metrics.sync()

    def finished(self) -> None:
        """See the function `finished`."""
        if self._run_dir is None or self._rank:
            return
        self._phase = "done"
        self._send({"event": "finished"}, wait=True)
        if self._metrics is not None:
            self._metrics.sync()

    def resume_from(self) -> str | None:
        """See the function `resume_from`."""
        return self._resume_from

    def close(self) -> None:
        """Close the connection. Later calls send and write nothing."""
        self._sender.close()
        if self._metrics is not None:
            self._metrics.close()

    def _send(self, fields: Mapping[str, Any], *, wait: bool = False) -> None:
        if not self._sender.connected:
            return
        common = {
            "rank": self._rank,
            "time": time.time(),
            "phase": self._phase,
            "step": self._step,
            "rss_bytes": resident_bytes(),
        }
        self._sent = time.monotonic()
        tree = {**common, **fields}
        if len(encode_datagram(tree)) > LARGEST_DATAGRAM:
            tree = {k: v for k, v in tree.items() if k in common or k in _KNOWN or k == "event"}
        self._sender.send(tree, wait=wait)


_NOT_WRITTEN = ("steps", "seconds_left")


def _plain(value: Any) -> Any:
    """Return `value` as a JSON value. Tensors and arrays of one element become numbers."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    try:
        # torch warns about a conversion that would lose the gradients.
        return float(value.detach() if hasattr(value, "detach") else value)
    except Exception:  # a user's type may raise any exception
        return str(value)[:200]


def _gpu_peak() -> int | None:
    """Return the peak memory that torch reserved on the GPU of this process, in bytes. Return None
    if the process uses no GPU.
    """
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    return int(cuda.max_memory_reserved())


def _metrics_of(run_dir: Path) -> Metrics:
    job = json.loads((run_dir / "spec.json").read_text("utf-8"))
    wanted = job.get("metrics", {})
    known = {name: wanted[name] for name in ("jsonl", "tensorboard") if name in wanted}
    return Metrics(Path(job["output_dir"]), **known)


@functools.cache
def _worker() -> Worker:
    return Worker(os.environ)


@never_raises
def report(step: int, **metrics: Any) -> None:
    """Report that step `step` is done. Steps are counted from 1 over the whole run, including steps
    before a resume.

    `metrics` may have any names, and all are written to `metrics.jsonl`. `zerotools show` and
    `submit --follow` show the metrics `steps` (the total number), `loss`, `grad_norm`, `lr`,
    `loss_scale`, `tokens` (of this step, over all ranks) or `tokens_per_second`, and `mfu`. If a
    metric is a tensor on a GPU, the call waits until its value is computed.
    """
    _worker().report(step, **metrics)


@never_raises
def report_evaluation(step: int, **metrics: Any) -> None:
    """Report the results of an evaluation after step `step`: `loss`, `perplexity`, `accuracy`, ...

    `zerotools show` shows the newest evaluation. In `metrics.jsonl` the names begin with `eval_`.
    Several calls for the same step count as one evaluation.
    """
    _worker().report_evaluation(step, **metrics)


def in_job() -> bool:
    """Return whether this process belongs to a job. Outside of a job all other calls do nothing."""
    return bool(_in_job())


@never_raises
def _in_job() -> bool:
    return _worker().in_job


@never_raises
def phase(name: str) -> None:
    """Report that another phase begins: `"load"`, `"train"`, `"eval"` or `"save"`."""
    _worker().phase(name)


def should_stop() -> bool:
    """Return whether the job must stop. If it must, save a checkpoint, call `checkpoint_written`,
    and exit with status 0.

    Call this function after every step. It may return True at different steps on different ranks,
    so let rank 0 decide, or let the ranks agree by an all-reduce. After the first call, SIGTERM no
    longer ends this process, unless the program has its own handler for SIGTERM.
    """
    return bool(_should_stop())


@never_raises
def _should_stop() -> bool:
    return _worker().should_stop()


@never_raises
def checkpoint_written(path: Any, step: int | None = None) -> None:
    """Report that the checkpoint at `path` is complete: all ranks have written their parts, and it
    will not change.

    `step` is the step of the checkpoint; the default is the last reported step. If the job starts
    again, `resume_from()` returns the newest reported checkpoint.
    """
    _worker().checkpoint_written(path, step)


@never_raises
def finished() -> None:
    """Report that the job is complete: all output is written, and no work is left.

    Make this the last call of the job's last program. A job that is stopped during or after this
    call still succeeds, and does not start again. If a step or a checkpoint is reported after this
    call, the job does not count as complete.
    """
    _worker().finished()


@never_raises
def resume_from() -> str | None:
    """Return the checkpoint to resume from (`ZEROTOOLS_RESUME_FROM`), or None to start from the
    beginning."""
    return _worker().resume_from()

"""The process of a tracker: `python -P tracker_program.py wandb`.

It reads lines from a pipe and logs them. The lines are JSON. The first line describes the run:
`project`, `id`, `name`, `directory`, `config` (the keys of the job), `offline` (why there is no
login, or null), `first` (the first step in the pipe) and `history` (the path of a `metrics.jsonl`).
Lines with steps follow, `{"step": 12, "fields": {"loss": 2.5}}`, and then `{"end": "done"}` as the
last line. If the last line is missing, the rank has crashed.

Steps before `first` that the tracker lacks are read from the history and logged: all of them in an
offline run of wandb, and otherwise those that were on their way when the rank was killed. So the
tracker has all steps of the run. The program needs only the standard library and the tracker's
package. An error is reported once, and does not affect the rank.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

SAID = 3
"""Exit status of this process if it failed and has logged the reason."""
_BLOCK = 1 << 16
_MOST_METRICS, _MOST_PARAMS = 1000, 100
"""Largest numbers of metrics and params in a request to MLflow (REST API `runs/log-batch`)."""
_LONGEST_VALUE = 500
"""Largest length of a param's value, in characters, that MLflow servers of all versions accept."""
_SERVER_SECONDS = 20
"""Timeout in seconds for a server. It is shorter than the time that the rank waits at its end."""
_TAG = "zerotools.run"
_SECRET = re.compile(r"(?i)(key|token|password|secret)$")
_IN_URL = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_STATUS = {"done": "FINISHED", "stopped": "KILLED"}

Line = Mapping[str, Any]


class TrackedRun(Protocol):
    """The interface of a run at a tracker. Its methods raise errors of the tracker's package."""

    last_step: int | None
    """The newest step that the tracker has: 0 if it has no step, None if this is unknown."""

    def log(self, lines: Sequence[Line]) -> None:
        """Log the numbers of the steps in `lines`."""

    def finish(self, end: str) -> None:
        """End the run at the tracker. `end` is `done`, `stopped` or `failed`."""


class WandbRun:
    """A run of Weights & Biases.

    wandb refuses a step that is not larger than the last one. But if a run continues from an
    earlier step, some steps are logged twice. So the number of the step is logged as a metric,
    `step`, and this metric is the x-axis of all other metrics.
    """

    def __init__(self, opening: Line) -> None:
        import wandb  # takes seconds, in a process for which nothing waits

        entity, _, project = opening["project"].rpartition("/")
        asked = {
            "project": project,
            "entity": entity or None,
            "id": opening["id"],
            "name": opening["name"],
            "resume": "allow",
            "dir": os.environ.get("WANDB_DIR") or opening["directory"],
            "config": opening["config"],
        }
        settings = wandb.Settings(
            console="off", disable_git=True, save_code=False, init_timeout=_SERVER_SECONDS
        )
        if opening["offline"] is not None:
            print_about("wandb", f"logs only into {asked['dir']}/wandb: {opening['offline']}")
            self._run = wandb.init(**asked, settings=settings, mode="offline")
        else:
            try:
                self._run = wandb.init(**asked, settings=settings, mode="online")
            except Exception as error:  # whatever it is, the files are better than nothing
                print_about("wandb", f"logs only into {asked['dir']}/wandb: {_of(error)}")
                self._run = wandb.init(**asked, settings=settings, mode="offline")
        self._run.config.update(opening["config"], allow_val_change=True)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step", step_sync=True)
        self.last_step = _step(self._run.summary.get("step")) if self._run.resumed else 0

    def log(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._run.log({**line["fields"], "step": line["step"]})

    def finish(self, end: str) -> None:
        self._run.summary["ended"] = end
        self._run.finish(exit_code=int(end == "failed"))


class MlflowRun:
    """A run of MLflow. A tag of the run has the run's id.

    If a step is logged twice, MLflow keeps both values with their times. A param keeps its first
    value.
    """

    def __init__(self, opening: Line) -> None:
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # if SQLAlchemy is not installed
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(_SERVER_SECONDS))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # else minutes
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        place = os.environ.get("MLFLOW_TRACKING_URI") or _local_store(Path(opening["directory"]))
        if opening["offline"] is not None:
            print_about("mlflow", f"logs to {place}: {opening['offline']}")
        self._client = MlflowClient(tracking_uri=place)
        experiment = self._experiment(opening["project"])
        known = self._client.search_runs(
            [experiment], f"tags.`{_TAG}` = '{opening['id']}'", max_results=1
        )
        self.last_step: int | None = 0
        if known:
            run = known[0]
            self._client.update_run(run.info.run_id, status="RUNNING")
            self.last_step = self._newest_step(run)
        else:
            run = self._client.create_run(
                experiment, tags={_TAG: opening["id"]}, run_name=opening["name"]
            )
        self._id: str = run.info.run_id
        there = run.data.params
        params = [
            Param(name, value)
            for name, value in _flat(opening["config"])
            if name not in there and value
        ]
        for some in _parts(params, _MOST_PARAMS):
            self._client.log_batch(self._id, params=some)
        print_about("mlflow", f"logs to run {self._id} at {_masked(place)}")

    def _newest_step(self, run: Any) -> int | None:
        names = run.data.metrics
        if not names:
            return 0
        try:
            name = "loss" if "loss" in names else min(names)
            history = self._client.get_metric_history(run.info.run_id, name)
            return max(int(metric.step) for metric in history)
        except Exception:  # whatever it is, the new steps can be logged
            return None

    def _experiment(self, name: str) -> str:
        for _ in range(2):  # two jobs that make it at once
            if (found := self._client.get_experiment_by_name(name)) is not None:
                return str(found.experiment_id)
            try:
                return str(self._client.create_experiment(name))
            except Exception as error:  # that it is there by now
                problem = error
        raise problem

    def log(self, lines: Sequence[Line]) -> None:
        metrics = [
            self._metric(
                name, float(value), int(1000 * line.get("time", time.time())), line["step"]
            )
            for line in lines
            for name, value in line["fields"].items()
        ]
        for some in _parts(metrics, _MOST_METRICS):
            self._client.log_batch(self._id, metrics=some)

    def finish(self, end: str) -> None:
        self._client.set_terminated(self._id, _STATUS.get(end, "FAILED"))


TRACKERS: Mapping[str, type[WandbRun] | type[MlflowRun]] = {"wandb": WandbRun, "mlflow": MlflowRun}


def main(name: str, pipe: int = 0) -> int:
    """Read the lines of `pipe` and log them to the tracker `name`. Return the exit status."""
    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, signal.SIG_IGN)  # ended by the end of the pipe, after its data
    coming = line_batches(pipe)
    opening = next(coming, None)
    if opening is None:
        return 0
    try:
        run: TrackedRun = TRACKERS[name](opening[0])
    except Exception as error:  # any error of the tracker's package; it is reported
        print_about(name, f"gets no steps ({_of(error)}); training continues")
        return SAID
    feeding = Feeding(name, run)
    if run.last_step is not None:
        lacking = range(run.last_step + 1, opening[0]["first"])
        feeding.log_steps(list(earlier_steps(Path(opening[0]["history"]), lacking)))
    feeding.log_steps(opening[1:])
    for lines in coming:
        feeding.log_steps(lines)
    return feeding.finish()


class Feeding:
    """Logs lines to `run`, and reports only the first error."""

    def __init__(self, name: str, run: TrackedRun) -> None:
        self._name, self._run = name, run
        self._end = "failed"
        self._failed = False

    def log_steps(self, lines: Sequence[Line]) -> None:
        """Log the steps among `lines`. Other lines are not logged."""
        steps = [line for line in lines if "step" in line]
        for line in lines:
            self._end = line.get("end", self._end)
        if not steps:
            return
        try:
            self._run.log(steps)
        except Exception as error:  # any error of the tracker's package; it is reported
            if not self._failed:
                first = steps[0]["step"]
                print_about(
                    self._name, f"lacks steps from {first} on ({_of(error)}); training continues"
                )
            self._failed = True

    def finish(self) -> int:
        """End the run at the tracker, and return the exit status of this process."""
        try:
            self._run.finish(self._end)
        except Exception as error:  # any error of the tracker's package; it is reported
            print_about(self._name, f"did not receive the end of the run: {_of(error)}")
            return SAID
        return 0


def line_batches(pipe: int) -> Iterator[list[Line]]:
    """Read the lines of `pipe`, and yield them in lists. Each list has all lines that are available
    at that time.
    """
    rest = b""
    while block := os.read(pipe, _BLOCK):
        *whole, rest = (rest + block).split(b"\n")
        if whole:
            yield [json.loads(line) for line in whole]


def earlier_steps(path: Path, steps: range) -> Iterator[Line]:
    """Yield the lines of `steps` in the file `path`, a `metrics.jsonl`.

    Yields nothing if the file does not exist.
    """
    try:
        with path.open("rb") as file:
            for text in file:
                try:
                    tree = json.loads(text)
                except (ValueError, RecursionError):
                    continue
                if not isinstance(tree, dict) or type(tree.get("step")) is not int:
                    continue
                if tree["step"] in steps:
                    yield _line_of(tree)
    except OSError:
        return


def _step(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None


def _line_of(tree: Mapping[str, Any]) -> Line:
    """Convert `tree`, a line of `metrics.jsonl`, to the form of the lines that rank 0 sends."""
    kinds = (int, float)
    fields = {
        name: value
        for name, value in tree.items()
        if type(value) in kinds and name not in ("step", "time")
    }
    line: dict[str, Any] = {"step": tree["step"], "fields": fields}
    return {**line, "time": tree["time"]} if type(tree.get("time")) in kinds else line


def print_about(name: str, what: str) -> None:
    """Print the text `what` about the tracker `name` to the log of the rank."""
    print(f"{name}: {what}", flush=True)


def _of(error: BaseException) -> str:
    said = _masked(" ".join(str(error).split()))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _masked(text: str) -> str:
    """Return `text` with all secrets of this process's environment variables replaced."""
    for name, value in os.environ.items():
        if _SECRET.search(name) and len(value) > 3:
            text = text.replace(value, "***")
    return _IN_URL.sub("***", text)


def _local_store(directory: Path) -> str:
    try:
        import sqlalchemy  # noqa: F401  # mlflow-skinny comes without
    except ImportError:
        return (directory / "mlruns").resolve().as_uri()
    return f"sqlite:///{(directory / 'mlflow.db').resolve()}"


def _flat(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value is not None:
            yield f"{before}{name}", str(value)[:_LONGEST_VALUE]


def _parts(values: list[Any], size: int) -> Iterator[list[Any]]:
    for begin in range(0, len(values), size):
        yield values[begin : begin + size]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

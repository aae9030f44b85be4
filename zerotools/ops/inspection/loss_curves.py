"""The loss and the learning rate of a run, from the file next to its checkpoints.

metrics.jsonl       of a zerotools job: an object per step and per evaluation
trainer_state.json  of the Hugging Face Trainer: the list `log_history`
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile
from zerotools.io.files.read_json import read_json
from zerotools.io.files.regular_files import read_regular
from zerotools.io.telemetry.step_metrics_files import METRICS
from zerotools.jobs.join_attempt_curves import finite_number, step_of

TRAINER_STATE = "trainer_state.json"
MOST_POINTS = 500
_LARGEST_FILE = 2**27
_KEYS = {"loss": "loss", "eval_loss": "eval_loss", "lr": "lr", "learning_rate": "lr"}

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class LossCurves:
    """The curves of a run. Each is a list of points (step, value) in the order of the steps.

    `source` is the file, and `fault` is the reason if it cannot be read. If there are more than
    MOST_POINTS values, each point is the mean of `averaged` neighbouring values.
    """

    source: Path
    loss: Points = field(default_factory=list)
    eval_loss: Points = field(default_factory=list)
    lr: Points = field(default_factory=list)
    averaged: int = 1
    fault: str | None = None


def loss_curves(checkpoint: Checkpoint) -> LossCurves | None:
    """Return the curves of the checkpoint's run, from a file in its directory or in the directory
    above. Return None if neither directory has such a file.
    """
    path = checkpoint.origin.path
    own = path if path.is_dir() else path.parent
    for directory in dict.fromkeys((checkpoint.root, own, checkpoint.root.parent, own.parent)):
        for name, records in ((METRICS, _of_job), (TRAINER_STATE, _of_trainer)):
            source = directory / name
            if not source.is_file():
                continue
            try:
                found = _curves(source, records(source))
            except (BadFile, OSError, ValueError) as error:
                return LossCurves(source, fault=str(error))
            if found is not None:
                return found
    return None


def _of_job(path: Path) -> Iterator[Any]:
    for line in read_regular(path, _LARGEST_FILE, is_source=False).splitlines():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):  # the last line of a run that is writing now
            continue


def _of_trainer(path: Path) -> Iterable[Any]:
    tree = read_json(path, _LARGEST_FILE, is_source=False)
    history = tree.get("log_history") if isinstance(tree, dict) else None
    return history if isinstance(history, list) else []


def _curves(source: Path, records: Iterable[Any]) -> LossCurves | None:
    values: dict[str, dict[int, float]] = {"loss": {}, "eval_loss": {}, "lr": {}}
    for record in records:
        step = step_of(record) if isinstance(record, Mapping) else None
        if step is None:
            continue
        for key, name in _KEYS.items():
            if (value := finite_number(record.get(key))) is not None:
                values[name][step] = value
    if not (values["loss"] or values["eval_loss"]):
        return None
    group = -(-max(map(len, values.values())) // MOST_POINTS)
    curves = {name: list(_means(sorted(points.items()), group)) for name, points in values.items()}
    return LossCurves(source, curves["loss"], curves["eval_loss"], curves["lr"], group)


def _means(points: Sequence[tuple[float, float]], group: int) -> Iterator[tuple[float, float]]:
    for begin in range(0, len(points), group):
        some = points[begin : begin + group]
        steps, values = zip(*some, strict=True)
        yield sum(steps) / len(some), math.fsum(values) / len(some)

"""A substitute for the job file that a config of another launcher does not have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.estimating.estimating import model_table_of
from zerotools.jobs.imports.combine import JobFile
from zerotools.ops.estimate.model_shape import read_shape

_ANY_DATA = "/"
_MANY_STEPS = 2**62
WITH_CONFIG = ("batch", "sequence_length", "engine", "activation_checkpointing")
"""Options that say what no config has; all else stands in the config."""


def job_with_config(model: str, gpus: int | None, given: Mapping[str, Any]) -> JobFile:
    """Return a job for training `model` on any data, with the options of the command line.

    Raises:
        BadRequest: `model` is only a number of parameters.
    """
    table = model_table_of(model)
    if not table:
        raise BadRequest(
            f"{model}: no such file or directory; with a config of another launcher name a "
            "model directory or its config.json"
        )
    train: dict[str, Any] = {"steps": _MANY_STEPS}
    if given["batch"]:
        train |= {"micro_batch_size": given["batch"], "batch_size": given["batch"] * (gpus or 1)}
    if given["activation_checkpointing"]:
        train["activation_checkpointing"] = True
    tree: dict[str, Any] = {
        "model": table,
        "data": {
            "text": [_ANY_DATA],
            "sequence_length": given["sequence_length"] or read_shape(model).usual_length,
        },
        "train": train,
    }
    if gpus:
        tree["gpus"] = gpus
    if given["engine"]:
        tree["engine"] = given["engine"]
    return JobFile(tree, "the command line", Path.cwd())


def without_placeholders(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of such a job without those that stand for any data and any steps."""
    data = {name: value for name, value in job["data"].items() if name != "text"}
    train = {name: value for name, value in job["train"].items() if name != "steps"}
    return {**job, "data": data, "train": train}

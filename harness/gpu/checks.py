"""The type of a check and of its result, and code that the checks share."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.forkserver import NVIDIA_DEVICE
from harness.launching import ROOT, TINY_LLAMA, Attempt, job

STEPS = 6
GROUPED = {**TINY_LLAMA, "num_key_value_heads": 1}
TEXT = ROOT / "ARCHITECTURE.md"
SAME_SUMS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Makes cuBLAS sum in the same order in each run, also with a second stream."""
CORES = "GPU_CHECK_CORES"
"""The environment variable with the number of CPU cores that a check may use."""
Losses = Mapping[int, float]


class Found(NamedTuple):
    """The result of a check.

    `words` describes the result. `ok` is True if the result is as expected, and None if the check
    could not run. `memory` has lines for the file with memory measurements.
    """

    words: str
    ok: bool | None
    memory: Sequence[str] = ()


Look = Callable[[str, Path], Found]


class Check(NamedTuple):
    """One check: a row of the table.

    Attributes:
        expected: describes the expected result.
        seconds: the longest time that the check may take.
        look: runs the check, with the device and an empty directory.
        not_on_cpu: the reason why a CPU cannot run the check; None if a CPU can.
        shared: whether other checks may run at the same time without a change of the result.
    """

    expected: str
    seconds: float
    look: Look
    not_on_cpu: str | None = None
    shared: bool = False


def own_cores() -> int:
    """Return the number of CPU cores that this check may use; checks that run at the same time use
    all other cores.
    """
    return int(os.environ.get(CORES) or os.cpu_count() or 1)


def tree_of(device: str, precision: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job of one rank and `STEPS` steps on `device`. `changes` are tables of the job
    file.
    """
    train = {"steps": STEPS, "precision": precision, **changes.get("train", {})}
    more = {"model": {"config": GROUPED}, **changes, "train": train}
    tree = job(TEXT, **more)
    if device == "cuda":
        del tree["ranks"]
        tree |= {"device": "cuda", "gpus": 1}
    elif NVIDIA_DEVICE.exists():  # a process of its own, which sees no GPU
        tree["env"] = {"CUDA_VISIBLE_DEVICES": "", **tree.get("env", {})}
    return tree


def same_sums(device: str, tree: dict[str, Any]) -> dict[str, Any]:
    """Change the job `tree` so that two runs are equal bit for bit, and return it.

    Attention kernels that add in a random order are not used.
    """
    tree["model"]["attention"] = "eager"
    if device == "cuda":
        tree["env"] = {**SAME_SUMS, **tree.get("env", {})}
    return tree


def curve(attempt: Attempt) -> dict[int, tuple[float, float]]:
    """Return (loss, gradient norm) for each step of the attempt."""
    return {each["step"]: (each["loss"], each["grad_norm"]) for each in attempt.events("step")}


def distances(wanted: Losses, found: Losses) -> Iterator[float]:
    """Yield the relative difference of each loss; infinity if the loss is missing."""
    for step, loss in wanted.items():
        distance = abs(found.get(step, math.inf) - loss) / loss
        yield distance if math.isfinite(distance) else math.inf


def last_line(text: str) -> str:
    """Return the last line of `text` that is not empty."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no output")


def missing(module: str) -> Found | None:
    """Return the result of a check that needs the module `module`, if it is missing; None if it
    exists.
    """
    from importlib.util import find_spec

    return None if find_spec(module) else Found(f"{module} is not installed", None)

"""The type of a check and of its findings, and the jobs that checks train."""

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
"""Has cuBLAS sum in the same order in each run, also next to a second stream."""
CORES = "GPU_CHECK_CORES"
"""The variable with the number of cores that a check may use."""
Losses = Mapping[int, float]


class Found(NamedTuple):
    """The findings of a check, as text, and whether they are as expected; None: the check could not
    run. `memory` has lines for the file of memory."""

    words: str
    ok: bool | None
    memory: Sequence[str] = ()


Look = Callable[[str, Path], Found]


class Check(NamedTuple):
    """One row: what passes, how many seconds it may take, and why a CPU cannot show it, if it
    cannot. A check that is `shared` gives the same when others run beside it."""

    expected: str
    seconds: float
    look: Look
    not_on_cpu: str | None = None
    shared: bool = False


def own_cores() -> int:
    """Return the number of cores for this check, whose neighbours use the others."""
    return int(os.environ.get(CORES) or os.cpu_count() or 1)


def tree_of(device: str, precision: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job of one rank and `STEPS` steps on `device`."""
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
    """Return the job with settings that make two runs equal bit for bit: no attention kernel that
    adds in any order."""
    tree["model"]["attention"] = "eager"
    if device == "cuda":
        tree["env"] = {**SAME_SUMS, **tree.get("env", {})}
    return tree


def curve(attempt: Attempt) -> dict[int, tuple[float, float]]:
    """Return loss and gradient norm by step."""
    return {each["step"]: (each["loss"], each["grad_norm"]) for each in attempt.events("step")}


def distances(wanted: Losses, found: Losses) -> Iterator[float]:
    """Yield the relative distance of each loss; infinity for a missing one."""
    for step, loss in wanted.items():
        distance = abs(found.get(step, math.inf) - loss) / loss
        yield distance if math.isfinite(distance) else math.inf


def last_line(text: str) -> str:
    """Return the last line with text."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no output")


def missing(module: str) -> Found | None:
    """Return the finding that a module is missing; None: it is there."""
    from importlib.util import find_spec

    return None if find_spec(module) else Found(f"{module} is not installed", None)

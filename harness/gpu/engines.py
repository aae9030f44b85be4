"""Checks of DeepSpeed with and without a CUDA compiler (nvcc), and of torch.compile."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.gpu.checks import Check, Found, Look, distances, last_line, missing, tree_of
from harness.launching import Attempt, start

CLOSE, HALF = 1e-4, 2e-2
"""Largest relative differences of losses in fp32 and in bf16, which other orders of sums cause."""
DEFAULT_CUDA = Path("/usr/local/cuda/bin/nvcc")
CPU = {"device": "cpu"}
CASES: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "stage 2": (2, {}),
    "stage 3": (3, {}),
    "stage 2, optimizer on the host": (2, {"offload_optimizer": CPU}),
}
NOTE = "torch_adam is set to true"
"""The message of a rank if DeepSpeed's Adam cannot be compiled."""


def _config(stage: int, offload: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {"lr": 1e-2, "betas": [0.9, 0.95], "weight_decay": 0.1}
    return {
        "zero_optimization": {"stage": stage, **offload},
        "optimizer": {"type": "AdamW", "params": parameters},
        "gradient_clipping": 1.0,
    }


def _tree(device: str, stage: int, offload: Mapping[str, Any]) -> dict[str, Any]:
    changes = {
        "engine": "deepspeed",
        "zero": {"stage": stage},
        "deepspeed": {"config": _config(stage, offload)},
    }
    return tree_of(device, "bf16" if device == "cuda" else "fp32", changes)


def deepspeed(*, compiles: bool) -> Look:
    """Return the check of DeepSpeed's losses.

    With `compiles`, DeepSpeed's own Adam is compiled. Otherwise nvcc is hidden, and torch's Adam is
    used.
    """

    def look(device: str, directory: Path) -> Found:
        if (absent := missing("deepspeed")) is not None:
            return absent
        home = os.environ.get("CUDA_HOME")
        nvcc = Path(home, "bin/nvcc").exists() if home else DEFAULT_CUDA.exists()
        if compiles and device == "cuda" and not (nvcc or shutil.which("nvcc")):
            return Found("nvcc is not installed", None)
        env = {} if compiles else _without_nvcc(directory)
        if device == "cpu":
            env = {"PATH": str(directory)}  # nothing is compiled, which takes minutes
        plain = tree_of("cpu", "fp32", {"zero": {"stage": 0}})
        reference, tolerance = start(directory / "reference", plain), HALF
        if device == "cpu":
            tolerance = CLOSE
        attempts = dict[str, Attempt]()
        wrong = list[str]()
        for name, (stage, offload) in CASES.items():
            tree = _tree(device, stage, offload)
            tree["env"] = env
            attempts[name] = attempt = start(directory / name.replace(" ", "-"), tree)
            if attempt.finish() != [0]:
                wrong.append(f"{name}: {last_line(attempt.log())}")
        if reference.finish() != [0]:
            wrong.append(f"the reference: {last_line(reference.log())}")
        apart = 0.0 if reference.losses() else math.inf
        for name, attempt in attempts.items():
            apart = max(apart, *distances(reference.losses(), attempt.losses()))
            builds = compiles and device == "cuda"
            # Adam of the host is built by g++, which may be there without nvcc.
            is_known = device == "cpu" or not CASES[name][1]
            if is_known and (NOTE in attempt.log()) is builds:
                wrong.append(f"{name}: its own Adam is {'not ' if builds else ''}used")
        words = f"{len(attempts)} runs, at most {apart:.1e} apart"
        return Found("; ".join([words, *wrong]), not wrong and apart <= tolerance)

    return look


def _without_nvcc(directory: Path) -> dict[str, str]:
    """Return environment variables that hide nvcc."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    kept = [each for each in folders if not Path(each, "nvcc").exists()]
    empty = directory / "no-cuda"
    return {"CUDA_HOME": str(empty), "CUDA_PATH": str(empty), "PATH": os.pathsep.join(kept)}


def compiled(device: str, directory: Path) -> Found:
    """Compare the losses with and without `train.compile`."""
    attempts = {
        name: start(
            directory / name, tree_of(device, "fp32", {"train": {"compile": name == "compiled"}})
        )
        for name in ("plain", "compiled")
    }
    failed = [
        f"{name}: {last_line(attempt.log())}"
        for name, attempt in attempts.items()
        if attempt.finish() != [0]
    ]
    if failed:
        return Found("; ".join(failed), False)
    losses = attempts["compiled"].losses()
    apart = max(distances(attempts["plain"].losses(), losses))
    return Found(f"{len(losses)} steps, {apart:.1e} apart", apart <= CLOSE)


NO_NVCC = "on a CPU nothing of DeepSpeed is compiled by nvcc"
CHECKS = {
    "DeepSpeed": Check("losses of engine torch", 240, deepspeed(compiles=True), shared=True),
    "DeepSpeed without nvcc": Check(
        "the same, by torch's Adam", 120, deepspeed(compiles=False), NO_NVCC, shared=True
    ),
    "torch.compile": Check("losses without it, 1e-4", 180, compiled, shared=True),
}

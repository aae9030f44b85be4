"""Explains an out-of-memory error of a GPU: the failed allocation, the free memory, and what to
change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.sensors.snapshot import BF16_CAPABILITY
from zerotoolsd.trainer.model.predict_state_memory import Prediction
from zerotoolsd.trainer.rank.rank_errors import OutOfGpuMemory, TooLargeForGpu
from zerotoolsd.trainer.reporting.memory_advice import settings_to_try

_BESIDE_TORCH = re.compile(
    r"CUDA error: (?:out of memory|CUBLAS_STATUS_ALLOC_FAILED).*"
    r"|Cuda failure (?:\d+ )?'out of memory'.*"
)
"""Pattern of out-of-memory messages of CUDA, cuBLAS and NCCL, which do not use torch's
allocator.
"""
_PROCESS = re.compile(r"Process \d+ has [\d.]+ \w+ memory in use")
_THIS = re.compile(r"this process has [\d.]+ \w+ memory in use")


@contextmanager
def explain_errors(
    spec: JobSpec,
    steps_done: Callable[[], int],
    expected: Callable[[], Prediction | None] = lambda: None,
    has_fit: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """Return a context manager that converts an out-of-memory error into an error that explains it.

    `steps_done` returns the number of completed steps, and `expected` the predicted memory of the
    rank's state. `has_fit` returns whether this attempt has completed a step.

    Raises:
        OutOfGpuMemory: torch, or a library that it uses, could not allocate memory on the GPU.
        TooLargeForGpu: torch could not allocate memory before any step was completed, and no other
            process uses the GPU.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        message = str(error)
        sentence = explain_out_of_memory(message, spec, steps_done(), expected())
        if has_fit() or _other_processes(message):
            raise OutOfGpuMemory(sentence) from error
        raise TooLargeForGpu(
            f"{sentence} (it is not retried: no step was completed, and no other program uses "
            "the GPU)"
        ) from error
    except RuntimeError as error:
        found = _BESIDE_TORCH.search(str(error))
        if found is None:
            raise
        raise OutOfGpuMemory(
            explain_out_of_memory(found[0], spec, steps_done(), expected())
        ) from error


def explain_out_of_memory(
    message: str, spec: JobSpec, steps_done: int, expected: Prediction | None = None
) -> str:
    """Return one sentence that explains `message`, an error message of torch.

    `steps_done` is the number of completed steps. `expected` is the predicted memory of the rank's
    state; None if unknown.
    """
    facts = [
        match[0][0].lower() + match[0][1:] if match[0].startswith("Tried") else match[0]
        for pattern in (
            r"Tried to allocate [\d.]+ \w+",
            r"GPU \d+ has a total capacity of [\d.]+ \w+ of which [\d.]+ \w+ is free",
        )
        if (match := re.search(pattern, message))
    ]
    facts += _other_processes(message)[:1]
    what = ", ".join(facts) or " ".join(message.split())
    if expected is not None:
        what += f" ({expected})"
    mostly_state = expected is not None and _is_most(expected, message)
    lines = settings_to_try(spec, mostly_state=mostly_state, half=half_type())
    return (
        f"out of GPU memory after step {steps_done}: {what}; to use less memory, try: "
        f"{', or '.join(lines)}"
    )


def _other_processes(message: str) -> list[str]:
    """Return the parts of torch's `message` that name other processes on the GPU.

    In a container, torch may not recognise its own process in NVML's list. Then one of the named
    processes is this process.
    """
    listed = _PROCESS.findall(message)
    return listed if _THIS.search(message) else listed[1:]


def half_type(capability: tuple[int, int] | None = None) -> str:
    """Return the 16-bit dtype for a GPU of this compute capability, such as `bf16`. If `capability`
    is None, use the compute capability of this rank's GPU.
    """
    if capability is None and torch.cuda.is_available():
        capability = torch.cuda.get_device_capability()
    return "fp16" if capability is not None and capability < BF16_CAPABILITY else "bf16"


def _is_most(expected: Prediction, message: str) -> bool:
    """Return whether the predicted state takes more than half of the GPU's memory.

    This size is in torch's `message`.
    """
    found = re.search(r"total capacity of ([\d.]+) (\w+)", message)
    units = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
    if found is None or found[2] not in units:
        return False
    return 2 * (expected.device + expected.gathered) > float(found[1]) * units[found[2]]

"""Explains an out-of-memory error of a GPU: the failed allocation, the free memory, and what to
change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from zerotools.core.training_memory_layout import DEVICE, LOCAL, MemoryLayout
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
from zerotools.jobs.jobfile_tables.complete_deepspeed_config import offloaded_to
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.sensors.snapshot import BF16_CAPABILITY
from zerotoolsd.trainer.model.predict_state_memory import Prediction
from zerotoolsd.trainer.rank.rank_errors import OutOfGpuMemory, TooLargeForGpu

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


# Suggests changes to the job file of a job that ran out of GPU memory.
#
# The changes that slow the job down least come first. How much memory a change saves is not
# computed.

_SHARDED = 'train.accumulate = "sharded"'
_OWN = ("zero.stage", "offload.optimizer", "offload.params")
_DEEPSPEED = (
    "deepspeed.config zero_optimization.stage",
    "deepspeed.config zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_param.device",
)
"""DeepSpeed's keys for the ZeRO stage and for the offload of optimizer and parameters, which
are suggested for engine deepspeed.
"""


def settings_to_try(
    spec: JobSpec, *, mostly_state: bool = False, limit: int = 2, half: str = "bf16"
) -> list[str]:
    """Return at most `limit` settings with which the job needs less GPU memory, as lines of a job
    file.

    `half` is the 16-bit dtype that the GPU supports. `mostly_state` is True if weights and
    optimizer state take most of the memory, so that a smaller batch would not help.
    """
    less_state = partial(_less_state, half=half)
    orders = (less_state, _less_in_flight) if mostly_state else (_less_in_flight, less_state)
    lines = [line for order in (_smaller_sums, *orders) for line in order(spec)]
    return [*lines, *_shared(spec), "a shorter data.sequence_length", "more GPUs"][:limit]


def _shared(spec: JobSpec) -> Iterator[str]:
    """Suggest that more ranks compute each sequence together (`zero.sequence_ranks`), if this
    is possible.
    """
    micro = spec.train.micro_batch_size or spec.train.batch_size // spec.data_ranks
    twice, fixed = 2 * spec.zero.sequence_ranks, spec.size_range is None
    can = spec.engine == "torch" and fixed
    if can and micro == 1 and spec.all_ranks % (twice * spec.zero.tensor_ranks) == 0:
        yield f"zero.sequence_ranks = {twice} (ranks that compute each sequence together)"


def _smaller_sums(spec: JobSpec) -> Iterator[str]:
    """Suggest that each rank accumulates only its shard of the gradients, if it accumulates
    whole gradients now.
    """
    if _sums_whole(memory_layout_of(spec)):
        yield _SHARDED


def _sums_whole(layout: MemoryLayout) -> bool:
    """Return whether each rank accumulates whole gradients on the GPU, although shards would
    take less memory there.
    """
    smaller = layout.has_masters or layout.weight_ranks > 1 or layout.params_tier != DEVICE
    return layout.accumulate == LOCAL and smaller


def _less_in_flight(spec: JobSpec) -> Iterator[str]:
    """Suggest settings that reduce the memory of activations."""
    train = spec.train
    share = train.batch_size // spec.data_ranks
    micro = train.micro_batch_size or share
    if micro > 1:
        smaller = max(size for size in range(1, micro) if share % size == 0)
        after = memory_layout_of(replace(spec, train=replace(train, micro_batch_size=smaller)))
        # To sum whole gradients may take more than the activations of the smaller batch save.
        first = micro == share and _sums_whole(after)
        yield (
            f"train.micro_batch_size = {smaller}{f' with {_SHARDED}' if first else ''} "
            f"(it is {micro} now; batch_size stays)"
        )
    if train.chunked_loss == "off":
        yield 'train.chunked_loss = "auto"'
    if not train.activation_checkpointing:
        yield "train.activation_checkpointing = true"


def _less_state(spec: JobSpec, half: str) -> Iterator[str]:
    """Suggest settings that reduce the number of bytes per parameter: weights, gradients and
    optimizer state.
    """
    if spec.train.precision == "fp32":
        yield f'train.precision = "{half}"'
    stage, optimizer, params = _DEEPSPEED if spec.engine == "deepspeed" else _OWN
    if spec.world_size > 1 and spec.zero.stage < 3:
        yield f"{stage} = {spec.zero.stage + 1} (it is {spec.zero.stage} now)"
    if offloaded_to(spec) == ("none", "none"):
        yield f'{optimizer} = "cpu"'
    if offloaded_to(spec)[1] == "none":
        yield f'{stage} = 3 with {params} = "cpu"'

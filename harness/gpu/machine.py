"""Checks of the machine: how fast the driver answers, also under load, and the memory of a training
process.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from harness.gpu.checks import Check, Found, last_line, tree_of
from harness.gpu.watched_rank import own_bytes
from harness.launching import start
from harness.patience import Deadline
from harness.started import Started
from zerotools.ops.estimate.rank_memory import CPU_PROCESS_BYTES, CUDA_CONTEXT, PROCESS_BYTES
from zerotools.sensors.run_nvml_probe import GpuProbe

READINGS = 200
ANSWER_SECONDS = 2.0
CONTEXTS = 4
PINNED = 64
"""GiB of memory to pin; at most half of the host's free memory."""
SHARE = 0.2
"""Largest relative difference between the measured memory and the constants of the estimate."""
PIN_SECONDS = 90.0
GIB, MIB = 1 << 30, 1 << 20
WATCHED = Path(__file__).with_name("watched_rank.py")
HOLDS = """
import sys, torch
one = torch.ones(64, 64, device="cuda", dtype=torch.float16)
float((one @ one).sum())
print(torch.cuda.memory_reserved(), flush=True)
sys.stdin.readline()
kept = [torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True) for _ in range(int(sys.argv[1]))]
print("pinned", flush=True)
sys.stdin.readline()
"""
"""A program with a CUDA context and cuBLAS. It prints how many bytes torch has reserved, and then
pins memory.
"""


def answers(device: str, directory: Path) -> Found:
    """Measure the time of the first reading of NVML, and the longest time of many further
    readings.
    """
    from zerotools.sensors.run_nvml_probe import NvmlProbe

    probe, began = NvmlProbe(), time.monotonic()
    first = probe.read()
    took = time.monotonic() - began
    try:
        slowest, error = slowest_of(READINGS, lambda: probe.read().error)
    finally:
        probe.close()
    words = f"{len(first.gpus)} GPUs, the first {took:.2f} s, then at most {slowest:.3f} s"
    error = first.error or error
    ok = bool(first.gpus) and error is None and slowest < ANSWER_SECONDS
    return Found("; ".join(filter(None, [words, error])), ok)


def slowest_of(
    count: int, read: Callable[[], str | None], until: Callable[[], bool] = lambda: True
) -> tuple[float, str | None]:
    """Call `read` at least `count` times, and until `until` returns True.

    Return (the time of the slowest call in seconds, the last error).
    """
    slowest, error, done = 0.0, None, 0
    while done < count or not until():
        began = time.monotonic()
        error = read() or error
        slowest, done = max(slowest, time.monotonic() - began), done + 1
    return slowest, error


def loaded_answers(device: str, directory: Path) -> Found:
    """Measure the time of NVML readings while four processes pin up to 64 GiB of host memory and
    hold it.

    Also measure the size of a CUDA context.
    """
    from zerotools.sensors.run_nvml_probe import NvmlProbe

    free = psutil.virtual_memory().available // GIB
    each = max(1, min(PINNED, free // 2) // CONTEXTS)
    probe = NvmlProbe()
    try:
        return under_load(probe, HOLDS, each, _used)
    finally:
        probe.close()


def under_load(probe: GpuProbe, program: str, each: int, used: Callable[[], int]) -> Found:
    """Measure readings of `probe` while processes that run the code `program` pin `each` GiB.

    `used` returns the GPU memory in use, in bytes.
    """
    before = used()  # with a context of this process
    with _processes([sys.executable, "-c", program, str(each)]) as processes:
        reserved = sum(int(_line(process)) for process in processes)
        context = (used() - before - reserved) // CONTEXTS
        for process in processes:
            _tell(process)
        deadline = Deadline(PIN_SECONDS)
        first = probe.read()
        pinning, error = slowest_of(
            READINGS,
            lambda: probe.read().error,
            lambda: deadline.has_passed() or _have_said(processes),
        )
        said = [_line(process) for process in processes if _have_said([process])]
        held, later = slowest_of(READINGS, lambda: probe.read().error)
    error = first.error or error or later
    size = f"a context holds {context / MIB:,.0f} MiB of {CUDA_CONTEXT / MIB:,.0f} predicted"
    pinned = f"{CONTEXTS * each} GiB"
    words = f"at most {pinning:.3f} s while {pinned} are pinned, {held:.3f} s after; {size}"
    is_pinned = said == ["pinned"] * CONTEXTS
    wrong = [error] if error else []
    wrong += [] if is_pinned else [f"{len(said)} of {CONTEXTS} processes have pinned their memory"]
    near = abs(context - CUDA_CONTEXT) <= SHARE * CUDA_CONTEXT
    ok = not wrong and max(pinning, held) < ANSWER_SECONDS and near
    return Found("; ".join([words, *wrong]), ok, [size])


def _used() -> int:
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free)


@contextmanager
def _processes(command: Sequence[str]) -> Iterator[list[Started]]:
    pipe = subprocess.PIPE
    started = [Started(command, stdin=pipe, stdout=pipe, text=True) for _ in range(CONTEXTS)]
    try:
        yield started
    finally:
        for process in started:
            process.end()


def _line(process: Started) -> str:
    """Return the next line that `process` prints.

    Raises:
        AssertionError: the process ended without a line. Its error is in the log.
    """
    assert process.stdout is not None
    line = str(process.stdout.readline()).strip()
    if not line:
        raise AssertionError("a process ended before it had a context and its pinned memory")
    return line


def _tell(process: Started) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _have_said(processes: Sequence[Started]) -> bool:
    """Return whether each process has printed a line that was not read yet, or has ended."""
    pipes: list[Any] = [process.stdout for process in processes]
    return len(select.select(pipes, [], [], 0)[0]) == len(pipes)


def host_memory(device: str, directory: Path) -> Found:
    """Compare the host memory of a rank with a tiny model with the constant in the memory
    estimate.
    """
    # A variable of its own makes it a new process: one that is forked shares memory with others.
    tree = {**tree_of(device, "fp32", {"train": {"steps": 1}}), "env": {"OMP_NUM_THREADS": "1"}}
    attempt = start(directory / "rank", tree, script=WATCHED)
    if attempt.finish() != [0]:
        return Found(last_line(attempt.log()), False)
    own = own_bytes(attempt.run_dir)
    whole = max(each["rss_bytes"] for each in attempt.events("step"))
    # The constant of CPUs has pages of files, that of GPUs leaves CUDA's libraries out.
    expected, held = (PROCESS_BYTES, own) if device == "cuda" else (CPU_PROCESS_BYTES, whole)
    words = (
        f"a rank holds {own / MIB:,.0f} MiB of the host, {whole / MIB:,.0f} with pages of files, "
        f"and {expected / MIB:,.0f} are predicted"
    )
    return Found(words, abs(held - expected) <= SHARE * expected, [words])


NO_GPU = "a CPU has no driver"
CHECKS = {
    "NVML answers": Check(f"each in {ANSWER_SECONDS:g} s", 120, answers, NO_GPU),
    "NVML under load": Check(
        f"each in {ANSWER_SECONDS:g} s; a context within 20 %", 150, loaded_answers, NO_GPU
    ),
    "memory of a process": Check("within 20 % of the estimate", 90, host_memory),
}

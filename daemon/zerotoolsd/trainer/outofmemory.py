"""The sentence for a GPU that ran out of memory: which allocation, what there is, what helps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from zerotools.jobs.lessmemory import settings_to_try
from zerotools.jobs.spec import JobSpec
from zerotoolsd.trainer.failures import OutOfGpuMemory


@contextmanager
def explained(spec: JobSpec, steps_done: Callable[[], int]) -> Iterator[None]:
    """Turn torch's error into ours.

    Raises:
        OutOfGpuMemory: an allocation on the GPU failed.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfGpuMemory(explain(str(error), spec, steps_done())) from error


def explain(said: str, spec: JobSpec, steps_done: int) -> str:
    """One sentence from what torch `said`, after so many steps of the run."""
    facts = [
        match[0][0].lower() + match[0][1:] if match[0].startswith("Tried") else match[0]
        for pattern in (
            r"Tried to allocate [\d.]+ \w+",
            r"GPU \d+ has a total capacity of [\d.]+ \w+ of which [\d.]+ \w+ is free",
            r"Process \d+ has [\d.]+ \w+ memory in use",
        )
        if (match := re.search(pattern, said))
    ]
    what = ", ".join(facts) or " ".join(said.split())
    return (
        f"out of GPU memory after step {steps_done}: {what}; what needs less: "
        f"{', or '.join(settings_to_try(spec))}"
    )

"""`sequence_parallel_size` and `tensor_parallel`: ranks that compute the same sequences.

DeepSpeed 0.19, runtime/tensor_parallel/config.py: an `autotp_size` above 1 switches it on, and
`tp.tp_size` is 1 or the same. DeepSpeed takes the cut layers from its presets or the plan of
transformers, and a job from the latter.
"""

from __future__ import annotations

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.batch import JOB_SEQUENCE_RANKS, JOB_TENSOR_RANKS
from zerotools.jobs.imports.reading.reader import ConfigReading
from zerotools.jobs.imports.reading.report import KeyOutcome
from zerotools.jobs.imports.reading.typed_keys import ConfigValue

_SEQUENCES = "sequence_parallel_size"
_LAYERS = "tensor_parallel"
_SIZE = f"{_LAYERS}.autotp_size"
_SAME_SIZE = (f"{_LAYERS}.tp.tp_size", f"{_LAYERS}.tensor_parallel.tp_size")


def read_shared_ranks(reading: ConfigReading) -> None:
    """Map both sizes. The engine deepspeed gets them unchanged: DeepSpeed's code for it is in
    the program that it trains, so the job's rules refuse them there."""
    if reading.engine == "deepspeed":
        return
    given = reading.take(_SEQUENCES)
    if given is not None:
        why = "the number of ranks that compute each sequence together"
        _read(reading, given, JOB_SEQUENCE_RANKS, why, least=1)
    _read_layers(reading)


def _read_layers(reading: ConfigReading) -> None:
    given = reading.take(_SIZE)
    size = 0
    if given is not None:
        why = "the number of ranks that share one layer's weights"
        size = _read(reading, given, JOB_TENSOR_RANKS, why, least=0)
    for name in _SAME_SIZE:
        same = reading.take(name)
        if same is None:
            continue
        if given is None or size <= 1 or same.value == 1:
            reading.row(KeyOutcome.IGNORED, same, None, "only autotp_size switches it on")
        elif same.value == size:
            reading.map(same, JOB_TENSOR_RANKS, size)
        else:
            reading.findings.wrong.append(
                f"{same.said} = {show(same.value)}: {given.said} says {size}; make them agree"
            )
    if size <= 1:
        for name in [name for name in reading.remaining if name.startswith(f"{_LAYERS}.")]:
            reading.row(KeyOutcome.IGNORED, reading.remaining.pop(name), None, "is off")


def _read(reading: ConfigReading, given: ConfigValue, key: str, why: str, *, least: int) -> int:
    """Return the size, mapped to `key` if it is more than 1; 0 if it cannot be."""
    value = given.value
    if type(value) is not int or value < least:
        reading.findings.wrong.append(
            f"{given.said} = {show(value)}: must be a whole number, {least} or more"
        )
        return 0
    if value > 1:
        reading.map(given, key, value, why)
    else:
        reading.row(KeyOutcome.IGNORED, given, None, "is off")
    return value

"""Values of a GPU that a driver may not tell: each is missing alone, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from zerotools.sensors.cpu_lists import cpu_list

with suppress(ImportError):  # the session reports it
    import pynvml

_AFFINITY_WORDS = 16
"""Of 64 bits each: 1,024 processors, or nodes."""

SLOWED_BY = {
    0x2: "clocks set by hand",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "temperature",
    0x40: "temperature (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
"""The bits of nvmlClocksEventReason* and nvmlClocksThrottleReason* of nvml.h, and the reasons of
slow clocks. An idle GPU (0x1) is not a reason."""


def gpu_name(handle: Any) -> str:
    """Return the name of a GPU, or of a MIG instance."""
    name = pynvml.nvmlDeviceGetName(handle)
    return name if isinstance(name, str) else name.decode("utf-8", "replace")


def _throttle_reasons(handle: Any) -> list[str]:
    """Return why the clocks are low; drivers from 535 on call this event reasons, with the same
    bits."""
    try:
        bits = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except (AttributeError, pynvml.NVMLError_FunctionNotFound):
        bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return [words for bit, words in SLOWED_BY.items() if bits & bit]


def _ecc_errors(kind: str) -> Callable[[Any], int]:
    """Return a function that counts ECC errors since the driver was loaded; `kind` is CORRECTED or
    UNCORRECTED."""

    def read(handle: Any) -> int:
        error = getattr(pynvml, f"NVML_MEMORY_ERROR_TYPE_{kind}")
        return int(pynvml.nvmlDeviceGetTotalEccErrors(handle, error, pynvml.NVML_VOLATILE_ECC))

    return read


def _cpu_affinity(handle: Any) -> str:
    near = _bits(pynvml.nvmlDeviceGetCpuAffinity(handle, _AFFINITY_WORDS))
    if not near:
        raise ValueError("no processor is near it")
    return cpu_list(near)


def _numa_node(handle: Any) -> int:
    scope = pynvml.NVML_AFFINITY_SCOPE_NODE
    nodes = _bits(pynvml.nvmlDeviceGetMemoryAffinity(handle, _AFFINITY_WORDS, scope))
    if len(nodes) != 1:
        raise ValueError(f"it is near {len(nodes)} memory nodes")
    return nodes[0]


def _bits(words: Any) -> list[int]:
    return [
        64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1
    ]


OPTIONAL: dict[str, Callable[[Any], Any]] = {
    "name": gpu_name,
    "utilization_percent": lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    "temperature_celsius": lambda handle: pynvml.nvmlDeviceGetTemperature(
        handle, pynvml.NVML_TEMPERATURE_GPU
    ),
    "power_watts": lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "power_limit_watts": lambda handle: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
    "sm_clock_mhz": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
    "sm_clock_max_mhz": lambda handle: pynvml.nvmlDeviceGetMaxClockInfo(
        handle, pynvml.NVML_CLOCK_SM
    ),
    "memory_clock_mhz": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
    "throttle_reasons": _throttle_reasons,
    "ecc_corrected_errors": _ecc_errors("CORRECTED"),
    "ecc_uncorrected_errors": _ecc_errors("UNCORRECTED"),
    "cpu_affinity": _cpu_affinity,
    "numa_node": _numa_node,
    "compute_capability": lambda handle: pynvml.nvmlDeviceGetCudaComputeCapability(handle),
}

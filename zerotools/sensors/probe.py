"""The child process that talks to NVML, because the driver can hang for good.

It is run as a file and imports nothing of zerotools. For every line that it reads on stdin it
writes one JSON object on stdout, `{"gpus": [...], "error": null | str}`, whose GPUs have the fields
of `zerotools.sensors.snapshot.Gpu`; it ends at the end of its input. `NvmlProbe` is the other side.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

try:
    import pynvml
except ImportError:
    pynvml = None

LIBRARY = "libnvidia-ml.so.1"


def main() -> None:
    """Answer until stdin ends."""
    session = Session()
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(session.read()) + "\n")
        sys.stdout.flush()


class Session:
    """NVML, initialised when it first works, and again after it failed as a whole."""

    def __init__(self) -> None:
        self._ready = False

    def read(self) -> dict[str, Any]:
        """All GPUs, or why there are none."""
        if pynvml is None:
            return _failure("no NVML: the Python package nvidia-ml-py is not installed")
        try:
            if not self._ready:
                pynvml.nvmlInit()
                self._ready = True
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self._ready = False
            return _failure(_why_not(error))
        return {"gpus": [read_gpu(index) for index in range(count)], "error": None}


def _failure(reason: str) -> dict[str, Any]:
    return {"gpus": [], "error": reason}


def _why_not(error: Exception) -> str:
    if isinstance(error, pynvml.NVMLError_DriverNotLoaded):
        return "no NVML: the NVIDIA driver is not loaded"
    if isinstance(error, pynvml.NVMLError_LibRmVersionMismatch):
        return (
            "no NVML: the NVIDIA driver and its library differ in version (after an update, "
            "restart the machine)"
        )
    if not isinstance(error, pynvml.NVMLError_LibraryNotFound):
        return f"no NVML: {error}"
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as reason:
        if "No such file" not in str(reason):
            return f"no NVML: {LIBRARY} could not be loaded ({reason})"
    return f"no NVML: {LIBRARY} was not found (it comes with the NVIDIA driver)"


def read_gpu(index: int) -> dict[str, Any]:
    """One GPU as far as it answers."""
    gpu: dict[str, Any] = {"index": index, "missing": {}, "error": None, "processes": []}
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        gpu["uuid"] = pynvml.nvmlDeviceGetUUID(handle)
        gpu["name"] = pynvml.nvmlDeviceGetName(handle)
        instances = _mig_instances(handle)
        if instances is not None:
            return gpu | _divided(index, instances)
        gpu |= _measured(handle)
    except pynvml.NVMLError as error:
        gpu["error"] = f"NVML: {error}"
        return gpu
    for name, read in OPTIONAL.items():
        try:
            gpu[name] = read(handle)
        except pynvml.NVMLError as error:
            gpu["missing"][name] = f"NVML: {error}"
    return gpu


def _mig_instances(handle: Any) -> list[str] | None:
    """UUID and name of each instance of a GPU in MIG mode; None: it is not in it."""
    try:
        if not pynvml.nvmlDeviceGetMigMode(handle)[0]:
            return None
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return None
    found = []
    for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except pynvml.NVMLError_NotFound:
            continue
        found.append(f"{pynvml.nvmlDeviceGetUUID(instance)} ({pynvml.nvmlDeviceGetName(instance)})")
    return found


def _divided(index: int, instances: list[str]) -> dict[str, Any]:
    named = ", ".join(instances) if instances else "none is made yet"
    return {
        "mig_instances": instances,
        "error": (
            f"it is divided into MIG instances ({named}), on which zerotools does not train; to "
            f"make it whole, type: nvidia-smi -i {index} -mig 0"
        ),
    }


def _measured(handle: Any) -> dict[str, Any]:
    """Memory and processes; `unmeasured` names what this driver never tells of this GPU."""
    found: dict[str, Any] = {"unmeasured": None}
    unknown = []
    try:
        found |= _memory(handle)
    except pynvml.NVMLError_NotSupported as error:
        unknown.append(f"memory (NVML: {error})")
    try:
        found["processes"] = _processes(handle)
    except pynvml.NVMLError_NotSupported as error:
        unknown.append(f"processes (NVML: {error})")
    if unknown:
        found["unmeasured"] = f"the driver does not tell its {' and its '.join(unknown)}"
    return found


def _memory(handle: Any) -> dict[str, int | None]:
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        reserved = info.reserved
    except (
        pynvml.NVMLError_FunctionNotFound,
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_InvalidArgument,
    ):
        # Drivers before 510 know version 1 only, which counts what is reserved as used.
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
        reserved = None
    return {
        "memory_total_bytes": info.total,
        "memory_used_bytes": info.used,
        "memory_free_bytes": info.free,
        "memory_reserved_bytes": reserved,
    }


def _processes(handle: Any) -> list[dict[str, int | None]]:
    """Compute and graphics processes; one that is in both lists is one process."""
    held: dict[int, int | None] = {}
    for listed in (
        pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
        _graphics_processes(handle),
    ):
        for process in listed:
            known = held.get(process.pid)
            used = process.usedGpuMemory
            held[process.pid] = used if known is None else max(known, used or 0)
    return [{"pid": pid, "memory_used_bytes": used} for pid, used in sorted(held.items())]


def _graphics_processes(handle: Any) -> list[Any]:
    try:
        return list(pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle))
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
        return []  # data-centre cards have no graphics


OPTIONAL: dict[str, Callable[[Any], Any]] = {
    "utilization_percent": lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    "temperature_celsius": lambda handle: pynvml.nvmlDeviceGetTemperature(
        handle, pynvml.NVML_TEMPERATURE_GPU
    ),
    "power_watts": lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "compute_capability": lambda handle: pynvml.nvmlDeviceGetCudaComputeCapability(handle),
}


if __name__ == "__main__":
    main()

"""The values of one GPU, as far as its driver reports them.

Drivers may be ten years old. NVML's functions have versions in their names (`..._v3`), and pynvml
calls the newest version, but the driver may have only an older one. If pynvml reports a missing
function, the older versions are tried, down to the first. After any other error, such as pynvml's
NVMLLibraryMismatchError, only the value that was read is unknown.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from zerotools.sensors.cpu_lists import cpu_list
from zerotools.sensors.nvml_probe.xid_reports import KERNEL_LOG, XidReports, pci_address

with suppress(ImportError):  # the session reports it
    import pynvml


def read_gpu(index: int) -> dict[str, Any]:
    """Return the values of one GPU that the driver reports, and the reasons for missing values."""
    gpu: dict[str, Any] = {"index": index, "missing": {}, "error": None, "processes": []}
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        gpu["uuid"] = pynvml.nvmlDeviceGetUUID(handle)
        instances = _mig_instances(handle)
        gpu["pci_address"] = _pci_address(handle)
        if instances is not None:
            return gpu | _divided(index, instances)
        gpu |= _measured(handle)
    except Exception as error:  # affects only this GPU, and is reported
        gpu["error"] = _error_text(error)
        return gpu
    for name, read in OPTIONAL.items():
        try:
            gpu[name] = read(handle)
        except Exception as error:  # affects only this value, and is reported
            gpu["missing"][name] = _error_text(error)
    return gpu


def _error_text(error: Exception) -> str:
    if isinstance(error, pynvml.NVMLError):
        return f"NVML: {error}"
    return f"NVML: {type(error).__name__}: {error}"


def _is_missing(error: Exception) -> bool:
    """Return whether this driver lacks the NVML function, or has only another version of it."""
    mismatch = getattr(pynvml, "NVMLLibraryMismatchError", ())
    return isinstance(error, (pynvml.NVMLError_FunctionNotFound, mismatch, AttributeError))


def _mig_instances(handle: Any) -> list[str] | None:
    """Return the UUID and the name of each MIG instance of a GPU. Return None if the GPU is not in
    MIG mode.
    """
    try:
        if not pynvml.nvmlDeviceGetMigMode(handle)[0]:
            return None
    except pynvml.NVMLError_NotSupported:
        return None
    except Exception as error:  # raised again, unless the driver lacks it
        if _is_missing(error):  # drivers before 450
            return None
        raise
    found = []
    for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except pynvml.NVMLError_NotFound:
            continue
        found.append(f"{pynvml.nvmlDeviceGetUUID(instance)} ({gpu_name(instance)})")
    return found


def _pci_address(handle: Any) -> str | None:
    try:
        said = pynvml.nvmlDeviceGetPciInfo(handle).busId
    except Exception:  # it is not needed for anything else
        return None
    return pci_address(said if isinstance(said, str) else said.decode("ascii", "replace"))


def _divided(index: int, instances: list[str]) -> dict[str, Any]:
    named = ", ".join(instances) if instances else "none exists yet"
    return {
        "mig_instances": instances,
        "error": (
            f"it is divided into MIG instances ({named}), which zerotools does not use; to undo "
            f"this, type: nvidia-smi -i {index} -mig 0"
        ),
    }


def _measured(handle: Any) -> dict[str, Any]:
    """Return the memory and the processes of a GPU. If the driver never reports the memory, or
    never the processes, `unmeasured` says so in a sentence.
    """
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
    except Exception as error:  # raised again, unless the driver lacks it
        if not _is_missing(error):
            raise
        unknown.append(f"processes ({_error_text(error)})")
    if unknown:
        found["unmeasured"] = f"the driver does not report its {' and its '.join(unknown)}"
    return found


def _memory(handle: Any) -> dict[str, int | None]:
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        reserved = info.reserved
    except Exception as error:  # raised again, unless the driver lacks it or refuses the version
        refused = (
            *(pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument),
            getattr(pynvml, "NVMLError_ArgumentVersionMismatch", pynvml.NVMLError_NotSupported),
        )
        if not (_is_missing(error) or isinstance(error, refused)):
            raise
        # Drivers before 510 know only version 1, which counts reserved memory as used.
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
        reserved = None
    return {
        "memory_total_bytes": info.total,
        "memory_used_bytes": info.used,
        "memory_free_bytes": info.free,
        "memory_reserved_bytes": reserved,
    }


def _processes(handle: Any) -> list[dict[str, Any]]:
    """Return the processes on a GPU. A process that both computes and draws counts as one that
    computes.
    """
    held: dict[int, int | None] = {}
    computing = _listed(handle, "Compute")
    for listed in (computing, _graphics_processes(handle)):
        for pid, used in listed:
            known = held.get(pid)
            held[pid] = used if known is None else max(known, used or 0)
    compute = {pid for pid, _ in computing}
    return [
        {"pid": pid, "memory_used_bytes": used, "graphics": pid not in compute}
        for pid, used in sorted(held.items())
    ]


def _graphics_processes(handle: Any) -> list[tuple[int, int | None]]:
    try:
        return _listed(handle, "Graphics")
    except pynvml.NVMLError_NotSupported:
        return []  # data-centre cards have no graphics
    except Exception as error:  # raised again, unless the driver lacks it
        if _is_missing(error):
            return []
        raise


def _listed(handle: Any, kind: str) -> list[tuple[int, int | None]]:
    """Return the pid and the memory in bytes of each process of one `kind` (`Compute` or
    `Graphics`), from the newest function that the driver has.

    Versions 2 (drivers from 450) and 3 (from 510) have the same fields, and driver 535.98 lacks
    version 3. Version 1 has only pid and bytes.
    """
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    for version in ("", "_v3", "_v2"):
        try:
            found = getattr(pynvml, name + version)(handle)
        except Exception as error:  # raised again, unless the driver lacks it
            if not _is_missing(error):
                raise
        else:
            return [(int(process.pid), process.usedGpuMemory) for process in found]
    return _first_version(handle, name)


class _FirstProcessInfo(ctypes.Structure):
    """The C structure nvmlProcessInfo_v1_t of nvml.h."""

    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong))


_NOT_AVAILABLE = 2**64 - 1
"""The constant NVML_VALUE_NOT_AVAILABLE of nvml.h, as an unsigned long long."""
_ROOM = 1024


def _first_version(handle: Any, name: str) -> list[tuple[int, int | None]]:
    """Call version 1 of an NVML function, which pynvml cannot call, and return its result."""
    call = getattr(pynvml.nvmlLib, name, None)
    if call is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    count, found = ctypes.c_uint(_ROOM), (_FirstProcessInfo * _ROOM)()
    status = call(handle, ctypes.byref(count), found)
    if status != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(status)
    return [(p.pid, None if p.used == _NOT_AVAILABLE else p.used) for p in found[: count.value]]


with suppress(ImportError):  # the session reports it
    import pynvml

_AFFINITY_WORDS = 16
"""The number of 64-bit words in a bit set of processors or nodes: enough for 1,024."""

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
"""The reasons for slow clocks by their bits, nvmlClocksEventReason* and nvmlClocksThrottleReason*
of nvml.h. That a GPU is idle (0x1) is not a reason.
"""


def gpu_name(handle: Any) -> str:
    """Return the name of a GPU, or of a MIG instance."""
    name = pynvml.nvmlDeviceGetName(handle)
    return name if isinstance(name, str) else name.decode("utf-8", "replace")


def _throttle_reasons(handle: Any) -> list[str]:
    """Return the reasons for slow clocks. Drivers from 535 on call them event reasons, with the
    same bits.
    """
    try:
        bits = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except (AttributeError, pynvml.NVMLError_FunctionNotFound):
        bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return [words for bit, words in SLOWED_BY.items() if bits & bit]


def _ecc_errors(kind: str) -> Callable[[Any], int]:
    """Return a function that reads the number of ECC errors of a GPU since the driver was loaded.
    `kind` is CORRECTED or UNCORRECTED.
    """

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


try:
    import pynvml
except ImportError:
    pynvml = None

LIBRARY = "libnvidia-ml.so.1"


def main() -> None:
    """Answer requests until stdin ends. The first argument is the path of the kernel's log."""
    session = Session(*sys.argv[1:2])
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(session.read()) + "\n")
        sys.stdout.flush()


class Session:
    """The connection to NVML. The first reading initialises NVML. After an error of NVML that
    concerns more than one GPU, the next reading initialises NVML again."""

    def __init__(self, kernel_log: str = KERNEL_LOG) -> None:
        self._ready = False
        self._xids = XidReports(kernel_log)

    def read(self) -> dict[str, Any]:
        """Return all GPUs, or the reason why they cannot be read."""
        if pynvml is None:
            return _failure("no NVML: the Python package nvidia-ml-py is not installed")
        try:
            if not self._ready:
                pynvml.nvmlInit()
                self._ready = True
                self._xids.listen()
            count = pynvml.nvmlDeviceGetCount()
        except Exception as error:  # not only NVMLError; it is reported
            self._ready = False
            return _failure(_why_not(error))
        self._xids.read_new()
        gpus = [read_gpu(index) for index in range(count)]
        for gpu in gpus:
            gpu["xids"] = self._xids.of(gpu)
        return {"gpus": gpus, "error": None}


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

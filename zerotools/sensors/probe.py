"""The child process that talks to NVML, because the driver can hang for good.

It is run as a file and imports nothing of zerotools. For every line that it reads on stdin it
writes one JSON object on stdout, `{"gpus": [...], "error": null | str}`, whose GPUs have the fields
of `zerotools.sensors.snapshot.Gpu`; it ends at the end of its input. `NvmlProbe` is the other side.

Drivers differ by ten years. Functions have a version in their name (`..._v3`), and pynvml calls the
newest that it knows; a driver may have an older one alone. Where pynvml says that there is no such
function, the older ones are tried, down to the first. An error that is none of NVML's, such as
pynvml's own NVMLLibraryMismatchError or a value that it cannot decode, spoils one value, never all.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

try:
    import pynvml
except ImportError:
    pynvml = None

LIBRARY = "libnvidia-ml.so.1"
KERNEL_LOG = "/dev/kmsg"
KERNEL_LINE = re.compile(
    r"[0-9]+,[0-9]+,([0-9]+),[^;]*;.*NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): ([0-9]{1,4})\b"
)
"""A record of /dev/kmsg: priority, number, microseconds, flags; text (kernel, dev-kmsg)."""
MOST_XIDS = 16
"""So many of each GPU are kept."""


def main() -> None:
    """Answer until stdin ends. An argument is the kernel's log."""
    session = Session(*sys.argv[1:2])
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(session.read()) + "\n")
        sys.stdout.flush()


class Session:
    """NVML, initialised when it first works, and again after it failed as a whole."""

    def __init__(self, kernel_log: str = KERNEL_LOG) -> None:
        self._ready = False
        self._xids = XidReports(kernel_log)

    def read(self) -> dict[str, Any]:
        """All GPUs, or why there are none."""
        if pynvml is None:
            return _failure("no NVML: the Python package nvidia-ml-py is not installed")
        try:
            if not self._ready:
                pynvml.nvmlInit()
                self._ready = True
                self._xids.listen()
            count = pynvml.nvmlDeviceGetCount()
        except Exception as error:  # also pynvml's own, which are no NVMLError; it is told
            self._ready = False
            return _failure(_why_not(error))
        self._xids.take_in()
        gpus = [read_gpu(index) for index in range(count)]
        for gpu in gpus:
            gpu["xids"] = self._xids.of(gpu)
        return {"gpus": gpus, "error": None}


class XidReports:
    """The XIDs that were reported since this process listens: by the kernel's log, which also has
    earlier ones of this boot, or where that cannot be read, by NVML's events."""

    def __init__(self, kernel_log: str) -> None:
        self._events: Any = None
        self._reported: dict[str, deque[dict[str, Any]]] = {}
        """By UUID, or by PCI address."""
        try:
            self._log: int | None = os.open(kernel_log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # that is for root, on many machines
            self._log = None

    def listen(self) -> None:
        """Have the driver report; one that cannot is none that has anything to report."""
        if self._log is not None:
            return
        try:
            self._events = pynvml.nvmlEventSetCreate()
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                pynvml.nvmlDeviceRegisterEvents(
                    handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                )
        except Exception:  # of any GPU: what the others report comes all the same
            return

    def take_in(self) -> None:
        """Note what was reported since the last time."""
        if self._log is not None:
            self._read_log(self._log)
        while self._events is not None:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                uuid = pynvml.nvmlDeviceGetUUID(event.device)
            except Exception:  # NVMLError_Timeout: there are no more
                return
            self._note(uuid, int(event.eventData), time.monotonic())

    def _read_log(self, log: int) -> None:
        while True:
            try:
                record = os.read(log, 8192)
            except BrokenPipeError:  # older records were overwritten
                continue
            except OSError:
                return
            if not record:
                return
            for line in record.decode("utf-8", "replace").splitlines():
                found = KERNEL_LINE.match(line)
                if found:
                    self._note(pci_address(found[2]), int(found[3]), int(found[1]) / 1e6)

    def _note(self, whose: str, code: int, clock: float) -> None:
        known = self._reported.setdefault(whose, deque(maxlen=MOST_XIDS))
        known.append({"code": code, "clock": clock})

    def of(self, gpu: dict[str, Any]) -> list[dict[str, Any]]:
        """Those of a GPU that was read, the oldest first."""
        names = (gpu.pop("pci_address", None), gpu.get("uuid"))
        return [xid for name in names if name for xid in self._reported.get(name, ())]


def pci_address(text: str) -> str:
    """`3b:00` of `0000:3b:00`, `00000000:3B:00.0` and others: the kernel and NVML write it in
    several ways. A domain other than 0 stays."""
    domain, _, rest = text.lower().partition(".")[0].partition(":")
    return rest if not domain.strip("0") else f"{domain.lstrip('0')}:{rest}"


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
        instances = _mig_instances(handle)
        gpu["pci_address"] = _pci_address(handle)
        if instances is not None:
            return gpu | _divided(index, instances)
        gpu |= _measured(handle)
    except Exception as error:  # spoils this GPU alone, and is told
        gpu["error"] = _said(error)
        return gpu
    for name, read in OPTIONAL.items():
        try:
            gpu[name] = read(handle)
        except Exception as error:  # spoils this value alone, and is told
            gpu["missing"][name] = _said(error)
    return gpu


def _said(error: Exception) -> str:
    """What went wrong: NVML's own word, or what Python made of an answer."""
    if isinstance(error, pynvml.NVMLError):
        return f"NVML: {error}"
    return f"NVML: {type(error).__name__}: {error}"


def _is_missing(error: Exception) -> bool:
    """Whether this driver has no such function, or none of this version."""
    mismatch = getattr(pynvml, "NVMLLibraryMismatchError", ())
    return isinstance(error, (pynvml.NVMLError_FunctionNotFound, mismatch, AttributeError))


def _mig_instances(handle: Any) -> list[str] | None:
    """UUID and name of each instance of a GPU in MIG mode; None: it is not in it."""
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
        found.append(f"{pynvml.nvmlDeviceGetUUID(instance)} ({_name(instance)})")
    return found


def _pci_address(handle: Any) -> str | None:
    try:
        said = pynvml.nvmlDeviceGetPciInfo(handle).busId
    except Exception:  # it is not needed for anything else
        return None
    return pci_address(said if isinstance(said, str) else said.decode("ascii", "replace"))


def _name(handle: Any) -> str:
    name = pynvml.nvmlDeviceGetName(handle)
    return name if isinstance(name, str) else name.decode("utf-8", "replace")


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
    except Exception as error:  # raised again, unless the driver lacks it
        if not _is_missing(error):
            raise
        unknown.append(f"processes ({_said(error)})")
    if unknown:
        found["unmeasured"] = f"the driver does not tell its {' and its '.join(unknown)}"
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
    for listed in (_listed(handle, "Compute"), _graphics_processes(handle)):
        for pid, used in listed:
            known = held.get(pid)
            held[pid] = used if known is None else max(known, used or 0)
    return [{"pid": pid, "memory_used_bytes": used} for pid, used in sorted(held.items())]


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
    """Pid and bytes of each `Compute` or `Graphics` process, by the newest call of the driver.

    Versions 2 (drivers from 450) and 3 (from 510) have the same fields, and 535.98 had version 3
    taken out; version 1 has pid and bytes alone.
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
    """nvmlProcessInfo_v1_t of nvml.h."""

    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong))


_NOT_AVAILABLE = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE of nvml.h, as an unsigned long long."""
_ROOM = 1024


def _first_version(handle: Any, name: str) -> list[tuple[int, int | None]]:
    """What the call without a version says: pynvml has no more than its name."""
    call = getattr(pynvml.nvmlLib, name, None)
    if call is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    count, found = ctypes.c_uint(_ROOM), (_FirstProcessInfo * _ROOM)()
    status = call(handle, ctypes.byref(count), found)
    if status != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(status)
    return [(p.pid, None if p.used == _NOT_AVAILABLE else p.used) for p in found[: count.value]]


OPTIONAL: dict[str, Callable[[Any], Any]] = {
    "name": _name,
    "utilization_percent": lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    "temperature_celsius": lambda handle: pynvml.nvmlDeviceGetTemperature(
        handle, pynvml.NVML_TEMPERATURE_GPU
    ),
    "power_watts": lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "compute_capability": lambda handle: pynvml.nvmlDeviceGetCudaComputeCapability(handle),
}


if __name__ == "__main__":
    main()

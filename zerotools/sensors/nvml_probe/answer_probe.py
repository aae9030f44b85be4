"""Makes the probe's answer: all GPUs, or the reason why there are none."""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

from zerotools.sensors.nvml_probe.read_gpu import read_gpu
from zerotools.sensors.nvml_probe.xid_reports import KERNEL_LOG, XidReports

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

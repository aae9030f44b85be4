"""Collects the XIDs (error numbers) that the driver reports."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections import deque
from contextlib import suppress
from typing import Any

with suppress(ImportError):  # the session reports it
    import pynvml

KERNEL_LOG = "/dev/kmsg"
KERNEL_LINE = re.compile(
    r"[0-9]+,[0-9]+,([0-9]+),[^;]*;.*NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): ([0-9]{1,4})\b(.*)"
)
"""A regular expression for a record of /dev/kmsg: priority, number, microseconds, flags; text.
Source: kernel documentation, dev-kmsg.
"""
RECOVERY_CODE = 154
"""The XID that reports a new recovery action for a GPU; the new action may be none."""
NOTHING_NEEDED = re.compile(r" to 0x0\b|\bto \(?none\b", re.IGNORECASE)
"""Text of the kernel's log if the new action is none: "GPU recovery action changed from 0x1 (...)
to 0x0 (None)".
"""
MOST_XIDS = 16
"""The largest number of XIDs that are kept for each GPU."""


class XidReports:
    """The XIDs (error numbers of the driver) of each GPU.

    The kernel's log has the XIDs since the machine started. If this process may not read the log,
    the XIDs come from NVML's events, which begin when the probe starts.
    """

    def __init__(self, kernel_log: str) -> None:
        self._events: Any = None
        self._reported: dict[str, deque[dict[str, Any]]] = {}
        """The XIDs of each GPU, by its UUID or by its PCI address."""
        self._uuids: dict[int | None, str] = {}
        """The UUID of each GPU by NVML's handle. The driver does not report the UUID of a GPU
        that is lost.
        """
        try:
            self._log: int | None = os.open(kernel_log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # on many machines only root may read it
            self._log = None

    def listen(self) -> None:
        """Register for events of each GPU that supports them, if the kernel's log cannot be
        read.
        """
        if self._log is not None:
            return
        try:
            self._events = pynvml.nvmlEventSetCreate()
            count = pynvml.nvmlDeviceGetCount()
        except Exception:  # the driver has no events, or has failed as a whole
            return
        for index in range(count):
            with suppress(Exception):  # of this GPU; the events of other GPUs still arrive
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                self._uuids[_address(handle)] = pynvml.nvmlDeviceGetUUID(handle)
                pynvml.nvmlDeviceRegisterEvents(
                    handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                )

    def read_new(self) -> None:
        """Record the XIDs that were reported since the last call."""
        if self._log is not None:
            self._read_log(self._log)
        while self._events is not None:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except Exception:  # NVMLError_Timeout: there are no more
                return
            uuid, code = self._uuids.get(_address(event.device)), int(event.eventData)
            if uuid is not None and not (code == RECOVERY_CODE and _needs_nothing(event.device)):
                self._record(uuid, code, time.monotonic())

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
                code = int(found[3]) if found else 0
                if found and not (code == RECOVERY_CODE and NOTHING_NEEDED.search(found[4])):
                    self._record(pci_address(found[2]), code, int(found[1]) / 1e6)

    def _record(self, whose: str, code: int, clock: float) -> None:
        known = self._reported.setdefault(whose, deque(maxlen=MOST_XIDS))
        known.append({"code": code, "clock": clock})

    def of(self, gpu: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the XIDs of a GPU, the oldest first. Remove `pci_address` from `gpu`, the result
        of `read_gpu`."""
        names = (gpu.pop("pci_address", None), gpu.get("uuid"))
        return [xid for name in names if name for xid in self._reported.get(name, ())]


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _needs_nothing(handle: Any) -> bool:
    """Return whether the driver reports no recovery action for this GPU now."""
    try:
        asked = [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        (said,) = pynvml.nvmlDeviceGetFieldValues(handle, asked)
        action = int(said.value.uiVal)
        return not said.nvmlReturn and action == pynvml.NVML_GPU_RECOVERY_ACTION_NONE
    except Exception:  # an older driver, or a GPU that does not answer
        return False


def pci_address(text: str) -> str:
    """Return `3b:00` for `0000:3b:00`, `00000000:3B:00.0` and similar addresses, because the kernel
    and NVML write them differently. A domain other than 0 is kept.
    """
    domain, _, rest = text.lower().partition(".")[0].partition(":")
    return rest if not domain.strip("0") else f"{domain.lstrip('0')}:{rest}"

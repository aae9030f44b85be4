"""XIDs: the error numbers that the NVIDIA driver reports for a GPU.

`FAULTS` are the XIDs after which the GPU itself is broken. NVIDIA's catalog ("XID Errors", GPU
Deployment and Management documentation) calls them hardware errors, or advises to reset the GPU or
restart the machine. Any other XID may be the fault of a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

FAULTS: Mapping[int, str] = MappingProxyType(
    {
        48: "double-bit ECC error",
        61: "internal micro-controller breakpoint",
        62: "internal micro-controller halt",
        64: "row of memory could not be remapped",
        74: "NVLink error",
        79: "the GPU has fallen off the bus",
        92: "high rate of single-bit ECC errors",
        94: "contained memory error",
        95: "uncontained memory error",
        119: "the GPU system processor does not answer",
        120: "error of the GPU system processor",
        140: "unrecovered ECC error",
        154: "the driver asks for a recovery of the GPU",
    }
)
"""XIDs of broken hardware with their meanings."""
NOTICES: Mapping[int, str] = MappingProxyType({63: "row of memory remapped at the next reset"})
"""XIDs that report repairs, with their meanings. They need no reset now: the GPU computes correctly
until the next reset.
"""


@dataclass(frozen=True, slots=True)
class GpuXid:
    """An XID that the driver reported. The error happened at `clock` (seconds of CLOCK_MONOTONIC)
    or shortly before.
    """

    code: int
    clock: float


def is_fault(code: int) -> bool:
    """Return whether the XID means that the GPU itself is broken."""
    return code in FAULTS


def describe(code: int) -> str:
    """Return the XID with its meaning: `XID 79 (the GPU has fallen off the bus)`."""
    known = FAULTS.get(code) or NOTICES.get(code)
    return f"XID {code}" if known is None else f"XID {code} ({known})"

"""The state of the machine at one moment, without code that reads it.

The unit of a value is in its name. None: the value could not be measured, and another field has the
reason. `Gpu.missing` has the reason for each field of a GPU. `Gpu.error` is the reason if the whole
GPU could not be read, and `gpus_error` if NVML could not be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from zerotools.sensors.xids import GpuXid

T = TypeVar("T")
BF16_CAPABILITY = (8, 0)
"""The lowest CUDA compute capability of GPUs that compute in bf16 (Ampere; V100 is 7.0, T4 7.5).
Source: CUDA C++ Programming Guide, "Compute Capabilities", table of arithmetic instructions."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU. The number of bytes is None if NVML does not report it.
    `graphics` is True if the process only draws, like a desktop, and does not compute."""

    pid: int
    memory_used_bytes: int | None
    graphics: bool = False


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        error: the reason why no job may use the GPU: its identity, memory or processes are not all
            known, or it is in MIG mode.
        unmeasured: a sentence that names the values that the driver never reports: the memory, or
            the processes, of the GPU. Without these values, programs that are not jobs cannot be
            detected. None if both are reported.
        missing: the reason for each other field that is None, keyed by field name.
        memory_reserved_bytes: memory of the driver, neither used nor free.
        mig_instances: the instances of a GPU in MIG mode; None if the GPU is not in this mode.
        throttle_reasons: the current reasons for slow clocks.
        ecc_corrected_errors, ecc_uncorrected_errors: the numbers of errors since the driver was
            loaded.
        xids: the last error numbers of the driver.
        cpu_affinity, numa_node: the processors near the GPU, as `0-15,32-47`, and the memory node
            near it.
        excluded, preference: set by the configuration. Jobs never get an excluded GPU, and the
            preference is a position in a list (None: it is not in the list).
    """

    index: int
    uuid: str | None = None
    name: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    utilization_percent: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    ecc_corrected_errors: int | None = None
    ecc_uncorrected_errors: int | None = None
    cpu_affinity: str | None = None
    numa_node: int | None = None
    compute_capability: tuple[int, int] | None = None
    processes: tuple[GpuProcess, ...] = ()
    error: str | None = None
    unmeasured: str | None = None
    mig_instances: tuple[str, ...] | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    xids: tuple[GpuXid, ...] = ()
    excluded: bool = False
    preference: int | None = None

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Gpu:
        """Read a GPU from the values that `to_json` returned. Raises ValueError if they are
        wrong.
        """
        known = _known_fields(cls, tree)
        processes = [_build(GpuProcess, p) for p in known.pop("processes", ())]
        known["xids"] = tuple(_build(GpuXid, xid) for xid in known.get("xids", ()))
        for name in ("mig_instances", "throttle_reasons"):
            if (words := known.pop(name, None)) is not None:
                known[name] = tuple(map(str, words))
        known["compute_capability"] = _capability(known.get("compute_capability"))
        return _build(cls, {**known, "processes": tuple(processes)})


@dataclass(frozen=True, slots=True)
class Stall:
    """Pressure stall information of one resource: the percentage of time in which tasks waited for
    it, averaged over 10 and 60 seconds.

    `some`: at least one task waited; `full`: all tasks waited. Source: Linux
    Documentation/accounting/psi.rst.
    """

    some_avg10_percent: float
    some_avg60_percent: float
    full_avg10_percent: float | None = None
    full_avg60_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Pressure:
    """The stalls of each resource; None if the kernel does not report them."""

    memory: Stall | None = None
    cpu: Stall | None = None
    io: Stall | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """Memory, load and network of the machine. `missing` has the reason for each field that is
    None.
    """

    memory_total_bytes: int
    memory_available_bytes: int
    memory_used_bytes: int
    swap_total_bytes: int
    swap_used_bytes: int
    cpu_count: int
    load_average: tuple[float, float, float]
    cpu_percent: float | None = None
    network_received_bytes_per_second: float | None = None
    network_sent_bytes_per_second: float | None = None
    pressure: Pressure | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Host:
        """Read a host from the values that `to_json` returned. Raises ValueError if they are
        wrong.
        """
        known = _known_fields(cls, tree)
        if known.get("pressure") is not None:
            stalls = _known_fields(Pressure, known["pressure"])
            known["pressure"] = Pressure(
                **{name: _build(Stall, stall) for name, stall in stalls.items() if stall}
            )
        known["load_average"] = tuple(known.get("load_average", ()))
        return _build(cls, known)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The machine at `taken_at` (seconds since 1970).

    Attributes:
        gpus, gpus_age_seconds: the GPUs, and how long before `taken_at` they were read (None:
            never).
        gpus_error: the reason why NVML does not answer. Then `gpus` are the last known ones, and no
            job may start on them.
        gpus_silent: True if NVML did not answer in time, but may still answer. False if NVML
            answered, or cannot answer, for example because the driver is missing.
    """

    taken_at: float
    host: Host
    gpus: tuple[Gpu, ...] = ()
    gpus_error: str | None = None
    gpus_age_seconds: float | None = None
    gpus_silent: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as values for `json.dumps`."""
        return asdict(self)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Snapshot:
        """Read a snapshot from the values that `to_json` returned. Raises ValueError if they are
        wrong.

        Unknown fields are ignored, so that the snapshot of a newer daemon can be read.
        """
        known = _known_fields(cls, tree)
        known["host"] = Host.from_json(known.get("host", {}))
        known["gpus"] = tuple(Gpu.from_json(gpu) for gpu in known.get("gpus", ()))
        return _build(cls, known)


def _capability(tree: object) -> tuple[int, int] | None:
    if tree is None:
        return None
    if not isinstance(tree, list | tuple) or len(tree) != 2:
        raise ValueError(f"compute_capability is {tree!r}, not two numbers")
    return int(tree[0]), int(tree[1])


def _known_fields(kind: type[Any], tree: object) -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        raise ValueError(f"{kind.__name__} is {tree!r}, not an object")
    names = {f.name for f in fields(kind)}
    return {name: value for name, value in tree.items() if name in names}


def _build(kind: type[T], tree: object) -> T:
    try:
        return kind(**_known_fields(kind, tree))
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error

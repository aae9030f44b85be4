"""Fake GPUs for tests and benchmarks on machines without GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zerotools.sensors.run_nvml_probe import GpuReading
from zerotools.sensors.snapshot import Gpu, GpuProcess


class FakeProbe:
    """A `GpuProbe` that returns the GPUs and the error that a test sets."""

    def __init__(
        self, gpus: Sequence[Gpu] = (), *, error: str | None = None, age_seconds: float = 0.0
    ) -> None:
        self.gpus = tuple(gpus)
        self.error = error
        self.is_silent = False
        self.age_seconds = age_seconds
        self.closed = False

    def begin(self) -> None:
        """Do nothing."""

    def read(self) -> GpuReading:
        """Return the GPUs and the error that were set."""
        return GpuReading(self.gpus, self.error, self.age_seconds, self.is_silent)

    def close(self) -> None:
        """Record that the probe was closed."""
        self.closed = True


def fake_gpu(
    index: int,
    *,
    total_gib: float = 80,
    used_gib: float = 0.5,
    processes: Sequence[GpuProcess] = (),
    **others: Any,
) -> Gpu:
    """Return a healthy GPU with the UUID `GPU-fake-<index>`. `others` sets more fields of `Gpu`."""
    total, used = int(total_gib * 2**30), int(used_gib * 2**30)
    healthy = Gpu(
        index=index,
        uuid=f"GPU-fake-{index}",
        name="Fake H100",
        memory_total_bytes=total,
        memory_used_bytes=used,
        memory_free_bytes=total - used,
        memory_reserved_bytes=0,
        utilization_percent=0,
        temperature_celsius=40,
        power_watts=70.0,
        power_limit_watts=700.0,
        sm_clock_mhz=1755,
        sm_clock_max_mhz=1980,
        memory_clock_mhz=2619,
        throttle_reasons=(),
        ecc_corrected_errors=0,
        ecc_uncorrected_errors=0,
        compute_capability=(9, 0),
        processes=tuple(processes),
    )
    made: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in others.items()
    }
    return replace(healthy, **made)

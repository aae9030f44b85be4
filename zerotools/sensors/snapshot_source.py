"""Takes snapshots of the machine, with a probe for the GPUs and a sensor for the host."""

from __future__ import annotations

import time
from types import TracebackType

from zerotools.sensors.host_sensor import HostSensor
from zerotools.sensors.run_nvml_probe import GpuProbe, NvmlProbe
from zerotools.sensors.snapshot import Snapshot


class SnapshotSource:
    """Takes snapshots. A reading may block for some seconds while NVML does not answer."""

    def __init__(self, probe: GpuProbe | None = None, host: HostSensor | None = None) -> None:
        self._probe = probe or NvmlProbe()
        self._host = host or HostSensor()

    def begin(self) -> None:
        """Start the first reading without waiting for it."""
        self._probe.begin()

    def read(self) -> Snapshot:
        """Return a snapshot of the current state."""
        reading = self._probe.read()
        return Snapshot(
            taken_at=time.time(),
            host=self._host.read(),
            gpus=reading.gpus,
            gpus_error=reading.error,
            gpus_age_seconds=reading.age_seconds,
            gpus_silent=reading.is_silent,
        )

    def close(self) -> None:
        """End the probe that reads the GPUs."""
        self._probe.close()

    def __enter__(self) -> SnapshotSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

"""A machine whose NVML a test controls, down to the shared library (`nvml_double.c`)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerotools.sensors.run_nvml_probe import PROBE_COMMAND, START_SECONDS, NvmlProbe


class Double:
    """The machine: what its NVML says, and the probes that were made on it."""

    def __init__(self, library: Path, directory: Path) -> None:
        self._state = directory / "state"
        self.kernel_log = directory / "kmsg"
        """The kernel's log, which this user may read once it is there."""
        self.environment = os.environ | {
            "LD_LIBRARY_PATH": str(library),
            "NVML_DOUBLE": str(self._state),
        }
        self.probes: list[NvmlProbe] = []
        self.started: list[int] = []
        """Process ids of the children that the probes started, in their order."""

    def says(self, *lines: str) -> None:
        """Replace the state, in one step."""
        fresh = self._state.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
        fresh.rename(self._state)

    def probe(
        self,
        *,
        start_seconds: float = START_SECONDS,
        deadline_seconds: float = 10.0,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> NvmlProbe:
        """A probe that loads the double."""
        started = self.started

        class Noted(subprocess.Popen[bytes]):
            def __init__(self, *arguments: Any, **keywords: Any) -> None:
                super().__init__(*arguments, **keywords)
                started.append(self.pid)

        probe = NvmlProbe(
            command=(*PROBE_COMMAND, str(self.kernel_log)),
            environment=self.environment,
            popen=Noted,
            start_seconds=start_seconds,
            deadline_seconds=deadline_seconds,
            clock=clock,
        )
        self.probes.append(probe)
        return probe

"""The GPU locks that a supervisor takes before any process of its job begins."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.gpu_locks.lock_directory import (
    GateShut,
    LockDirectory,
    LocksUnknown,
    NoLocks,
    Taken,
)
from zerotoolsd.supervisor.procfs import open_process, read_process

GATE_SECONDS = 20.0
"""A daemon has the gate for a pass over its queue, milliseconds."""


@dataclass(frozen=True)
class AttemptLocks:
    """Descriptors that hold the GPUs; or, of an attempt that may not begin, why."""

    descriptors: tuple[int, ...] = ()
    refusal: str | None = None

    def close(self) -> None:
        """Close the descriptors; forks of this process still hold the locks."""
        for fd in self.descriptors:
            os.close(fd)


def take_locks(told: Mapping[str, Any], seconds: float = GATE_SECONDS) -> AttemptLocks:
    """Take the locks that the daemon described in `told`; none if that is empty.

    `told` has `directory`, `gpus` (their UUIDs), and `held`, the UUIDs that the process `daemon`
    holds.
    """
    if not told:
        return AttemptLocks()
    fds: list[int] = []
    refusal = None
    try:
        directory = LockDirectory(Path(told["directory"]))
    except NoLocks as error:
        return AttemptLocks(refusal=f"the locks of the GPUs are gone: {error}")
    except LocksUnknown as error:
        return AttemptLocks(refusal=f"the locks of the GPUs cannot be checked: {error}")
    try:
        directory.wait_for_gate(seconds)
        for uuid in told["gpus"]:
            # No descriptor is passed on, because systemd passes none when it starts the supervisor.
            fds.append(
                directory.take(uuid, lambda: uuid in told["held"] and _lives(told["daemon"]))  # noqa: B023  # called at once
            )
    except GateShut as error:
        refusal = str(error)
    except Taken as error:
        refusal = f"{uuid} {error}"
    finally:
        directory.close()
    locks = AttemptLocks(tuple(fds), refusal)
    if refusal is None:
        return locks
    locks.close()
    return AttemptLocks(refusal=refusal)


def _lives(process: Mapping[str, int]) -> bool:
    pid = process["pid"]
    fd = open_process(pid, process["start_ticks"])
    if fd is None:
        return read_process(pid) is None and _is_hidden(pid)
    os.close(fd)
    return True


def _is_hidden(pid: int) -> bool:
    """Return whether a process lives that /proc does not show.

    With `hidepid`, /proc hides root's daemon from a user's supervisor. A reused pid is not
    detected.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        return not select.select([fd], [], [], 0)[0]
    finally:
        os.close(fd)

"""Jobs that hold whole GPUs and do not use them: said once of each attempt, and shown while it
lasts.

A job is idle while the driver reports 0 % for each of its GPUs, at every look. GPUs that jobs share
are left out: their use is not told apart. A job that tokenises or saves is idle, too, for a while:
that is why it takes long until it is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zerotools.sensors.snapshot import Gpu
from zerotoolsd.gpu_sharing.measured_use import Owner
from zerotoolsd.queue.rows import Lease

IDLE = "gpus_idle"
"""Kind of the event."""


class IdleGpus:
    """`after_seconds`: from when on a job counts as idle; 0: never. `name` is what people call a
    GPU."""

    def __init__(self, after_seconds: float, name: Callable[[str], str] = str) -> None:
        self._after = after_seconds
        self._name = name
        self._since: dict[Owner, float] = {}
        self._said: dict[Owner, str] = {}

    def look(
        self, leases: Sequence[Lease], gpus: Sequence[Gpu], now: float
    ) -> list[tuple[Lease, str]]:
        """A lease of each job of which it is new, and a sentence; `now` by a monotonic clock."""
        busy = {gpu.uuid: gpu.utilization_percent for gpu in gpus if gpu.uuid is not None}
        held: dict[Owner, list[Lease]] = {}
        for lease in leases:
            if lease.held_by is None:
                held.setdefault((lease.job_id, lease.attempt), []).append(lease)
        idle = {owner for owner, those in held.items() if _is_idle(those, busy)}
        self._since = {owner: self._since.get(owner, now) for owner in idle}
        self._said = {owner: said for owner, said in self._said.items() if owner in idle}
        found = []
        for owner, since in sorted(self._since.items()):
            if not 0 < self._after <= now - since:
                continue
            is_new = owner not in self._said
            names = ", ".join(self._name(lease.gpu_uuid) for lease in held[owner])
            minutes = (now - since) / 60
            self._said[owner] = f"it holds {names} and has not used them for {minutes:.0f} min"
            if is_new:
                found.append((held[owner][0], self._said[owner]))
        return found

    def why(self, job_id: int) -> str | None:
        """What is said of a job now."""
        return next((said for (job, _), said in self._said.items() if job == job_id), None)


def _is_idle(leases: Sequence[Lease], busy: dict[str, int | None]) -> bool:
    return all(lease.bytes is None and busy.get(lease.gpu_uuid) == 0 for lease in leases)

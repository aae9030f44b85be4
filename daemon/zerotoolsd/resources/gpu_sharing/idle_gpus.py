"""Jobs that hold whole GPUs without using them: reported once per attempt, and shown meanwhile.

A job is idle while the driver reports 0 % for each of its GPUs at every check. Shared GPUs are left
out, because their use cannot be attributed. A job that tokenises or saves is idle for a while, too:
that is why the delay until the report is long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zerotools.sensors.snapshot import Gpu
from zerotoolsd.queue.rows import Lease
from zerotoolsd.resources.gpu_sharing.measured_use import Owner

IDLE = "gpus_idle"
"""Kind of the event."""


class IdleGpus:
    """`after_seconds`: the time after which a job counts as idle; 0: never. `name` returns the name
    of a GPU for people."""

    def __init__(self, after_seconds: float, name: Callable[[str], str] = str) -> None:
        self._after = after_seconds
        self._name = name
        self._since: dict[Owner, float] = {}
        self._said: dict[Owner, str] = {}

    def look(
        self, leases: Sequence[Lease], gpus: Sequence[Gpu], now: float
    ) -> list[tuple[Lease, str]]:
        """Return a lease of each newly idle job, with a sentence; `now` is of a monotonic clock."""
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
        """Return the current sentence on a job."""
        return next((said for (job, _), said in self._said.items() if job == job_id), None)


def _is_idle(leases: Sequence[Lease], busy: dict[str, int | None]) -> bool:
    return all(lease.bytes is None and busy.get(lease.gpu_uuid) == 0 for lease in leases)

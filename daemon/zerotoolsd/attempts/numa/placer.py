"""What the ranks of an attempt keep to, on the machine as it is now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zerotools.jobs.tables.spec import NUMA_CORES, NUMA_OFF, JobSpec
from zerotools.sensors.snapshot import Gpu
from zerotools.sensors.topology import ReadTopology, read_topology
from zerotoolsd.attempts.numa.rank_bindings import UNBOUND, RankBindings, bind_ranks
from zerotoolsd.queue.rows import AttemptRow


class RankPlacer:
    """Looks at the machine anew for each attempt: processors come and go, and a cpuset changes.
    `gpus` are those that were seen last."""

    def __init__(
        self, gpus: Callable[[], Sequence[Gpu]], topology: ReadTopology = read_topology
    ) -> None:
        self._gpus = gpus
        self.topology = topology

    def place(self, spec: JobSpec, attempt: AttemptRow) -> RankBindings:
        """What the ranks of `attempt`, which runs `spec`, keep to."""
        if spec.numa == NUMA_OFF:
            return UNBOUND
        size = attempt.world_size or spec.world_size
        topology = self.topology(cores=spec.numa == NUMA_CORES)
        return bind_ranks(spec, size, attempt.gpu_uuids, self._gpus(), topology)

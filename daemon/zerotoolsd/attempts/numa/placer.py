"""The bindings of an attempt's ranks, on the machine as it is now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zerotools.jobs.tables.spec import NUMA_CORES, NUMA_OFF, JobSpec
from zerotools.sensors.numa import ReadTopology, read_topology
from zerotools.sensors.snapshot import Gpu
from zerotoolsd.attempts.numa.choose_bindings import UNBOUND, RankBindings, bind_ranks
from zerotoolsd.queue.rows import AttemptRow


class RankPlacer:
    """Reads the machine's state again for each attempt, because processors and cpusets change.
    `gpus` returns the GPUs that were seen last."""

    def __init__(
        self, gpus: Callable[[], Sequence[Gpu]], topology: ReadTopology = read_topology
    ) -> None:
        self._gpus = gpus
        self.topology = topology

    def place(self, spec: JobSpec, attempt: AttemptRow) -> RankBindings:
        """Return the bindings for the ranks of `attempt`, which runs `spec`."""
        if spec.numa == NUMA_OFF:
            return UNBOUND
        size = attempt.world_size or spec.world_size
        topology = self.topology(cores=spec.numa == NUMA_CORES)
        return bind_ranks(spec, size, attempt.gpu_uuids, self._gpus(), topology)

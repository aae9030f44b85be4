"""Make the job that each node runs for a job with `backend = "slurm"`.

The nodes find each other by `[rendezvous]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.jobfile_tables.elastic_world_sizes import with_passes_of
from zerotools.jobs.jobfile_tables.rendezvous import RendezvousSpec
from zerotools.jobs.jobfile_tables.slurm import SlurmSpec
from zerotools.jobs.jobfile_tables.spec import LOCAL, SLURM, JobSpec

_SOME_ADDRESS = "node:29500"


def on_nodes(
    spec: JobSpec, nodes: int, *, address: str = _SOME_ADDRESS, node_rank: int = 0
) -> JobSpec:
    """Return the job that node `node_rank` runs, for a Slurm job on `nodes` nodes. The micro batch
    is not changed.

    `address` is the address at which the ranks of all nodes meet.
    """
    place = RendezvousSpec()
    if nodes > 1:
        place = replace(place, address=address, nodes=nodes, node_rank=node_rank)
    return replace(spec, backend=LOCAL, slurm=SlurmSpec(), rendezvous=place)


def of_node(spec: JobSpec, nodes: int, address: str, node_rank: int) -> JobSpec:
    """Return the job that node `node_rank` runs after Slurm has started the job on `nodes` nodes.

    If the job may get different numbers of nodes, the micro batch is chosen so that a rank never
    needs more memory for activations than with the largest number of nodes (see
    `elastic_world_sizes`).
    """
    counts, each = spec.slurm.node_counts, spec.world_size
    if len(counts) > 1 and spec.engine == "torch":
        spec = with_passes_of(spec, nodes * each, max(nodes, *counts) * each)
    return on_nodes(spec, nodes, address=address, node_rank=node_rank)


def check_backend(spec: JobSpec) -> Iterator[str]:
    """Yield each problem with `backend`, and with keys that have no effect for this backend."""
    if spec.backend != SLURM:
        if spec.slurm != SlurmSpec():
            yield (
                '[slurm]: has an effect only with backend = "slurm"; set it, or submit with --slurm'
            )
        return
    if spec.rendezvous != RendezvousSpec():
        yield (
            '[rendezvous]: Slurm chooses the nodes of the job; leave it out with backend = "slurm"'
        )
    if spec.size_range is not None or isinstance(spec.gpus, tuple):
        wanted = "ranks" if spec.device == "cpu" else "gpus"
        yield (
            f"{wanted} = {format_value(getattr(spec, wanted))}: under Slurm all nodes have the "
            "same "
            f"number; set {wanted} = {spec.world_size}, and slurm.nodes to the number of nodes"
        )
    if spec.script.adopted is not None:
        yield 'script.adopted: a running process cannot be given to Slurm; set backend = "local"'
    if spec.script.evaluates is not None:
        yield (
            'script.evaluates: works only with backend = "local", because a daemon exports the '
            "model; set that, or export the model with zerotools consolidate, and name it in "
            "script.command"
        )
    if spec.eval.tasks:
        yield (
            f'eval.tasks = {format_value(spec.eval.tasks)}: works only with backend = "local", '
            "because a daemon queues the evaluation; leave it out, and evaluate the checkpoint "
            "with a second job (script.evaluates)"
        )

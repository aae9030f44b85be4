"""`[rendezvous]` of the job file: several machines train one job together, each with its own
daemon.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key
from zerotools.jobs.binding.durations import seconds_of

MOST_NODES = 4096
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})")
_LARGEST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class RendezvousSpec:
    """`[rendezvous]`: one job on several machines (nodes) that have no Slurm. The same job file is
    submitted to the daemon of each machine; see [train on several
    machines](../how-to/several-machines.md).
    """

    address: str | None = key(
        'The address at which the ranks of all nodes meet: `"HOST:PORT"` of node 0, where HOST is '
        "a name that the other nodes can reach.",
        default=None,
        stored_default=None,
        imported=False,
    )
    nodes: int = key(
        "How many machines train the job together. `gpus` or `ranks` count for each machine.",
        default=1,
        stored_default=1,
        minimum=1,
        maximum=MOST_NODES,
        imported=False,
    )
    node_rank: int = key(
        "The number of this node, from 0 on. `zerotools submit --node-rank` sets it too, so "
        "that all nodes can use one file.",
        default=0,
        stored_default=0,
        minimum=0,
        imported=False,
    )
    timeout: int | str = key(
        "How long a node waits for the other nodes, while it keeps its GPUs: seconds, or text such "
        'as `"30m"`. Then it releases the GPUs, and tries again later.',
        default="30m",
        stored_default="30m",
        imported=False,
    )

    @property
    def host_and_port(self) -> tuple[str, int] | None:
        """The host and the port in `address`; None if `address` is not set or not valid."""
        found = None if self.address is None else _ADDRESS.fullmatch(self.address)
        return None if found is None else (found["host"].strip("[]"), int(found["port"]))

    @property
    def timeout_seconds(self) -> float:
        """The value of `timeout` in seconds."""
        return seconds_of(self.timeout)


def check_rendezvous(rendezvous: RendezvousSpec) -> Iterator[str]:
    """Yield the problems in `[rendezvous]` that do not depend on other tables."""
    place, nodes = rendezvous.host_and_port, rendezvous.nodes
    if rendezvous.address is not None and (place is None or not 0 < place[1] <= _LARGEST_PORT):
        yield (
            f"rendezvous.address = {format_value(rendezvous.address)}: is not HOST:PORT; write "
            'the address of node 0, such as "10.0.0.1:29500"'
        )
    if nodes > 1 and rendezvous.address is None:
        yield (
            f"rendezvous.nodes = {nodes}: the nodes need a common address; set rendezvous.address "
            'to "HOST:PORT" of node 0'
        )
    if nodes == 1 and rendezvous.address is not None:
        yield (
            f"rendezvous.address = {format_value(rendezvous.address)}: rendezvous.nodes, the "
            "number "
            "of machines that meet there, is missing; set it, or leave [rendezvous] out"
        )
    if rendezvous.node_rank >= nodes:
        yield (
            f"rendezvous.node_rank = {rendezvous.node_rank}: with {nodes} nodes, it must be from 0 "
            f"to {nodes - 1}"
        )
    try:
        if seconds_of(rendezvous.timeout) <= 0:
            yield f"rendezvous.timeout = {format_value(rendezvous.timeout)}: must be more than 0"
    except ValueError as error:
        yield f"rendezvous.timeout = {format_value(rendezvous.timeout)}: {error}"

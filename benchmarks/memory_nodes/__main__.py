"""What a machine with several memory nodes gives to a process that runs near its memory.

    python -m benchmarks.memory_nodes [--mib 2048] [--rounds 7] [--runs 5]

For each memory node: processes on its processors with memory of its own (near), with memory of each
other node (far), and one that the kernel puts where it likes, as before `numa` existed, with as
many threads as the node has cores. Each process is bound by the supervisor's own code, and its
pages are asked for where they lie. Processes are interleaved. The unit is GiB per second: of a copy
its bytes, of a step of fused AdamW the 28 bytes that it moves per parameter. On one memory node
there is nothing to measure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from benchmarks.measuring import Measurement, interleaved, machine, measure
from zerotools.sensors.cpu_lists import cpu_list
from zerotools.sensors.numa import NumaTopology, read_topology
from zerotoolsd.supervisor.set_numa_binding import RankBinding

NOTHING = "one memory node: nothing to measure"
BYTES_PER_BYTE = {"copy": 2.0, "step": 7.0, "to the GPU": 1.0}
"""Moved for each byte of a buffer: read and written; weight, gradient and two moments are read, and
all but the gradient written."""


def bindings_of(topology: NumaTopology) -> Iterator[tuple[str, RankBinding, int]]:
    """The processes that are measured: their name, what they keep to, and their threads."""
    homes = topology.homes_of(topology.allowed_cpus)
    for home in homes:
        cpus = home.cpus & topology.allowed_cpus
        threads = sum(1 for core in topology.cores if core & cpus) or len(cpus)
        yield f"node {home.number}, unbound", RankBinding(), threads
        for memory in topology.memory_of(homes):
            where = "near" if memory == home.number else f"far, memory of node {memory}"
            yield f"node {home.number}, {where}", RankBinding(cpu_list(cpus), (memory,)), threads


def command(binding: RankBinding, threads: int, mib: int, rounds: int) -> list[str]:
    """One process."""
    what = (json.dumps(binding.to_json()), str(mib), str(rounds), str(threads))
    return [sys.executable, "-m", "benchmarks.memory_nodes.bound_work", *what]


def table(results: Mapping[str, Sequence[Measurement]], mib: int) -> Iterator[str]:
    """Its lines: the median and the range over all rounds of all processes, and where pages lay."""
    yield "| process | what | GiB/s (range) | pages on nodes |"
    yield "|---|---|---|---|"
    for name, measured in results.items():
        found = [json.loads(each.output) for each in measured]
        for what in found[0]["seconds"]:
            yield _row(name, what, found, mib)


def _row(name: str, what: str, found: Sequence[Mapping[str, Any]], mib: int) -> str:
    gib = BYTES_PER_BYTE[what] * mib / 1024
    rates = sorted(gib / seconds for each in found for seconds in each["seconds"][what])
    nodes = cpu_list({node for each in found for node in each["nodes"][what]})
    failed = {each["failed"] for each in found} - {""}
    note = f"; {', '.join(sorted(failed))}" if failed else ""
    return (
        f"| {name} | {what} | {median(rates):.1f} ({rates[0]:.1f} to {rates[-1]:.1f}) "
        f"| {nodes}{note} |"
    )


def main(arguments: Sequence[str], topology: NumaTopology) -> int:
    """Print the table, or that there is none. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=2048, help="the size of each buffer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--runs", type=int, default=5, help="processes of each kind")
    options = parser.parse_args(arguments)
    if len(topology.homes_of(topology.allowed_cpus)) < 2:
        print(NOTHING)
        return 0
    commands = {
        name: partial(measure, command(binding, threads, options.mib, options.rounds))
        for name, binding, threads in bindings_of(topology)
    }
    print(machine())
    for line in table(interleaved(commands, runs=options.runs, warm=False), options.mib):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], read_topology(cores=True)))

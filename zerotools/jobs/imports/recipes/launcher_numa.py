"""What a launcher is told of the processors of its ranks, as the job's `numa`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.report import Findings, KeyOutcome, ReportRow
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.tables.spec import NUMA_AUTO, NUMA_CORES

READ_HERE: Mapping[str, tuple[str, ...]] = {
    "deepspeed": ("bind_cores_to_rank", "bind_core_list"),
    "torchrun": ("numa_binding",),
}
"""Launcher -> its options. That of accelerate is a key of its YAML, too."""
_MODES = {
    "node": (NUMA_AUTO, ""),
    "socket": (NUMA_AUTO, "the GPU's node, and its socket where the node is too small"),
    "exclusive": (NUMA_CORES, ""),
    "core-complex": (NUMA_CORES, "cores that are neighbours"),
}
"""Of `torchrun --numa-binding` (torch 2.13, torch/numa/binding.py)."""


@dataclass(frozen=True)
class NumaAsked:
    """The option that was given, what the job's `numa` is by it, and what the reader should know of
    that."""

    given: ConfigValue
    numa: str
    why: str = ""


def numa_of(
    launcher: str, options: Mapping[str, ConfigValue], findings: Findings
) -> NumaAsked | None:
    """What is asked for; None: nothing."""
    options = {name: options[name] for name in READ_HERE.get(launcher, ()) if name in options}
    if (cores := options.get("bind_core_list")) is not None:
        why = "the daemon takes the processors that it may use itself (taskset, AllowedCPUs=)"
        row = ReportRow(KeyOutcome.IGNORED, cores.title, cores.place, cores.value, None, why)
        findings.rows.append(row)
    if (ranks := options.get("bind_cores_to_rank")) is not None:
        return NumaAsked(ranks, NUMA_CORES, "cores near the GPU of each rank")
    given = options.get("numa_binding")
    if given is None:
        return None
    if given.value not in _MODES:
        listed = ", ".join(map(show, _MODES))
        findings.wrong.append(f"{given.said} = {show(given.value)}: must be one of {listed}")
        return None
    return NumaAsked(given, *_MODES[str(given.value)])

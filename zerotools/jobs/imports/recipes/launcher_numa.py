"""A launcher's options for the processors of its ranks, as the job's `numa`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.report import Findings, KeyOutcome, ReportRow
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.tables.spec import NUMA_AUTO, NUMA_CORES, NUMA_OFF

READ_HERE: Mapping[str, tuple[str, ...]] = {
    "deepspeed": ("bind_cores_to_rank", "bind_core_list"),
    "torchrun": ("numa_binding",),
}
"""Launcher -> its options. That of accelerate is a key of its YAML, too."""
AFFINITY = "ACCELERATE_CPU_AFFINITY"
"""A variable that accelerate reads in each rank."""
_ON = ("1", "y", "yes", "t", "true", "on")
_MODES = {
    "node": (NUMA_AUTO, ""),
    "socket": (NUMA_AUTO, "the GPU's node, or its socket if the node is too small"),
    "exclusive": (NUMA_CORES, ""),
    "core-complex": (NUMA_CORES, "cores that are neighbours"),
}
"""Of `torchrun --numa-binding` (torch 2.13, torch/numa/binding.py)."""


@dataclass(frozen=True)
class NumaAsked:
    """The given option, the job's `numa` for it, and a remark on that."""

    given: ConfigValue
    numa: str
    why: str = ""


def numa_of(
    launcher: str,
    options: Mapping[str, ConfigValue],
    affinity: ConfigValue | None,
    findings: Findings,
) -> NumaAsked | None:
    """Return the requested setting, or None. `affinity`: the variable AFFINITY."""
    own = {name: options[name] for name in READ_HERE.get(launcher, ()) if name in options}
    asked = _by_option(own, findings)
    if affinity is None:
        return asked
    is_on = str(affinity.value).lower() in _ON
    if is_on and asked is None:
        return NumaAsked(affinity, NUMA_AUTO)
    off = f'numa = "{NUMA_OFF}" leaves the ranks to the kernel'
    why = f"{asked.given.title} chooses the nodes" if is_on and asked is not None else off
    _ignore(affinity, why, findings)
    return asked


def _by_option(options: Mapping[str, ConfigValue], findings: Findings) -> NumaAsked | None:
    if (cores := options.get("bind_core_list")) is not None:
        why = "the daemon takes the processors that it may use itself (taskset, AllowedCPUs=)"
        _ignore(cores, why, findings)
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


def _ignore(given: ConfigValue, why: str, findings: Findings) -> None:
    row = ReportRow(KeyOutcome.IGNORED, given.title, given.place, given.value, None, why)
    findings.rows.append(row)

"""How many ranks accelerate starts, where, and on which processors."""

from __future__ import annotations

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.batch import ranks_key, world_size
from zerotools.jobs.imports.reading.reader import ConfigReading
from zerotools.jobs.imports.reading.report import KeyOutcome, ReportRow
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.launcher_keys.launch_flags import SEVERAL_MACHINES
from zerotools.jobs.tables.spec import NUMA_AUTO, NUMA_CORES


def read_ranks(reading: ConfigReading, kind: str) -> None:
    """Map `use_cpu`, `num_machines`, `num_processes` and `gpu_ids`."""
    cpu = reading.take("use_cpu")
    if cpu is not None and cpu.value is True:
        reading.map(cpu, "device", "cpu")
    elif cpu is not None:
        reading.row(KeyOutcome.IGNORED, cpu, None, "the job file chooses the machines")
    machines = reading.take("num_machines")
    if machines is not None:
        if machines.value not in (None, 1):
            what = f"{machines.said} = {show(machines.value)}: {SEVERAL_MACHINES}"
            reading.findings.unsupported.append(what)
        reading.row(KeyOutcome.IGNORED, machines, None, "the job is that of one machine")
    processes, ids = reading.take("num_processes"), reading.take("gpu_ids")
    listed = None if ids is None else _listed(reading, ids)
    if ids is not None and not listed:
        reading.row(KeyOutcome.IGNORED, ids, None, "the daemon picks GPUs that are free")
    if processes is not None:
        _count(reading, processes, kind, listed)
    if ids is not None and listed:
        _place(reading, ids, listed)
    if kind != "NO" and world_size(reading.claims) is None:
        key, why = (
            ranks_key(reading.claims),
            "accelerate takes every GPU then; the job has one rank",
        )
        row = ReportRow(KeyOutcome.DEFAULT, "num_processes", reading.source, None, key, why)
        reading.findings.rows.append(row)


def read_affinity(reading: ConfigReading) -> None:
    """Map `enable_cpu_affinity`, which `accelerate config` writes as false by default."""
    given, known = reading.take("enable_cpu_affinity"), reading.claims.of("numa")
    if given is None:
        return
    if given.value is not True:
        why = 'numa = "off" leaves the ranks to the kernel'
        reading.row(KeyOutcome.IGNORED, given, None, why)
    elif known is not None and known.value == NUMA_CORES:
        reading.row(KeyOutcome.MAPPED, given, "numa", f'{known.place} says "{NUMA_CORES}"')
    else:
        reading.map(given, "numa", NUMA_AUTO)


def _listed(reading: ConfigReading, given: ConfigValue) -> list[int] | None:
    """Return the indices in `gpu_ids`; None for "all"."""
    if given.value in (None, "all", ""):
        return None
    entries = given.value if isinstance(given.value, list) else str(given.value).split(",")
    texts = [str(entry).strip() for entry in entries]
    if not all(text.isascii() and text.isdecimal() and len(text) < 5 for text in texts):
        what = f'{given.said} = {show(given.value)}: must be "all" or indices such as "0,1"'
        if str(given.value).startswith("all"):
            what += '; did you mean "all"?'
        reading.findings.wrong.append(what)
        return None
    return [int(text) for text in texts]


def _count(reading: ConfigReading, given: ConfigValue, kind: str, listed: list[int] | None) -> None:
    if type(given.value) is not int or given.value < 1:
        what = f"{given.said} = {show(given.value)}: must be a whole number, 1 at least"
        reading.findings.wrong.append(what)
        return
    key = ranks_key(reading.claims)
    if kind == "NO" and given.value > 1:
        why = "distributed_type NO means one process"
        reading.row(KeyOutcome.IGNORED, given, None, why)
        return
    if listed is not None and len(listed) != given.value:
        what = f"{given.said} = {given.value}: gpu_ids lists {len(listed)}; make them agree"
        reading.findings.wrong.append(what)
        return
    known = world_size(reading.claims)
    if listed is None and (known is None or known.value != given.value):
        reading.map(given, key, given.value)
    else:
        reading.row(KeyOutcome.MAPPED, given, key)


def _place(reading: ConfigReading, given: ConfigValue, listed: list[int]) -> None:
    key = ranks_key(reading.claims)
    known = world_size(reading.claims)
    if key == "ranks" or (known is not None and known.value == len(listed)):
        why = "the daemon picks GPUs" if key == "gpus" else "the ranks run on the CPU"
        reading.row(KeyOutcome.IGNORED, given, None, why)
    else:
        reading.map(given, key, listed)

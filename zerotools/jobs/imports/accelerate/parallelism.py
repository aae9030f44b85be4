"""accelerate's `parallelism_config`: how many ranks share a copy of the model.

Names: accelerate 1.15, parallelism_config.py. The product of all sizes is the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.batch import world_size
from zerotools.jobs.imports.reading.reader import ConfigReading
from zerotools.jobs.imports.reading.report import KeyOutcome
from zerotools.jobs.imports.reading.typed_keys import ConfigValue

_NAME = "parallelism_config"
_OTHERS = {"tp": "tensor parallelism", "cp": "context parallelism", "sp": "sequence parallelism"}


def read_parallelism(reading: ConfigReading, kind: str) -> None:
    """Map the sizes of plain data parallelism; any other is not supported."""
    given = reading.take(_NAME)
    if given is None:
        return
    table: Mapping[str, Any] = given.value if isinstance(given.value, Mapping) else {}
    sizes = {name: _size(reading, given, table, name) for name in ("dp_replicate", "dp_shard")}
    others = [n for n in _OTHERS if _size(reading, given, table, n) > 1]
    for name in others:
        reading.findings.unsupported.append(
            f"{given.said}.{_NAME}_{name}_size = {table[f'{_NAME}_{name}_size']}: jobs do not "
            f"support {_OTHERS[name]} yet"
        )
    copies, shard = sizes["dp_replicate"], sizes["dp_shard"]
    ranks = world_size(reading.claims)
    if others:
        return
    if shard > 1 and kind not in ("FSDP", "DEEPSPEED"):
        reading.findings.wrong.append(
            f"{given.said}.{_NAME}_dp_shard_size = {shard}: shards the model, but distributed_type "
            f"{kind} does not; set distributed_type: FSDP, or remove it"
        )
    elif copies * shard > 1 and ranks is not None and ranks.value != copies * shard:
        reading.findings.wrong.append(
            f"{given.said}: {copies} copies x {shard} ranks that share one make {copies * shard} "
            f"ranks, but {ranks.place} says {ranks.value}; make them agree"
        )
    elif kind == "FSDP" and copies > 1:
        why = f"{shard} rank{'s' * (shard > 1)} share each of {copies} copies (HSDP)"
        reading.map(given, "zero.shard_size", shard, why)
    else:
        reading.row(
            KeyOutcome.IGNORED, given, None, "all ranks share one copy, or each has its own"
        )


def _size(reading: ConfigReading, given: ConfigValue, table: Mapping[str, Any], name: str) -> int:
    value = table.get(f"{_NAME}_{name}_size")
    if value in (None, "", -1):
        return 1
    if type(value) is not int or value < 1:
        what = (
            f"{given.said}.{_NAME}_{name}_size = {show(value)}: must be a whole number, 1 or more"
        )
        reading.findings.wrong.append(what)
        return 1
    return value

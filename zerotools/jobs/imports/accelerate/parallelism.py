"""accelerate's `parallelism_config`: how many ranks share a copy of the model, or one layer of it.

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
_OTHERS = {"cp": "context parallelism", "sp": "sequence parallelism"}


def read_parallelism(reading: ConfigReading, kind: str) -> None:
    """Map the sizes of data and tensor parallelism; any other is not supported."""
    given = reading.take(_NAME)
    if given is None:
        return
    table: Mapping[str, Any] = given.value if isinstance(given.value, Mapping) else {}
    sizes = {
        name: _size(reading, given, table, name) for name in ("dp_replicate", "dp_shard", "tp")
    }
    others = [n for n in _OTHERS if _size(reading, given, table, n) > 1]
    for name in others:
        reading.findings.unsupported.append(
            f"{given.said}.{_NAME}_{name}_size = {table[f'{_NAME}_{name}_size']}: jobs do not "
            f"support {_OTHERS[name]} yet"
        )
    copies, shard, tensor = sizes.values()
    ranks = world_size(reading.claims)
    if others:
        return
    if tensor > 1 and kind != "FSDP":
        reading.findings.unsupported.append(
            f"{given.said}.{_NAME}_tp_size = {tensor}: jobs support tensor parallelism together "
            f"with FSDP, and distributed_type is {kind}; set distributed_type: FSDP, or remove it"
        )
    elif tensor > 1 and copies > 1:
        reading.findings.unsupported.append(
            f"{given.said}.{_NAME}_dp_replicate_size = {copies}: jobs do not support several "
            f"copies together with {_NAME}_tp_size = {tensor}; remove one of them"
        )
    elif shard > 1 and kind not in ("FSDP", "DEEPSPEED"):
        reading.findings.wrong.append(
            f"{given.said}.{_NAME}_dp_shard_size = {shard}: shards the model, but distributed_type "
            f"{kind} does not; set distributed_type: FSDP, or remove it"
        )
    elif (made := copies * shard * tensor) > 1 and ranks is not None and ranks.value != made:
        times = f" x {tensor} tensor ranks" if tensor > 1 else ""
        reading.findings.wrong.append(
            f"{given.said}: {copies} copies x {shard} ranks that share one{times} make {made} "
            f"ranks, but {ranks.place} says {ranks.value}; make them agree"
        )
    elif tensor > 1:
        why = f"{tensor} ranks compute with one layer's weights together"
        reading.map(given, "zero.tensor_ranks", tensor, why)
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

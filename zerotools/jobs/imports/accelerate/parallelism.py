"""accelerate's `parallelism_config`: how many ranks share a copy of the model, or a sequence.

Names: accelerate 1.15, parallelism_config.py. The product of all sizes is the number of ranks. Of
`cp` (torch's, which sends keys and values round) and `sp` (DeepSpeed's, which exchanges heads) both
have ranks compute parts of one sequence, and shard the model over these ranks, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.batch import JOB_SEQUENCE_RANKS, world_size
from zerotools.jobs.imports.reading.reader import ConfigReading
from zerotools.jobs.imports.reading.report import KeyOutcome
from zerotools.jobs.imports.reading.typed_keys import ConfigValue

_NAME = "parallelism_config"
_OTHERS = {"tp": "tensor parallelism"}
_OF_SEQUENCES = ("cp", "sp")


def read_parallelism(reading: ConfigReading, kind: str) -> None:
    """Map the sizes of data parallelism and of ranks that share sequences; any other is not
    supported."""
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
    both = {name: _size(reading, given, table, name) for name in _OF_SEQUENCES}
    if min(both.values()) > 1:
        reading.findings.wrong.append(
            f"{given.said}: {_NAME}_cp_size = {both['cp']} and {_NAME}_sp_size = {both['sp']} both "
            "have ranks share sequences; leave one of them out"
        )
        return
    together = max(both.values())
    copies, shard = sizes["dp_replicate"], sizes["dp_shard"]
    ranks = world_size(reading.claims)
    if others:
        return
    if shard > 1 and kind not in ("FSDP", "DEEPSPEED"):
        reading.findings.wrong.append(
            f"{given.said}.{_NAME}_dp_shard_size = {shard}: shards the model, but distributed_type "
            f"{kind} does not; set distributed_type: FSDP, or remove it"
        )
        return
    made = copies * shard * together
    if made > 1 and ranks is not None and ranks.value != made:
        each = f" x {together} ranks that share sequences" if together > 1 else ""
        reading.findings.wrong.append(
            f"{given.said}: {copies} copies x {shard} ranks that share one{each} make {made} "
            f"ranks, but {ranks.place} says {ranks.value}; make them agree"
        )
        return
    if together > 1:
        why = f"{together} ranks compute each sequence together"
        reading.map(given, JOB_SEQUENCE_RANKS, together, why)
    if kind == "FSDP" and copies > 1:
        size = shard * together
        why = f"{size} rank{'s' * (size > 1)} share each of {copies} copies (HSDP)"
        reading.map(given, "zero.shard_size", size, why)
    elif together == 1:
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

"""The bindings of an attempt's ranks for clients, from the supervisor's record.

Ranks can write into the run directory too, so invalid bindings are not shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from zerotools.sensors.cpu_lists import cpu_list
from zerotoolsd.queue.rows import ENDED, AttemptRow
from zerotoolsd.queue.values import one_line
from zerotoolsd.supervisor.durable import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.plan import RUN
from zerotoolsd.users.open_as_user import opened

_LIST = re.compile(r"(\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?){0,4000})?")
_MOST_NODES = 1024
_MOST_RANKS = 2**16
_LONGEST_WHY = 500

_Binding = tuple[str, tuple[int, ...], str | None]


def shown_binding(attempt: AttemptRow) -> tuple[dict[str, Any], ...] | None:
    """Return one object for all ranks with the same binding; None if no rank has one.

    It has `ranks` and `cpus` in the kernel's list format, `memory_nodes`, and `why` the binding is
    incomplete, or null.
    """
    record: Mapping[str, Any] = attempt.result or {}
    if attempt.state != ENDED:
        with suppress(OSError, ValueError), opened(Path(attempt.run_dir)) as base:
            record = read_json(base / RUN, LARGEST_RECORD) or {}
    ranks, found = record.get("ranks"), dict[_Binding, list[int]]()
    for rank in ranks[:_MOST_RANKS] if isinstance(ranks, list) else ():
        if (told := _told(rank)) is not None:
            found.setdefault(told[1], []).append(told[0])
    return tuple(_line(binding, ranks) for binding, ranks in found.items()) or None


def _line(binding: _Binding, ranks: Sequence[int]) -> dict[str, Any]:
    cpus, nodes, why = binding
    return {"ranks": cpu_list(ranks), "cpus": cpus, "memory_nodes": list(nodes), "why": why}


def _told(tree: object) -> tuple[int, _Binding] | None:
    binding = tree.get("binding") if isinstance(tree, Mapping) else None
    if not isinstance(tree, Mapping) or not isinstance(binding, Mapping):
        return None
    rank, cpus, nodes = tree.get("rank"), binding.get("cpus"), binding.get("nodes")
    if type(rank) is not int or not 0 <= rank < _MOST_RANKS:
        return None
    if not isinstance(cpus, str) or not _LIST.fullmatch(cpus) or not _are_nodes(nodes):
        return None
    why = binding.get("why")
    said = one_line(str(why))[:_LONGEST_WHY] if why else None
    return rank, (cpus, tuple(nodes), said)


def _are_nodes(nodes: object) -> TypeGuard[list[int]]:
    if not isinstance(nodes, list) or len(nodes) > _MOST_NODES:
        return False
    return all(type(node) is int and 0 <= node < _MOST_NODES for node in nodes)

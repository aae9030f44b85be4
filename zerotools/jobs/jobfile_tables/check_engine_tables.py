"""Check that a job file has the tables that its engine needs, and no tables of other engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from zerotools.jobs.binding.bind import format_value, hints_of
from zerotools.jobs.jobfile_tables.spec import ENGINES, JobSpec

SCRIPT = "script"
NEEDED = ("model", "data", "train")
"""The tables that a job with engine torch or deepspeed must have."""
SHARED = ("metrics", "stall", "limits", "memory", "notify", "rendezvous", "slurm")
"""The tables that a job with any engine may have."""


def misplaced_keys(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield each key or table at the root of the job file that the job's engine does not have."""
    unknown = _unknown_to_scripts() if tree.get("engine") == SCRIPT else (SCRIPT,)
    for name in tree:
        if name in unknown:
            yield name


@cache
def _unknown_to_scripts() -> frozenset[str]:
    tables = {name for name, hint in hints_of(JobSpec).items() if is_dataclass(hint)}
    return frozenset({"seed", "resume_order", *tables.difference((SCRIPT, *SHARED))})


def check_tables(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each missing table, and for each table that the job's engine does not
    have.

    Each mistake is reported once. If the engine is unknown, yield nothing, because another check
    reports the engine. If the job has `[script]` but no table in `NEEDED`, the only problem is that
    `engine = "script"` is missing.
    """
    engine = tree.get("engine", "torch")
    if engine not in ENGINES:
        return  # the binding of tables reports it
    if engine != SCRIPT and SCRIPT in tree and not any(name in tree for name in NEEDED):
        todo = f", and engine is {format_value(engine)}; set" if "engine" in tree else "; add"
        place = "" if "engine" in tree else " before the first table"
        yield f'{SCRIPT}: is for a job of engine = "{SCRIPT}"{todo} engine = "{SCRIPT}"{place}'
        return
    for name in (SCRIPT,) if engine == SCRIPT else NEEDED:
        if name not in tree:
            yield f"{name}: the table [{name}] is missing"
    for name in misplaced_keys(tree):
        why = f'cannot be used in an engine = "{engine}" job; leave it out'
        if engine == SCRIPT:
            why += ", or pass it in script.command"
        else:
            why += f', or set engine = "{SCRIPT}" and leave {", ".join(NEEDED)} out'
        yield f"{name}: {why}"

"""The common values of the job files of all nodes of one job."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from zerotools.jobs.jobfile.parse import tree_of
from zerotools.jobs.tables.spec import JobSpec

SHARED = (
    *("engine", "device", "seed", "output_dir", "model", "data", "train", "fp16", "zero", "lora"),
    *("eval", "offload", "checkpoint", "deepspeed"),
)
"""Keys and tables that must agree, because all ranks train one model and make the same steps
together."""


def shared_keys(spec: JobSpec) -> dict[str, Any]:
    """Return the values of `SHARED`, without paths: each node may have its copy of the model or of
    the data at another path, and the contents are compared later."""
    found: dict[str, Any] = {}
    for name in SHARED:
        value = getattr(spec, name)
        found[name] = _without_paths(value) if is_dataclass(value) else value
    return found


def _without_paths(table: Any) -> dict[str, Any]:
    tree = tree_of(table)
    for each in fields(table):
        if each.metadata.get("path") and not isinstance(tree.get(each.name), dict):
            tree.pop(each.name, None)
    return tree

"""Look up keys of the job file by their dotted names.

The keys are declared in `zerotools.jobs.jobfile_tables.spec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field
from functools import cache
from typing import Any

from zerotools.jobs.binding.bind import Mismatch, convert_value, dotted_keys
from zerotools.jobs.jobfile_tables.spec import JobSpec

JobTree = dict[str, Any]


@cache
def job_keys() -> Mapping[str, tuple[Field[Any], Any]]:
    """Return the dataclass field and the type of every key of the job file, keyed by dotted name,
    in the order of the reference page.
    """
    return dict(dotted_keys(JobSpec))


@cache
def _by_deepspeed_name() -> Mapping[str, str]:
    names = {key: item.metadata["deepspeed"] for key, (item, _) in job_keys().items()}
    return {name: key for key, name in names.items() if name is not None}


def job_key_of(name: str) -> str | None:
    """Return the job file's key that has the same meaning as DeepSpeed's dotted key `name`;
    None if there is no such key.
    """
    return _by_deepspeed_name().get(name)


def deepspeed_names(table: str) -> Mapping[str, str]:
    """Return a mapping from each key in the job file's `table` to DeepSpeed's key with the same
    meaning. Keys that DeepSpeed does not have are left out.
    """
    return {key: name for name, key in _by_deepspeed_name().items() if key.startswith(f"{table}.")}


def default_of(key: str) -> Any:
    """Return the default of `key` in the job file; None if it has no default."""
    item, _ = job_keys()[key]
    return None if item.default is MISSING else item.default


def accepts_value(key: str, value: Any) -> bool:
    """Return whether `key` is a key of the job file and `value` is valid for it."""
    if key not in job_keys():
        return False
    item, hint = job_keys()[key]
    try:
        converted = convert_value(hint, value)
    except Mismatch:
        return False
    allowed = item.metadata.get("allowed")
    return allowed is None or converted in allowed


def look_up(tree: Mapping[str, Any], key: str) -> Any:
    """Return the value of the dotted `key` in the job `tree`; None if the tree does not set it."""
    at: Any = tree
    for name in key.split("."):
        at = at.get(name) if isinstance(at, Mapping) else None
    return at


def set_key(tree: JobTree, key: str, value: Any) -> None:
    """Set the dotted `key` in the job `tree` to `value`, and add missing tables.

    If `tree` has another value in place of a table, nothing is changed: the job is refused later
    because of this value.
    """
    *tables, name = key.split(".")
    for table in tables:
        tree = tree.setdefault(table, {})
        if not isinstance(tree, dict):
            return
    tree[name] = value


def drop_key(tree: JobTree, key: str) -> None:
    """Remove the dotted `key` from `tree`, if it is set."""
    *tables, name = key.split(".")
    for table in tables:
        tree = tree.get(table, {})
        if not isinstance(tree, dict):
            return
    tree.pop(name, None)


def in_order(tree: Mapping[str, Any]) -> JobTree:
    """Return a copy of the job `tree` with its keys in the order of the reference page. Keys that
    job files do not have are left out."""
    ordered: JobTree = {}
    for key in job_keys():
        value = look_up(tree, key)
        if value is not None:
            set_key(ordered, key, value)
    return ordered


def known_only(tree: Mapping[str, Any], like: Mapping[str, Any]) -> JobTree:
    """Return a copy of `tree` with only the keys that `like` also has."""
    kept: JobTree = {}
    for name, value in tree.items():
        if name in like:
            inner = like[name]
            both = isinstance(value, Mapping) and isinstance(inner, Mapping)
            kept[name] = known_only(value, inner) if both else value
    return kept

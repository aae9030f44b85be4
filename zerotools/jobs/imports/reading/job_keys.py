"""Look up the job file's keys by dotted name, as `zerotools.jobs.tables.spec` declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field
from functools import cache
from typing import Any

from zerotools.jobs.binding.bind import Mismatch, convert, dotted_keys
from zerotools.jobs.tables.spec import JobSpec

JobTree = dict[str, Any]


@cache
def job_keys() -> Mapping[str, tuple[Field[Any], Any]]:
    """Return the field and the type of every key, in the order of the reference page."""
    return dict(dotted_keys(JobSpec))


@cache
def _by_deepspeed_name() -> Mapping[str, str]:
    names = {key: item.metadata["deepspeed"] for key, (item, _) in job_keys().items()}
    return {name: key for key, name in names.items() if name is not None}


def job_key_of(name: str) -> str | None:
    """Return the key of the job file with the meaning of the dotted key `name` of DeepSpeed's JSON,
    or None."""
    return _by_deepspeed_name().get(name)


def deepspeed_names(table: str) -> Mapping[str, str]:
    """Return the keys of the job file's `table` that DeepSpeed's JSON also has, with their names in
    DeepSpeed's JSON."""
    return {key: name for name, key in _by_deepspeed_name().items() if key.startswith(f"{table}.")}


def default_of(key: str) -> Any:
    """Return the job file's default for `key`; None if it has none."""
    item, _ = job_keys()[key]
    return None if item.default is MISSING else item.default


def accepts(key: str, value: Any) -> bool:
    """Return whether the job file has `key`, with a type and rules that accept `value`."""
    if key not in job_keys():
        return False
    item, hint = job_keys()[key]
    try:
        converted = convert(hint, value)
    except Mismatch:
        return False
    allowed = item.metadata.get("allowed")
    return allowed is None or converted in allowed


def look_up(tree: Mapping[str, Any], key: str) -> Any:
    """Return the value of dotted `key` in a job's tree; None if it is not set."""
    at: Any = tree
    for name in key.split("."):
        at = at.get(name) if isinstance(at, Mapping) else None
    return at


def put(tree: JobTree, key: str, value: Any) -> None:
    """Set the dotted `key` in `tree`, and make the tables that lead to it.

    A value in the place of a table stays; the job is refused for it later.
    """
    *tables, name = key.split(".")
    for table in tables:
        tree = tree.setdefault(table, {})
        if not isinstance(tree, dict):
            return
    tree[name] = value


def drop(tree: JobTree, key: str) -> None:
    """Remove the dotted `key` from `tree`, if it is set."""
    *tables, name = key.split(".")
    for table in tables:
        tree = tree.get(table, {})
        if not isinstance(tree, dict):
            return
    tree.pop(name, None)


def in_order(tree: Mapping[str, Any]) -> JobTree:
    """Return the keys that `tree` sets, in the order of the reference page."""
    ordered: JobTree = {}
    for key in job_keys():
        value = look_up(tree, key)
        if value is not None:
            put(ordered, key, value)
    return ordered


def known_only(tree: Mapping[str, Any], like: Mapping[str, Any]) -> JobTree:
    """Return `tree` without the keys that `like` lacks."""
    kept: JobTree = {}
    for name, value in tree.items():
        if name in like:
            inner = like[name]
            both = isinstance(value, Mapping) and isinstance(inner, Mapping)
            kept[name] = known_only(value, inner) if both else value
    return kept

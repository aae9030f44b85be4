"""Make many jobs from one job file: one for each combination of the values of some keys."""

from __future__ import annotations

import copy
import itertools
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.binding.bind import dotted_keys, format_value, key_meant
from zerotools.jobs.jobfile_tables.spec import JobSpec

MOST_MEMBERS = 1000
INDEX_VARIABLE = "ZEROTOOLS_ARRAY_INDEX"
"""The environment variable in which each rank of a job finds the job's index in the array, from
0.
"""
_ENV = "env."
_OWN = frozenset({"name", "output_dir", "captured_env", "env"})
"""Keys that cannot be varied in an array, because each job has its own value anyway."""


@dataclass(frozen=True, kw_only=True)
class ArrayMember:
    """One job of an array.

    `tree` is its job file, and `label` has its values of the varied keys, such as `train.steps=40`.
    """

    index: int
    tree: Mapping[str, Any]
    label: str


def values_of(text: str) -> tuple[str, list[Any]]:
    """Parse `train.learning_rate=1e-4,3e-4` into the key and the list of its values.

    A value is TOML or a plain word.

    Raises BadRequest.
    """
    key, equals, given = text.partition("=")
    if not equals or not key.strip() or not given.strip():
        raise BadRequest(f"--sweep {text}: must be KEY=VALUE,VALUE,... such as seed=1,2,3")
    key, plain = key.strip(), [part.strip() for part in given.split(",")]
    try:
        values = tomllib.loads(f"v = [{given}]")["v"]
    except (tomllib.TOMLDecodeError, RecursionError):
        values = list(map(_value, plain))
    if key.startswith(_ENV) and not all(isinstance(value, str) for value in values):
        values = plain  # as the user typed it: 1e-4 stays 1e-4
    return key, list(values)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def count_of(sweep: Mapping[str, Sequence[Any]], count: int | None) -> int:
    """Return the number of jobs in the array: the number of combinations of values times
    `count`. Raises BadRequest: too many jobs, or no job.
    """
    for key, values in sweep.items():
        if not values:
            raise BadRequest(f"sweep: {key} has no values")
        if len({format_value(value) for value in values}) < len(values):
            raise BadRequest(f"sweep: {key} has a value twice; name each value once")
    members = math.prod(len(values) for values in sweep.values()) * (1 if count is None else count)
    if not 1 <= members <= MOST_MEMBERS:
        raise BadRequest(
            f"these are {members} jobs, but an array has 1 to {MOST_MEMBERS}; leave out values, "
            "or make several arrays"
        )
    return members


def members_of(
    tree: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]], count: int | None
) -> list[ArrayMember]:
    """Return the jobs of an array, each with its own output directory and name.

    `tree` is the job file. There are `count` jobs (None: one job) for each combination of the
    values in `sweep`. All arguments are checked before a job is made.

    Raises BadRequest: an unknown key, or too many jobs.
    """
    return list(each_member(tree, sweep, count))


def each_member(
    tree: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]], count: int | None
) -> Iterator[ArrayMember]:
    """Yield the jobs that `members_of` returns, one after another."""
    count_of(sweep, count)
    for key in sweep:
        if key in _OWN:
            raise BadRequest(
                f"sweep: {key}: each job of an array gets a separate one already; leave it out"
            )
        check_key(key, "sweep", _OWN)
    keys = list(sweep)
    choices = itertools.product(*sweep.values())
    numbered = itertools.product(choices, range(1 if count is None else count))
    for index, (chosen, _) in enumerate(numbered):
        member = copy.deepcopy(dict(tree))
        for key, value in zip(keys, chosen, strict=True):
            set_key(member, key, str(value) if key.startswith(_ENV) else value)
        set_key(member, f"{_ENV}{INDEX_VARIABLE}", str(index))
        if isinstance(member.get("name"), str):
            member["name"] = f"{member['name']}-{index}"[:200]
        if isinstance(member.get("output_dir"), str):
            member["output_dir"] = f"{member['output_dir']}/{index}"
        saving = member.get("checkpoint")
        if isinstance(saving, dict) and isinstance(saving.get("upload_to"), str):
            saving["upload_to"] = f"{saving['upload_to'].rstrip('/')}/{index}"
        label = ", ".join(
            f"{k}={format_value(v, bare=True)}" for k, v in zip(keys, chosen, strict=True)
        )
        yield ArrayMember(index=index, tree=member, label=label)


@cache
def _known_keys() -> Mapping[str, object]:
    return dict(dotted_keys(JobSpec))


def check_key(key: str, what: str, own: frozenset[str]) -> None:
    """Raise BadRequest if an option must not set the key `key`.

    This is the case if job files do not have the key, or if it is in `own`, the keys that the
    command itself sets. The message names the option as `what`.
    """
    known = _known_keys()
    if key.startswith(_ENV) and len(key) > len(_ENV):
        return
    if key in own:
        raise BadRequest(f"{what}: {key}: cannot be set here; leave it out")
    if key not in known:
        table, dot, name = key.rpartition(".")
        where = table + dot
        near = key_meant(
            name, where, [k[len(where) :] for k in known if k.startswith(where)], known
        )
        hint = f"; did you mean {near}?" if near else ""
        raise BadRequest(f"{what}: {format_value(key, bare=True)}: unknown key{hint}")


def set_key(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set the dotted `key` in the job `tree` to `value`.

    If `tree` has a valid scalar where `key` needs a table (`gpus = 4` for `gpus.min`), the table
    replaces the scalar. An invalid scalar is kept, so that the job is refused when it is parsed.
    """
    *tables, last = key.split(".", 1) if key.startswith(_ENV) else key.split(".")
    for name in tables:
        below = tree.setdefault(name, {})
        if not isinstance(below, dict) and name in _known_keys():
            below = tree[name] = {}
        if not isinstance(below, dict):
            return
        tree = below
    tree[last] = value


def remove_key(tree: dict[str, Any], key: str) -> None:
    """Remove the dotted `key` from the job `tree`, so that the key gets its default value."""
    *tables, last = key.split(".", 1) if key.startswith(_ENV) else key.split(".")
    at: Any = tree
    for name in tables:
        at = at.get(name) if isinstance(at, dict) else None
    if isinstance(at, dict):
        at.pop(last, None)

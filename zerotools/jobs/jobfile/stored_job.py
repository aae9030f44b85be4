"""Read a job that an earlier version of zerotools accepted, without checking today's rules.

The rules between keys, and the bounds of numbers, are checked only when a job is submitted. Here
the only question is whether this version can read the job: it must know every key that was set, and
the value must have a valid type. If a key is newer than the job, the job gets the `stored_default`
of the key: the behaviour of zerotools before the key existed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from zerotools.jobs.binding.bind import (
    Mismatch,
    check_allowed,
    convert_value,
    format_value,
    hints_of,
    is_required,
)
from zerotools.jobs.binding.declaration import keys_of, stored_default_of, with_stored_defaults
from zerotools.jobs.jobfile_tables.job_rules import NEEDED, SCRIPT
from zerotools.jobs.jobfile_tables.spec import JobSpec


class StoredJob(NamedTuple):
    """The readable part of a stored job. `problems` lists the keys that cannot be read.

    If there are problems, these keys have their defaults in `spec`, and `spec` may only be used to
    count resources. `spec` is None if even its resources cannot be counted.
    """

    spec: JobSpec | None
    problems: tuple[str, ...] = ()


def read_stored(tree: object, given: object = None) -> StoredJob:
    """Read a stored job.

    `tree` has all keys, with the values that they got when the job was accepted.

    `given` has only the keys that the user set; None if they are not known. A key that this version
    does not know is a problem if the user set it. Otherwise it is ignored, because it has the
    default of a newer version.
    """
    if not isinstance(tree, Mapping):
        return StoredJob(None, (f"the job must be a table, not {format_value(tree)}",))
    needed = (SCRIPT,) if tree.get("engine") == SCRIPT else NEEDED
    problems = [f"the table [{name}] is missing" for name in needed if name not in tree]
    given = given if isinstance(given, Mapping) else None
    spec = read_table(JobSpec, tree, given, "", problems)
    if spec is not None and (spec.resume_from is None or spec.engine == SCRIPT):
        # Without `resume_from`, the stored default of `resume_order` has no meaning and is refused.
        spec = replace(spec, resume_order=tree.get("resume_order"))
    return StoredJob(replace(spec, given=given), tuple(problems))


def read_table(
    kind: type[Any],
    tree: Mapping[str, Any],
    given: Mapping[str, Any] | None,
    where: str,
    problems: list[str],
) -> Any:
    """Read the table `kind` of a stored job.

    Add a problem for each key that cannot be read. Return None if one of these keys is required.

    `where` is the dotted prefix of the table's keys.
    """
    items, hints = {item.name: item for item in keys_of(kind)}, hints_of(kind)
    problems += [
        f"{where}{format_value(name, bare=True)} is a key that this version does not know"
        for name in tree
        if name not in items and (given is None or name in given)
    ]
    values: dict[str, Any] = {}
    for name, item in items.items():
        hint = hints[name]
        if name not in tree:
            values |= _of_an_older_job(item)
            continue
        if is_dataclass(hint) and isinstance(hint, type):
            inner = None if given is None else _mapping(given.get(name))
            below = _below(hint, tree[name], inner, f"{where}{name}", problems)
            values |= {} if below is None else {name: below}
            continue
        try:
            value = convert_value(hint, tree[name])
            check_allowed(item, value)
        except Mismatch as error:
            problems.append(f"{where}{name} = {format_value(tree[name])}: {error}")
        else:
            values[name] = value
    required = [name for name, item in items.items() if is_required(item)]
    lost = [name for name in dict.fromkeys((*required, *(given or ()))) if name not in tree]
    problems += [f"{where}{format_value(name, bare=True)} is missing" for name in lost]
    return kind(**values) if all(name in values for name in required) else None


@cache
def _of_an_older_job(item: Field[Any]) -> dict[str, Any]:
    """Return {name of `item`: value}. The value is that of a job that was stored before the key or
    table `item` existed. Return an empty mapping if this value is the default of the key.
    """
    if item.default_factory is not MISSING and is_dataclass(table := item.default_factory()):
        return {item.name: with_stored_defaults(table)}
    value = stored_default_of(item)
    return {} if value is ... else {item.name: value}


def _below(
    kind: type[Any],
    tree: object,
    given: Mapping[str, Any] | None,
    where: str,
    problems: list[str],
) -> Any:
    if isinstance(tree, Mapping):
        return read_table(kind, tree, given, f"{where}.", problems)
    problems.append(f"{where}: must be a table, not {format_value(tree)}")
    return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

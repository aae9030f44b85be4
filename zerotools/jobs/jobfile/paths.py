"""The paths of a job, made absolute: the keys are those that the tables declare as paths."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.io.stores.addresses import is_url
from zerotools.jobs.binding.bind import hints_of, show
from zerotools.jobs.binding.declaration import keys_of
from zerotools.jobs.tables.engine_tables import misplaced_keys
from zerotools.jobs.tables.far_places import why_not_read
from zerotools.jobs.tables.spec import JobSpec
from zerotools.jobs.text.home_paths import expanded

PathFix = Callable[[str, str, bool], str]
"""(dotted key, path, whether it may be a URL) -> absolute path."""


_FROM_A_DISK = "a job reads this from a disk, and not from a URL; fetch it, and name the copy"
_ON_A_DISK = {
    "output_dir": "a job writes to a disk, and not to a URL; name a directory, and set "
    "checkpoint.upload_to to the URL; each checkpoint is copied there"
}


def with_absolute_paths(spec: JobSpec, base_dir: Path | None) -> tuple[JobSpec, list[str]]:
    """Return `spec` with its paths relative to `base_dir` made absolute, and problems with them.

    `~` is expanded, and a bare `python` is looked up in PATH. Without `base_dir` every path must be
    absolute.
    """
    wrong: list[str] = []
    elsewhere = tuple(
        misplaced_keys({item.name: getattr(spec, item.name) for item in keys_of(spec)})
    )
    fixed = _table(spec, "", partial(_absolute, base_dir, wrong), elsewhere)
    return fixed, wrong


def _table(table: Any, where: str, fix: PathFix, left_out: tuple[str, ...] = ()) -> Any:
    changes = {}
    for name, rules in _path_keys(table.__class__):
        value, key = getattr(table, name), f"{where}{name}"
        if name in left_out:
            continue
        if rules is None:
            changes[name] = _table(value, f"{key}.", fix)
        elif value not in rules["words"]:
            changes[name] = _value(value, key, fix, rules["url"])
    return replace(table, **changes)


@cache
def _path_keys(kind: Any) -> tuple[tuple[str, Mapping[str, Any] | None], ...]:
    """Return the keys of the table `kind` that are paths, with how they were declared; and its
    tables that have such keys, with None."""
    hints, found = hints_of(kind), list[tuple[str, Mapping[str, Any] | None]]()
    for item in keys_of(kind):
        hint = hints[item.name]
        if is_dataclass(hint):
            if isinstance(hint, type) and _path_keys(hint):
                found.append((item.name, None))
        elif item.metadata["path"]:
            found.append((item.name, item.metadata))
    return tuple(found)


def _value(value: Any, name: str, fix: PathFix, may_be_url: bool) -> Any:
    if isinstance(value, tuple):
        return tuple(fix(name, path, may_be_url) for path in value)
    return fix(name, value, may_be_url) if isinstance(value, str) else value


def _absolute(
    base_dir: Path | None, wrong: list[str], name: str, path: str, may_be_url: bool
) -> str:
    if is_url(path):
        whys = why_not_read(path) if may_be_url else [_ON_A_DISK.get(name, _FROM_A_DISK)]
        wrong.extend(f"{name}: {why}" for why in whys)
        return path
    if base_dir is None:
        if not path.startswith("/"):
            wrong.append(f"{name} = {show(path)}: must be an absolute path")
        return path
    if not path:
        wrong.append(f'{name} = "": must not be empty')
        return path
    if name == "python" and "/" not in path and not path.startswith("~"):
        found = shutil.which(path)
        if found is None:
            wrong.append(f"python = {show(path)}: no such program in PATH")
        return found or path
    try:
        return os.path.normpath(base_dir.absolute() / expanded(path))
    except BadRequest as error:
        wrong.append(f"{name} = {error}")
        return path

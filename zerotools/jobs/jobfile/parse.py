"""Parse a job file's text, or the JSON of a client, into a valid `JobSpec`; and convert it back.

Paths become absolute. A message about a wrong key states the line of the key.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.stores.parse_url import is_url
from zerotools.jobs.binding.bind import (
    MAX_DEPTH,
    are_texts,
    build_dataclass,
    format_value,
    hints_of,
    is_required,
    plain_json,
)
from zerotools.jobs.binding.declaration import keys_of, means_none
from zerotools.jobs.jobfile_tables.check_store_urls import why_not_read
from zerotools.jobs.jobfile_tables.job_rules import check_rules, check_tables, misplaced_keys
from zerotools.jobs.jobfile_tables.spec import JobSpec, is_reference
from zerotools.jobs.text.expand_home import expand_home

_UNSET = JobSpec()
_SCALARS = frozenset({str, int, float, bool, type(None)})


MAX_LINES = 2000
"""The length limit, in lines, of files that are searched for the line of a key.

The search parses the beginning of the file many times.
"""
_TOML_PLACE = re.compile(
    r"^(?P<why>.*?) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$"
)
_KEY = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*")
_TABS = 4
PathFix = Callable[[str, str, bool], str]
"""A function that makes a path absolute.

Its arguments are the dotted key, the path, and whether the path may be a URL.
"""
_FROM_A_DISK = (
    "a job reads this path from a disk, not from a URL; download the files, and name the copy"
)
_ON_A_DISK = {
    "output_dir": "a job writes to a disk, not to a URL; name a directory, and set "
    "checkpoint.upload_to to the URL, to which each checkpoint is then copied"
}
SHARED = (
    *("engine", "device", "seed", "output_dir", "model", "data", "train", "fp16", "zero", "lora"),
    *("eval", "offload", "checkpoint", "deepspeed"),
)
"""Keys and tables that must have the same values on all nodes, because the ranks of all nodes
train one model with the same steps.
"""


def parse_job(text: str, *, source: str, base_dir: Path) -> JobSpec:
    """Parse `text` into a job. It is TOML, or JSON if the first character is `{`.

    Relative paths are relative to `base_dir`, `~` is expanded, and a bare `python` is searched in
    PATH. The default name of the job is the name of the file `source`.

    Raises BadRequest or Unsupported; the message lists every problem with its dotted key.
    """
    tree = read_tree(text, source=source)
    return job_from_tree(tree, source=source, base_dir=base_dir, text=text)


def job_from_tree(
    tree: Mapping[str, Any], *, source: str, base_dir: Path | None, text: str | None = None
) -> JobSpec:
    """Convert `tree`, the values that `read_tree` read from a job file, to a job, as `parse_job`
    does. If the file's `text` is given, messages have line numbers.

    Without `base_dir` every path must be absolute, because the file is from another machine.
    """
    spec = _build(tree, source, base_dir, text)
    stem = Path(source).stem
    is_name = Path(source).suffix in (".toml", ".json") and stem.isprintable()
    if spec.name is None and is_name and not is_reference(stem):
        spec = replace(spec, name=stem[:200])
    return spec


def job_from_dict(tree: Mapping[str, Any], *, source: str) -> JobSpec:
    """Convert plain values to a job. Paths must be absolute.

    Raises BadRequest or Unsupported; the message lists every problem with its dotted key.
    """
    if not isinstance(tree, Mapping):
        raise BadRequest(f"{source}: a job must be a table, not {format_value(tree)}")
    return _build(tree, source, None)


def job_to_dict(spec: JobSpec) -> dict[str, Any]:
    """Return `spec` as JSON values. `job_from_dict` makes the same job from these values.

    A key with the value None is omitted. If a missing key would mean another value, it is written
    as null.
    """
    tree = tree_of(spec)
    for name in list(misplaced_keys(tree)):
        del tree[name]
    return tree


def tree_of(table: Any) -> dict[str, Any]:
    """Return a table of the job file as JSON values, as `job_to_dict` does."""
    tree: dict[str, Any] = {}
    for name, is_table, writes_none, _ in _layout(table.__class__):
        value = getattr(table, name)
        if value is None and not writes_none:
            continue
        if is_table:
            tree[name] = tree_of(value)
        else:  # flat values were checked when the table was made
            tree[name] = value if type(value) in _SCALARS else plain_json(value)
    return tree


@cache
def _layout(kind: Any) -> tuple[tuple[str, bool, bool, bool], ...]:
    """Return four facts for each key of the table `kind`: its name, whether it is a table, whether
    None is written, and whether it is required.

    The result is cached, because it is needed for every key when a job is queued or shown.
    """
    hints = hints_of(kind)
    return tuple(
        (item.name, is_dataclass(hints[item.name]), means_none(item), is_required(item))
        for item in keys_of(kind)
    )


def given_of(spec: JobSpec) -> dict[str, Any]:
    """Return only the keys of `spec` that the job's author set.

    `job_from_dict` makes the same job from these keys; another version of zerotools uses its own
    defaults for all other keys. A key counts as set if it was in the job file, or if its value is
    not the default.
    """
    tree = _given(spec, _UNSET, spec.given or {})
    for name in list(misplaced_keys({"engine": spec.engine, **tree})):
        del tree[name]
    return tree


def _given(table: Any, unset: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, is_table, _, required in _layout(table.__class__):
        value, default = getattr(table, name), getattr(unset, name)
        named = name in given
        if is_table:
            inner = given.get(name)
            below = _given(value, default, inner if isinstance(inner, Mapping) else {})
            if below or named:
                tree[name] = below
        elif value != default or (value is not None and (named or required)):
            tree[name] = plain_json(value)
    return tree


def keys_set(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of each key that the job `tree` sets, such as `train.steps` and
    `env.HOME`.
    """
    for name, value in tree.items():
        if type(value) not in _SCALARS and isinstance(value, Mapping):
            yield from keys_set(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def read_tree(text: str, *, source: str) -> dict[str, Any]:
    """Parse a job file's `text`, and return its values unchecked. Raises BadRequest."""
    try:
        if text.lstrip().startswith("{"):
            tree = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
        else:
            tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        why, line, column = toml_problem(text, error)
        raise BadRequest(
            f"{source}:{line}:{column}: is not valid TOML: "
            f"{why}\n{line_excerpt(text, line, column)}"
        ) from None
    except json.JSONDecodeError as error:
        raise BadRequest(
            f"{source}:{error.lineno}:{error.colno}: is not valid JSON: {error.msg}\n"
            f"{line_excerpt(text, error.lineno, error.colno)}"
        ) from None
    except RecursionError:
        raise BadRequest(f"{source}: is nested too deeply") from None
    except ValueError as error:
        why, _, _ = str(error).partition(";")  # the rest is advice for programs
        raise BadRequest(f"{source}: cannot be read: {why}") from None
    assert isinstance(tree, dict)
    return tree


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {format_value(twice)} appears twice in one object")
    return tree


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _build(
    tree: Mapping[str, Any], source: str, base_dir: Path | None, text: str | None = None
) -> JobSpec:
    wrong = [*check_tables(tree), *_not_text(tree)]
    unsupported: list[str] = []
    spec: JobSpec | None = build_dataclass(JobSpec, tree, "", wrong)
    if spec is not None and not wrong:
        wrong, unsupported = check_rules(spec)
        spec, bad_paths = with_absolute_paths(spec, base_dir)
        wrong += bad_paths
        spec = replace(spec, given=tree)
    if wrong or unsupported or spec is None:
        kind = BadRequest if wrong else Unsupported
        raise kind(_message(source, wrong + unsupported, text))
    return spec


def _not_text(value: Any, where: str = "", depth: int = 0) -> Iterator[str]:
    """Yield a problem for each string with lone surrogates.

    A stored job may have such strings in file names, but a request may not.
    """
    if depth > MAX_DEPTH:
        return  # such deep nesting is refused anyway
    if isinstance(value, Mapping):
        if are_texts(value, "strict") and are_texts(value.values(), "strict"):
            return
        for name, inner in value.items():
            key = f"{where}{'.' * bool(where)}{format_value(name, bare=True)}"
            if isinstance(name, str) and not _is_unicode(name):
                yield f"{key}: must be valid Unicode text"
            yield from _not_text(inner, key, depth + 1)
    elif isinstance(value, (list, tuple)):
        if are_texts(value, "strict"):
            return
        for inner in value:
            yield from _not_text(inner, where, depth + 1)
    elif isinstance(value, str) and not _is_unicode(value):
        yield f"{where} = {format_value(value)}: must be valid Unicode text"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _message(source: str, problems: list[str], text: str | None) -> str:
    lines = [None if text is None else problem_line(text, problem) for problem in problems]
    if len(problems) == 1:
        place = source if lines[0] is None else f"{source}:{lines[0]}"
        return f"{place}: {problems[0]}"
    listed = "".join(
        f"\n  {problem}" if line is None else f"\n  line {line}: {problem}"
        for line, problem in zip(lines, problems, strict=True)
    )
    return f"{source}: {len(problems)} problems:{listed}"


def line_of(text: str, key: str) -> int | None:
    """Return the line, from 1, on which the TOML `text` sets the dotted `key`.

    Return None if no line sets it, or if the file is too long to search.
    """
    lines = text.splitlines()
    trail = key.split(".")
    if len(lines) > MAX_LINES or not _has(_tree("\n".join(lines)), trail):
        return None
    valid = 0
    for count in range(1, len(lines) + 1):
        tree = _tree("\n".join(lines[:count]))
        if tree is None:
            continue
        if _has(tree, trail):
            return _first_statement(lines, valid)
        valid = count
    return None


def _first_statement(lines: list[str], after: int) -> int:
    """Return the number of the first line after line `after` that is neither blank nor a
    comment. Lines are counted from 1.
    """
    for number, line in enumerate(lines[after:], after + 1):
        if line.strip() and not line.strip().startswith("#"):
            return number
    return after + 1


def _tree(text: str) -> Mapping[str, Any] | None:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None


def _has(tree: Any, trail: list[str]) -> bool:
    for name in trail:
        if not isinstance(tree, Mapping) or name not in tree:
            return False
        tree = tree[name]
    return True


def problem_line(text: str, problem: str) -> int | None:
    """Return the line of the key at the beginning of `problem`, such as `train.steps = 0: must
    be at least 1`. Return None if the job file `text` (TOML or JSON) does not have the key.
    """
    found = _KEY.match(problem)
    if found is None:
        return None
    if text.lstrip().startswith("{"):
        from zerotools.jobs.text.json_parser import parse_json

        return parse_json(text, source="").lines.get(tuple(found[0].split(".")))
    return line_of(text, found[0])


def toml_problem(text: str, error: tomllib.TOMLDecodeError) -> tuple[str, int, int]:
    """Return the reason why `text` is not valid TOML, and the line and column of the error,
    from 1.
    """
    found = _TOML_PLACE.match(str(error))
    lines = text.splitlines() or [""]
    if found is None:
        return str(error), 1, 1
    why = found["why"][:1].lower() + found["why"][1:]
    if found["line"] is None:
        return f"{why} at the end of the file", len(lines), len(lines[-1]) + 1
    return why, int(found["line"]), int(found["column"])


def line_excerpt(text: str, line: int, column: int) -> str:
    """Return line `line` of `text`, and below it a caret that marks the column."""
    lines = text.splitlines()
    shown = lines[line - 1] if line <= len(lines) else ""
    before = shown[: column - 1].expandtabs(_TABS)
    number = str(line)
    return f"  {number} | {shown.expandtabs(_TABS)}\n  {' ' * len(number)} | {' ' * len(before)}^"


def with_absolute_paths(spec: JobSpec, base_dir: Path | None) -> tuple[JobSpec, list[str]]:
    """Return `spec` with absolute paths, and the problems with its paths.

    Relative paths are relative to `base_dir`, `~` is expanded, and a bare `python` is searched in
    PATH. Without `base_dir` every path must be absolute.
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
    """Return the keys of the table `kind` that hold paths, each with its declaration.

    For a table inside `kind` that has such keys, the item is (name of the table, None).
    """
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
            wrong.append(f"{name} = {format_value(path)}: must be an absolute path")
        return path
    if not path:
        wrong.append(f'{name} = "": must not be empty')
        return path
    if name == "python" and "/" not in path and not path.startswith("~"):
        found = shutil.which(path)
        if found is None:
            wrong.append(
                f"python = {format_value(path)}: PATH has no such program; write its absolute path"
            )
        return found or path
    try:
        return os.path.normpath(base_dir.absolute() / expand_home(path))
    except BadRequest as error:
        wrong.append(f"{name} = {error}")
        return path


def shared_keys(spec: JobSpec) -> dict[str, Any]:
    """Return the values that must be the same on all nodes: the keys in `SHARED`, without paths.

    Paths may differ, because each node may have its own copy of the model or the data. The files at
    these paths are compared later.
    """
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

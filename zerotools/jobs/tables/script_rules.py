"""What an `engine = "script"` job demands, and what it has no use for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from typing import Any, get_type_hints

from zerotools.jobs.binding.bind import show
from zerotools.jobs.tables.spec import JobSpec

SCRIPT = "script"
NEEDED = ("model", "data", "train")
"""The tables that an engine of ours cannot do without."""
SHARED = ("metrics",)
"""The tables that every engine has."""


def misplaced_keys(tree: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a job's `tree` that its engine does not know."""
    own = tree.get("engine") == SCRIPT
    for name in tree:
        if (own and name in _unknown_to_scripts()) or (not own and name == SCRIPT):
            yield name


def _unknown_to_scripts() -> tuple[str, ...]:
    hints = get_type_hints(JobSpec)
    tables = (name for name, hint in hints.items() if is_dataclass(hint))
    return ("seed", *(name for name in tables if name not in (SCRIPT, *SHARED)))


def check_tables(tree: Mapping[str, Any]) -> Iterator[str]:
    """Tables that are missing, and those that have no place in a job of this engine."""
    engine = tree.get("engine", "torch")
    for name in (SCRIPT,) if engine == SCRIPT else NEEDED:
        if name not in tree:
            yield f"{name}: the table [{name}] is missing"
    for name in misplaced_keys(tree):
        why = f'has no place in an engine = "{engine}" job; leave it out'
        if engine == SCRIPT:
            why += ", or say it in script.command"
        yield f"{name}: {why}"


def check_script(spec: JobSpec) -> Iterator[str]:
    """What is wrong in `[script]`."""
    script, first = spec.script, spec.script.command[0] if spec.script.command else ""
    if not first:
        yield "script.command = []: must name a program"
    if script.launcher == "plain":
        if script.launcher_options:
            yield (
                f"script.launcher_options = {show(script.launcher_options)}: have no place beside "
                'script.launcher = "plain"; leave them out'
            )
        return
    if first.rpartition("/")[2].startswith("python"):
        yield (
            f"script.command = {show(script.command)}: {script.launcher} starts the interpreter "
            f"itself; leave {show(first)} out, and name another one in python"
        )
    if script.launcher == "accelerate" and spec.device == "cpu" and spec.world_size > 1:
        yield (
            f"ranks = {spec.world_size}: accelerate launch starts one process on CPUs; set "
            'script.launcher = "torchrun"'
        )


PathFix = Callable[[str, str], str]


def with_script_paths(spec: JobSpec, fix: PathFix) -> JobSpec:
    """`spec` with the paths in `[script]` passed through `fix`, where it has that table."""
    if spec.engine != SCRIPT:
        return spec
    script, directory = spec.script, spec.script.checkpoint_dir
    fixed = replace(
        script,
        directory=fix("script.directory", script.directory),
        checkpoint_dir=None if directory is None else fix("script.checkpoint_dir", directory),
    )
    return replace(spec, script=fixed)

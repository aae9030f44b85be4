"""Nodes that each have some files of a checkpoint, reached by an `ssh` of the tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from zerotools.io.ssh.remote_shell import OpenShells
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.gathering.check_gathered import StagedCheck, find_gathered, verify_gathered
from zerotools.ops.gathering.gather_files import Gathered, fetch_and_finish
from zerotools.ops.gathering.gather_plan import GatherPlan, prepare_gather
from zerotools.ops.gathering.node_directory import NodeSource, parse_source
from zerotools.ops.gathering.node_survey import survey_sources

BUDGET = MemoryBudget(1 << 26, 1)


def split(checkpoint: Path, directory: Path, shares: Mapping[str, Sequence[str]]) -> list[str]:
    """Each node gets the files that match one of its patterns; the sources as users write them."""
    for node, patterns in shares.items():
        for pattern in patterns:
            for path in checkpoint.rglob(pattern):
                target = directory / node / "run" / path.relative_to(checkpoint)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
    return [f"{node}:{directory / node / 'run'}" for node in shares]


def made_node(directory: Path, node: str, files: Mapping[str, bytes]) -> str:
    """A node with these files; the source as users write it."""
    for name, data in files.items():
        path = directory / node / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return f"{node}:{directory / node / 'run'}"


def planned(sources: Sequence[str], out: Path, tag: str | None = None) -> GatherPlan:
    shells = OpenShells()
    parsed: list[NodeSource] = [parse_source(each) for each in sources]
    found = survey_sources(parsed, out, tag=tag, shells=shells, at_once=4)
    return prepare_gather(found, shells=shells, at_once=4)


def gathered(
    sources: Sequence[str],
    out: Path,
    *,
    tag: str | None = None,
    fast: bool = False,
    force: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Gathered:
    def checked(directory: Path) -> StagedCheck:
        return verify_gathered(directory, *find_gathered(directory), fast=fast, budget=BUDGET)

    return fetch_and_finish(
        planned(sources, out, tag),
        checked,
        shells=OpenShells(),
        at_once=4,
        fast=fast,
        force=force,
        on_bytes=on_bytes,
    )


def content(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }

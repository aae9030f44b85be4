"""Collect the shards of a checkpoint from several nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

from zerotools.core.errors import BadFile
from zerotools.io.output.staging import partial_of
from zerotools.io.ssh.remote_shell import OpenShells
from zerotools.io.stores.parse_url import output_of
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.gathering import gather_files
from zerotools.ops.gathering.check_gathered import StagedCheck, find_gathered, verify_gathered
from zerotools.ops.gathering.gather_files import Gathered, check_room, plan_json, result_json
from zerotools.ops.gathering.gather_plan import GatherPlan, prepare_gather
from zerotools.ops.gathering.node_directory import parse_source
from zerotools.ops.gathering.node_survey import survey_sources
from zerotools.ops.verification.verify import DEFAULT_MEMORY
from zerotools.public.command_options.declare_and_bind_options import (
    OUTPUT,
    RESOURCES,
    Option,
    StrPath,
    as_list,
    bind_options,
    takes_options,
)
from zerotools.public.command_options.model_output_options import CheckNamesOption
from zerotools.public.command_options.read_options import TagOption
from zerotools.public.progress import Meter, ProgressWanted, metering


class FetchOptions(TypedDict, total=False):
    """Options for fetching and checking shards."""

    dry_run: Annotated[
        bool,
        Option(group=OUTPUT, help="Compare the nodes and show the plan; fetch no file."),
    ]
    fast: Annotated[
        bool,
        Option(
            group=OUTPUT,
            help="Compute digests only of files that several nodes have, and check only the "
            "structure.",
        ),
    ]
    force: Annotated[
        bool,
        Option(
            group=OUTPUT,
            help="Create OUT even if the checkpoint is incomplete, for zerotools salvage.",
        ),
    ]
    workers: Annotated[
        int,
        Option(
            group=RESOURCES,
            default=8,
            least=1,
            most=64,
            help="Number of nodes to read from at the same time.",
        ),
    ]


class GatherKeywords(TagOption, FetchOptions, CheckNamesOption, total=False):
    """The options of `zerotools gather`."""


@dataclass(frozen=True)
class GatherResult:
    """The result of `gather`. After a dry run it is a plan, and no file was fetched.

    Attributes:
        sources: the number of files that are fetched from each source, keyed by source.
        has_name: True if the output is in `destination`. Otherwise the fetched files are in
            `partial`.
        findings: problems of the checkpoint.
        missing: files that the checkpoint lacks.
        may_lack: files that the checkpoint may lack, because their numbers are missing in a
            sequence of file names.
        plan, gathered: the plan and the result of `zerotools.ops.gathering`.
    """

    destination: Path
    partial: Path
    sources: Mapping[str, int]
    files: Mapping[str, int] = field(repr=False)
    bytes_of_all: int
    bytes_to_fetch: int
    has_name: bool
    is_whole: bool | None
    findings: tuple[str, ...]
    missing: tuple[str, ...]
    may_lack: tuple[str, ...]
    fast: bool
    dry_run: bool
    seconds: float
    plan: GatherPlan = field(repr=False)
    gathered: Gathered | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON (docs/reference/gather-json.md)."""
        planned = plan_json(self.plan)
        if self.gathered is None:
            return {**planned, "dry_run": True}
        done = result_json(self.gathered, fast=self.fast)
        return {**planned, **done, "dry_run": False, "seconds": round(self.seconds, 3)}


@takes_options(GatherKeywords)
def gather(
    sources: StrPath | Iterable[StrPath],
    out: StrPath,
    *,
    progress: ProgressWanted = None,
    **options: Unpack[GatherKeywords],
) -> GatherResult:
    """Collect the shards of a checkpoint from several nodes in the directory `out`.

    A source is "HOST:PATH", "ssh://USER@HOST:PORT/PATH", or a path of this node. The system's ssh
    connects to the nodes, and must not need a password.

    Raises:
        BadRequest: the sources have no files, `out` exists, or the disk is too small.
        BadFile: two sources have different files with the same name, or the checkpoint is
            incomplete. Then `out` does not exist, but fetched files are kept, and a repeated call
            continues.
        HostUnreachable: a node cannot be reached, or the connection to it broke.
    """
    found = gathered(sources, out, bind_options(GatherKeywords, options), progress)
    refuse_nameless(found)
    return found


def refuse_nameless(found: GatherResult) -> None:
    """Raise an error if the output was not renamed to its final name, because the checkpoint is
    incomplete.

    A dry run raises no error.

    Raises:
        BadFile: the checkpoint is incomplete.
    """
    if not (found.has_name or found.dry_run):
        raise BadFile(
            f"{found.destination} was not made: the checkpoint in {found.partial} is "
            "incomplete; run the command again with the node that has the missing files, or with "
            "--force to continue without them"
        )


def gathered(
    sources: StrPath | Iterable[StrPath],
    out: StrPath,
    given: Mapping[str, Any],
    progress: ProgressWanted,
    on_plan: Callable[[GatherPlan], None] = lambda _: None,
) -> GatherResult:
    """Gather a checkpoint as `gather` does with the bound options `given`, but return a result even
    if the checkpoint is incomplete.

    `on_plan` is called with the plan before the first file is fetched.
    """
    began, shells = time.monotonic(), OpenShells()
    destination, at_once, fast = output_of(out), given["workers"], given["fast"]
    asked = [parse_source(each) for each in as_list(sources)]
    seen = survey_sources(asked, destination, tag=given["tag"], shells=shells, at_once=at_once)
    with_names = not given["no_check_names"]
    with metering(progress) as meter:
        with meter(seen.bytes_to_compare, "compare") as on_bytes:
            plan = prepare_gather(seen, shells=shells, at_once=at_once, on_bytes=on_bytes)
        on_plan(plan)
        if given["dry_run"]:
            check_room(plan, partial_of(destination))
            return _result(plan, None, fast, began)
        with meter(plan.bytes_to_fetch, "gather") as on_bytes:
            done = gather_files.fetch_and_finish(
                plan,
                lambda directory: _checked(directory, meter, fast=fast, with_names=with_names),
                shells=shells,
                at_once=at_once,
                fast=fast,
                force=given["force"],
                on_bytes=on_bytes,
            )
    return _result(plan, done, fast, began)


def _checked(directory: Path, meter: Meter, *, fast: bool, with_names: bool) -> StagedCheck:
    found, errors = find_gathered(directory)
    to_read = 0 if fast else sum(each.bytes_to_read for each in found)
    with meter(to_read, "verify") as on_bytes:
        budget = MemoryBudget(DEFAULT_MEMORY)
        return verify_gathered(
            directory,
            found,
            errors,
            fast=fast,
            budget=budget,
            with_names=with_names,
            on_bytes=on_bytes,
        )


def _result(plan: GatherPlan, done: Gathered | None, fast: bool, began: float) -> GatherResult:
    return GatherResult(
        destination=plan.destination,
        partial=partial_of(plan.destination),
        sources={
            each.source.name: len(plan.fetches.get(each.source.name, ()))
            for each in plan.survey.listings
        },
        files={name: each.size for name, each in plan.survey.files.items()},
        bytes_of_all=plan.bytes_of_all,
        bytes_to_fetch=plan.bytes_to_fetch,
        has_name=done is not None and done.has_name,
        is_whole=None if done is None else done.checked.is_whole,
        findings=() if done is None else tuple(done.checked.findings),
        missing=() if done is None else tuple(done.checked.missing),
        may_lack=tuple(plan.may_lack),
        fast=fast,
        dry_run=done is None,
        seconds=time.monotonic() - began,
        plan=plan,
        gathered=done,
    )

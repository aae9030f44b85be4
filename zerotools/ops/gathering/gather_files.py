"""Carry out a plan: fetch from several nodes in parallel, check the files, and give the output its
name. The result has a documented JSON form (docs/reference/gather-json.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.io.output.journal import NAME, Journal, is_of_journals
from zerotools.io.output.staging import Staging
from zerotools.io.ssh.remote_shell import OpenShells
from zerotools.ops.conversions.conversion import allocated_bytes, check_space
from zerotools.ops.gathering.check_gathered import StagedCheck
from zerotools.ops.gathering.fetch_files import Fetching
from zerotools.ops.gathering.gather_plan import GatherPlan
from zerotools.ops.gathering.node_source import for_each
from zerotools.ops.gathering.node_survey import fixed_identity, start_over
from zerotools.ops.gathering.numbered_names import names_alike
from zerotools.ops.gathering.read_node_files import Listing, refuse_changed


@dataclass(frozen=True)
class Gathered:
    """The result of a gather run. `has_name` is False if the output is still in its staging
    directory."""

    plan: GatherPlan
    checked: StagedCheck
    has_name: bool

    def holders_of_alike(self, name: str) -> Mapping[str, list[str]]:
        """Return the names of files that differ from `name` only in numbers, keyed by the source
        that has them."""
        files = self.plan.survey.files
        rows = names_alike(name, files)
        sources = dict.fromkeys(
            [each.source.name for each in self.plan.survey.listings]
            + [each.source for each in self.plan.survey.complete.values()]
        )
        return {each: [row for row in rows if each in files[row].holders] for each in sources}


def check_room(plan: GatherPlan, partial: Path) -> None:
    """Check, before anything is fetched, that the files fit on the disk.

    Raises:
        BadRequest: the file system has too little free space.
    """
    check_space(plan.destination, plan.bytes_of_all - allocated_bytes(partial))


def fetch_and_finish(
    plan: GatherPlan,
    check: Callable[[Path], StagedCheck],
    *,
    shells: OpenShells,
    at_once: int,
    fast: bool = False,
    force: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Gathered:
    """Fetch the files of the plan, run `check` on them, and rename the finished output.

    With `force`, the output is renamed even if the check found problems. After an error, the
    fetched files are kept.

    Raises:
        BadRequest: the output exists, does not fit on the disk, or another run is making it.
        BadFile: a file of a source has changed, or does not have the expected digest.
        HostUnreachable: see `FarShell`; the other sources are still fetched completely.
    """
    found = plan.survey
    with Staging(plan.destination, keep=True) as staging:
        directory = staging.directory
        check_room(plan, directory)
        journal = Journal(
            directory, fixed_identity(found.tag), resume=True, start_over=start_over(directory)
        )
        try:
            if journal.done != found.noted:
                raise _other_run(directory)
            _remove_others(directory, plan)
            there = (each.is_complete_in(directory, n) for n, each in found.complete.items())
            if not all(there):
                raise _other_run(directory)

            def fetch(source: str) -> None:
                fetching = Fetching(
                    plan.listing_of(source),
                    directory,
                    journal,
                    shells,
                    fast=fast,
                    on_bytes=on_bytes,
                )
                fetching.fetch(plan.fetches[source])

            for_each([*plan.fetches], fetch, shells, at_once)
            for_each(
                found.listings, lambda each: _refuse_changed(each, plan, shells), shells, at_once
            )
        finally:
            journal.close()
        checked = check(directory)
        if not checked.is_whole and not force:
            return Gathered(plan, checked, False)
        staging.commit()
        (staging.destination / NAME).unlink(missing_ok=True)
    return Gathered(plan, checked, True)


def _other_run(directory: Path) -> BadRequest:
    return BadRequest(
        f"another run has changed {directory} since this run read it; run the same command again"
    )


def _refuse_changed(listing: Listing, plan: GatherPlan, shells: OpenShells) -> None:
    """Refuse a file that has changed at its source since this or an earlier run fetched it."""
    own = {
        name: file
        for name, file in listing.files.items()
        if name in plan.survey.files and listing.source.name in plan.survey.files[name].holders
    }
    refuse_changed(listing.source, own, shells)


def _remove_others(directory: Path, plan: GatherPlan) -> None:
    """Remove files that an earlier run fetched and that no source has now."""
    for folder, folders, names in os.walk(directory, topdown=False):
        for name in names:
            path = Path(folder, name)
            own = path.relative_to(directory).as_posix()
            is_kept = own in plan.survey.files and not path.is_symlink()
            if not (is_kept or is_of_journals(own)):
                path.unlink()
        for name in folders:
            path = Path(folder, name)
            if path.is_symlink():
                path.unlink()
            elif not any(path.iterdir()):
                path.rmdir()


SCHEMA = "zerotools.gather/1"


def plan_json(plan: GatherPlan) -> dict[str, Any]:
    """Return the entries of the JSON result that are known before anything is fetched."""
    found = plan.survey
    return {
        "schema": SCHEMA,
        "output": str(plan.destination),
        "tag": found.tag,
        "files": len(found.files),
        "bytes": plan.bytes_of_all,
        "sources": [_source(plan, each.source.name) for each in found.listings],
        "copies": plan.copies,
        "complete_before": sorted(found.complete),
        "may_lack": plan.may_lack,
        "doubt": plan.doubt,
    }


def _source(plan: GatherPlan, name: str) -> dict[str, Any]:
    listing = plan.listing_of(name)
    held = [each for each in plan.survey.files.values() if name in each.holders]
    fetches = plan.fetches.get(name, ())
    return {
        "name": name,
        "files": len(held),
        "bytes": sum(each.size for each in held),
        "makes_digests": listing.makes_digests,
        "left_out": list(listing.left_out),
        "fetch": [{"name": each.name, "bytes": each.file.size} for each in fetches],
    }


def result_json(done: Gathered, *, fast: bool) -> dict[str, Any]:
    """Return the entries of the JSON result that are known only after the fetch."""
    checked = done.checked
    return {
        "made": done.has_name,
        "whole": checked.is_whole,
        "fast": fast,
        "findings": checked.findings,
        "missing": [
            {"file": name, "alike": done.holders_of_alike(name)} for name in checked.missing
        ],
        "checkpoints": [
            str(each.checkpoint.root.relative_to(checked.directory))
            for each in checked.verifications
        ],
    }

"""The output of `zerotools gather --json` (docs/reference/gather-json.md)."""

from __future__ import annotations

from typing import Any

from zerotools.ops.gathering.gather_plan import GatherPlan
from zerotools.ops.gathering.gathering_run import Gathered

SCHEMA = "zerotools.gather/1"


def plan_json(plan: GatherPlan) -> dict[str, Any]:
    """Return the values that are known before anything is fetched."""
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
    """Return the result, which follows the plan."""
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

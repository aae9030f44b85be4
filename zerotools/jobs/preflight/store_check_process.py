"""The program that `store_check` starts: it checks object stores with a job's environment
variables.

Only the job's environment has the credentials for the stores. The program reads {"jobs": [...],
"writes": ...} from standard input, and prints as JSON a list of problems for each job. Several jobs
are checked at a time. If `writes` is true, it also writes an empty object to each store, and
removes the object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

PROBE = ".zerotools-probe"
AT_ONCE = 8
"""The number of jobs that are checked at the same time."""


def store_problems(tree: dict[str, Any], *, writes: bool) -> Iterator[str]:
    """Yield each reason why the job in `tree` could not use its object stores.

    If `writes` is true, also try to write an object.

    Raises:
        HostUnreachable: a store does not answer.
    """
    from zerotools.core.errors import BadFile, BadRequest
    from zerotools.io.stores.parse_url import lies_in
    from zerotools.jobs.jobfile.parse import job_from_dict
    from zerotools.jobs.jobfile_tables.check_store_urls import in_store

    spec = job_from_dict(tree, source="the job")
    place, given = spec.checkpoint.upload_to, spec.resume_from
    try:
        if place is not None:
            _check_prefix(place, spec.output_dir, given, writes=writes)
        if given is not None and in_store(given):
            newest = place if place is not None and lies_in(given, place) else None
            yield from _start(spec, given, newest)
    except (BadRequest, BadFile) as error:
        yield str(error)


def _check_prefix(place: str, output_dir: str | None, given: str | None, *, writes: bool) -> None:
    from zerotools.ops.mirroring.prefix_owner import check_claim

    path = _far(place)
    check_claim(path, Path(output_dir or "/nowhere"), "", given)
    if writes:
        from zerotools.io.stores.store_path import put_object, remove_objects

        put_object(path / PROBE, b"")
        remove_objects([path / PROBE])


def _start(spec: Any, given: str, place: str | None) -> Iterator[str]:
    from zerotools.jobs.preflight.checkpoint_check import not_resumable
    from zerotools.ops.mirroring.checkpoint_mirror import start_of
    from zerotools.ops.mirroring.list_and_remove_copies import newest_copy
    from zerotools.runs.find_job_checkpoints import read_record

    path = start_of(_far(given))
    record = read_record(path)
    yield from not_resumable(spec, record, path)
    if spec.train.steps is not None and record.step >= spec.train.steps and place is None:
        yield (
            f"train.steps = {spec.train.steps}: counts from the beginning of the run, but "
            f"resume_from = {path} is already at step {record.step}; set a number above "
            f"{record.step}"
        )
    newest = None if place is None else newest_copy(_far(place)).record
    if newest is not None and newest.step > record.step:
        yield (
            f"resume_from = {given}: is at step {record.step}, but checkpoint.upload_to = "
            f"{place} holds step {newest.step}, and the job would resume there; upload to "
            f'another address, or set resume_from = "{place}"'
        )


def _far(url: str) -> Any:
    from zerotools.io.stores.parse_url import path_of

    return path_of(url)


def main() -> int:
    """Read the jobs from standard input, check them, and print the problems."""
    asked = json.load(sys.stdin)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(partial(_problems, writes=asked["writes"]), asked["jobs"]))
    json.dump(found, sys.stdout)
    return 0


def _problems(tree: dict[str, Any], *, writes: bool) -> list[str]:
    from zerotools.core.errors import ZerotoolsError

    try:
        return list(store_problems(tree, writes=writes))
    except ZerotoolsError as error:
        return [str(error)]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    sys.exit(main())

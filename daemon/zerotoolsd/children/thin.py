"""Thins the older checkpoints of a running job: `thin.py OUTPUT_DIR KEEP SOCKET JOB [NAMED]`.

This program runs next to the ranks and is started for each new checkpoint. The following
checkpoints stay unchanged:

- the KEEP newest complete checkpoints, from which the job may resume;
- NAMED, which the job names in `resume_from`;
- the checkpoint that `best` names;
- the checkpoint that is being uploaded, which is thinned after a later save;
- all that another job of the daemon at SOCKET would resume from. If that daemon does not respond,
  nothing is thinned this time.

First, leftover files of a killed thinning are removed.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

LOWEST_PRIORITY = 19


def thin_older(output_dir: Path, keep: int, socket: Path, job: int, named: Path | None) -> int:
    """Make the older checkpoints smaller (thin them). Return 0; 1 if a checkpoint could not be
    thinned, which is printed.

    Raises DaemonError if the daemon does not respond.
    """
    from zerotools.core.errors import BadRequest, ZerotoolsError
    from zerotools.core.thinning_changes import Keep
    from zerotools.jobs.client.checkpoints_in_use import ResumePath, needed_paths, refuse_needed
    from zerotools.jobs.client.daemon_client import DaemonClient
    from zerotools.ops.thinning.carry_out_thinning import carry_out_thinning
    from zerotools.ops.thinning.swap_directories import clear_left
    from zerotools.ops.thinning.thin_plan import prepare_thinning
    from zerotools.runs.find_job_checkpoints import BEST, hinted_checkpoint
    from zerotools.runs.upload_records import checkpoint_in_upload

    def needed() -> list[ResumePath]:
        return [need for need in needed_paths(DaemonClient(socket)) if need.job != job]

    def refuse_in_use(path: Path) -> None:
        refuse_needed(path, needed())
        if checkpoint_in_upload(output_dir) == output_dir / path.name:
            raise BadRequest(f"{path} is being uploaded, and is thinned later")

    if cleared := clear_left(output_dir):
        print(f"removed files of a killed run: {cleared} bytes")
    status, others = 0, needed()
    for path in older_checkpoints(output_dir, keep):
        hints = (named, hinted_checkpoint(output_dir, BEST), checkpoint_in_upload(output_dir))
        pinned = {hint.resolve() for hint in hints if hint is not None}
        if path.resolve() in pinned or not path.is_dir():  # the ranks delete old ones meanwhile
            continue
        need = next((each for each in others if each.concerns(path)), None)
        if need is not None:
            print(need.sentence(path))
            continue
        try:
            plan = prepare_thinning(path, Keep.MASTERS)
            done = carry_out_thinning(plan, permit=refuse_in_use)
            if done.checked is not None:
                print(f"thinned {path}: {done.plan.freed} bytes are free")
        except (ZerotoolsError, OSError) as error:
            if not path.is_dir():
                print(f"{path} was deleted meanwhile")
                continue
            print(" ".join(str(error).split()), file=sys.stderr)
            status = 1
    return status


def older_checkpoints(output_dir: Path, keep: int) -> Iterator[Path]:
    """Yield the unthinned checkpoints that are older than the `keep` newest complete unthinned
    checkpoints.

    The newest comes first. A checkpoint counts as complete if its files have the recorded sizes.
    """
    from zerotools.core.errors import ZerotoolsError
    from zerotools.runs import find_job_checkpoints
    from zerotools.runs.thinning_record import is_thinned

    whole = 0
    for path in find_job_checkpoints.list_checkpoints(output_dir):
        if is_thinned(path):
            continue
        if whole >= keep:
            yield path
            continue
        try:
            find_job_checkpoints.verify_checkpoint_files(path, digests=False)
        except ZerotoolsError:
            continue
        whole += 1


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    from zerotools.core.errors import ZerotoolsError

    output_dir, keep, socket, job, *named = arguments
    os.nice(LOWEST_PRIORITY)
    try:
        given = Path(named[0]) if named else None
        return thin_older(Path(output_dir), int(keep), Path(socket), int(job), given)
    except (ZerotoolsError, OSError) as error:
        print(f"checkpoints are not thinned now: {' '.join(str(error).split())}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    # The daemon's interpreter may have another zerotools, or none that can be found from here.
    runpy.run_path(str(Path(__file__).parents[1] / "trainer" / "entry.py"))["make_importable"]()
    raise SystemExit(main(sys.argv[1:]))

"""Reserve ("claim") an output directory for one Slurm job, so that no other job writes into it.

    OUTPUT/.zerotools-slurm/3/claim.json    the job that writes to OUTPUT; the highest number counts

To make a claim, a job renames a directory of its own to the next number, which only one job can do.
The directory OUTPUT contains the claims of all users and of every `ZEROTOOLS_SLURM_DIR`. A claim of
a finished job is ignored.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.jobs.slurm.job_directory import JobDirectory, read_record, write_record

CLAIMS, CLAIM = ".zerotools-slurm", "claim.json"


def claim_output(
    output_dir: str, own: JobDirectory, why_taken: Callable[[JobDirectory], str | None]
) -> Callable[[], None]:
    """Reserve `output_dir` for the job `own`. Return a function that withdraws this claim.

    If another job has a claim, `why_taken` is called with the directory of that job. It returns a
    sentence if that job is unfinished, else None.

    Raises BadRequest: another unfinished job has the claim, or the directory cannot be written.
    """
    output = Path(os.path.realpath(output_dir))
    place, is_new = output / CLAIMS, not output.exists()
    draft = place / f".{secrets.token_hex(8)}"
    try:
        draft.mkdir(parents=True)
        write_record(draft / CLAIM, {"job": str(own.path), "time": time.time()})
        number = _make_claim(output_dir, place, draft, own, why_taken)
    except OSError as error:
        raise BadRequest(
            f"output_dir = {output_dir}: {error.filename}: {error.strerror}; name a directory that "
            "can be written"
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)

    def withdraw() -> None:
        if number is not None:
            shutil.rmtree(place / str(number), ignore_errors=True)
            with suppress(OSError):
                place.rmdir()
                if is_new:
                    output.rmdir()

    return withdraw


def _make_claim(
    output_dir: str,
    place: Path,
    draft: Path,
    own: JobDirectory,
    why_taken: Callable[[JobDirectory], str | None],
) -> int | None:
    """Make a new claim by renaming `draft`, and return its number.

    Return None if the job already has the claim. Raises BadRequest and OSError.
    """
    while True:
        newest = max(_numbers(place), default=0)
        held = read_record(place / str(newest) / CLAIM) if newest else None
        if held is not None:
            holder = JobDirectory(Path(str(held.get("job"))))
            if holder == own:
                return None
            if (job := why_taken(holder)) is not None:
                raise BadRequest(
                    f"output_dir = {output_dir}: {job}, writes there; name another directory"
                )
        try:
            draft.rename(place / str(newest + 1))
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            continue  # another job was faster
        if max(_numbers(place)) == newest + 1:
            for number in _numbers(place):
                if number <= newest:
                    shutil.rmtree(place / str(number), ignore_errors=True)
            return newest + 1
        (place / str(newest + 1)).rename(draft)  # free only because a later claim removed it


def _numbers(place: Path) -> list[int]:
    return [int(each.name) for each in place.iterdir() if each.name.isdecimal()]

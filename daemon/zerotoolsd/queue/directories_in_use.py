"""Records which job writes into which directory, so that two unfinished jobs never write into the
same directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from zerotools.jobs import states
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.interface.api_types import Conflict
from zerotoolsd.queue.store import Store


class DirectoryWriters:
    """The output directories of the jobs in a store, with symbolic links resolved, and the jobs
    that write into them.

    A job's default directory (`jobs_dir/ID/output`) is not recorded, because its name contains the
    job number and so never collides. Finished jobs stay recorded; `refuse_used` ignores them.
    """

    def __init__(self, store: Store, jobs_dir: Path) -> None:
        self._store = store
        self._below = {f"{jobs_dir}/", f"{os.path.realpath(jobs_dir)}/"}
        prefixes = "|".join(sorted(map(re.escape, self._below)))
        self._own = re.compile(rf"(?:{prefixes})([0-9]{{1,18}})/output")
        self._by_place: dict[str, set[int]] = {}
        self._known: set[int] = set()
        self._whole = False

    def note(self, job_id: int, place: str | None) -> None:
        """Record that the job writes into the directory `place`. Do nothing if `place` is None,
        which means the job's default directory.
        """
        if place is not None:
            self._add(job_id, place)

    def _add(self, job_id: int, place: str) -> None:
        if not self._whole:
            self._known.add(job_id)
        self._by_place.setdefault(place, set()).add(job_id)

    def unrecorded(self) -> dict[int, str]:
        """Return the output directories of unfinished jobs that still must be recorded: job number
        -> directory.

        Directories below `jobs_dir` are not in the result: this method records them itself, because
        they contain no symbolic links to resolve.
        """
        if self._whole:
            return {}
        found = {}
        for job_id, given in self._store.places():
            place = os.path.normpath(given)
            if job_id in self._known or self._owner(place) == job_id:
                continue
            if place.startswith(tuple(self._below)):
                self._add(job_id, place)
            else:
                found[job_id] = given
        if not found:
            self._all_known()
        return found

    def record_directories(self, paths: Mapping[int, str], places: list[str]) -> None:
        """Record the directories of jobs. `paths` is the result of `unrecorded`. `places` has the
        same directories in the same order, with symbolic links resolved.
        """
        for job_id, place in zip(paths, places, strict=True):
            self._add(job_id, place)
        self._all_known()

    def _all_known(self) -> None:
        self._whole = True
        self._known.clear()

    def _owner(self, place: str) -> int | None:
        """Return the job with the default directory `place`; None if no job can have it."""
        found = self._own.fullmatch(place)
        return None if found is None else int(found[1])

    def forget(self, job_id: int) -> None:
        """Forget the directory of a job that gets another one. The caller records the new one."""
        for jobs in self._by_place.values():
            jobs.discard(job_id)

    def refuse_used(self, spec: JobSpec, place: str | None, own: int | None = None) -> None:
        """Raise Conflict if an unfinished job writes into the directory `place`. The job with the
        number `own` may write there.

        `spec` is the job file of the job that wants to use the directory.
        """
        for job_id in [] if place is None else self._jobs_at(place):
            state = self._store.state(job_id)  # None: it was removed, or its submit was undone
            if state is not None and state not in states.TERMINAL and job_id != own:
                raise Conflict(
                    f"output_dir = {spec.output_dir}: job {job_id}, which is "
                    f"{states.display_text(state)}, writes there; name another directory"
                )

    def _jobs_at(self, place: str) -> list[int]:
        named, owner = self._by_place.get(place, set()), self._owner(place)
        found = sorted(named)
        if owner is not None and owner not in named:
            given = self._store.output_dir(owner)
            # It may have been told to write elsewhere.
            if given is not None and self._owner(os.path.normpath(given)) == owner:
                found.append(owner)
        return found

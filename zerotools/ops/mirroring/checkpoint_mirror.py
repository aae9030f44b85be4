"""Copy a job's checkpoints to an object store, and fetch them back.

The newest checkpoint is sent first, then the older ones that the rule keeps in the store. A
checkpoint is marked while it is sent, so that the ranks do not delete it. If the ranks save faster
than the network can send, some checkpoints are never sent. So neither the disk nor the ranks wait
for the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.output.write_to_store import ForeignObjects
from zerotools.io.stores.parse_url import lies_in, path_of
from zerotools.io.stores.store_path import StorePath
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.mirroring import prefix_owner
from zerotools.ops.mirroring.fetch_copy import fetch_copy
from zerotools.ops.mirroring.list_and_remove_copies import (
    newest_copy,
    point_at,
    refuse_part,
    remove_old,
)
from zerotools.ops.mirroring.send_copy import SentCopy, send_copy
from zerotools.runs import find_job_checkpoints
from zerotools.runs.deletable_checkpoints import KeepRule
from zerotools.runs.find_job_checkpoints import BEST, LATEST, SkippedCheckpoint
from zerotools.runs.thinning_record import is_thinned
from zerotools.runs.upload_records import (
    FETCHED,
    fetched_url,
    record_fetched_url,
    record_upload,
    uploading_job,
)

OnSent = Callable[[Path, StorePath, SentCopy], None]
OnSkipped = Callable[[SkippedCheckpoint], None]
"""A function for each copy that is not fetched, because it is damaged or incomplete."""


def _ignore(_: SkippedCheckpoint) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Mirror:
    """Copies the checkpoints in `output_dir` to the prefix `place` of an object store.

    `rule` selects the checkpoints to keep in the store. `job` is the id of the job, which
    identifies the run even if `output_dir` is lost.
    """

    output_dir: Path
    place: StorePath
    job: str
    rule: KeepRule = field(default_factory=KeepRule)

    def send_all(
        self, budget: MemoryBudget, sent: OnSent, failed: Callable[[Path, str], None]
    ) -> bool:
        """Send the missing checkpoints, and return whether all could be sent.

        `failed` is called with a checkpoint that is damaged, or if other objects have its name. The
        other checkpoints are still sent.

        Raises:
            BadRequest: another run owns the prefix; or the store denies access.
            HostUnreachable: the store does not answer.
        """
        done: set[str] = set()
        whole = True
        while (path := self._next(done)) is not None:
            self._refuse_lost()
            record_upload(self.output_dir, path)
            done.add(path.name)
            try:
                copy = send_copy(
                    path, self.place / path.name, budget=budget, permit=self._refuse_lost
                )
            except (BadFile, ForeignObjects) as error:
                # Else the ranks have deleted it before it was noted.
                if path.is_dir() and not is_thinned(path):
                    failed(path, str(error))
                    whole = False
                continue
            finally:
                record_upload(self.output_dir, None)
            if copy is not None:
                sent(path, self.place / path.name, copy)
            self._tidy()
        return whole

    def _refuse_lost(self) -> None:
        prefix_owner.refuse_lost(self.place, self.output_dir)

    def _next(self, done: set[str]) -> Path | None:
        """Return the newest checkpoint to send that is not in `done`; None if all are in `done`."""
        return next((path for path in self._wanted() if path.name not in done), None)

    def _wanted(self) -> list[Path]:
        """Return the checkpoints on the disk that should be in the store, the newest first."""
        listed = find_job_checkpoints.list_checkpoints(self.output_dir)
        best = find_job_checkpoints.hinted_checkpoint(self.output_dir, BEST)
        goes = {*self.rule.beyond(listed)} - {best}
        return [path for path in listed if path not in goes and not is_thinned(path)]

    def _tidy(self) -> None:
        """Update the objects `latest` and `best` in the store, and remove copies that the rule
        drops."""
        newest = newest_copy(self.place).path
        if newest is None:
            return
        point_at(self.place, LATEST, newest.name)
        best = find_job_checkpoints.hinted_checkpoint(self.output_dir, BEST)
        if best is not None and (self.place / best.name).is_dir():
            point_at(self.place, BEST, best.name)
        # Those on the disk may be older than those in the store, if the run went back.
        remove_old(self.place, self.rule, {newest.name, *(path.name for path in self._wanted())})

    def can_go_on(self) -> bool:
        """Return whether the job began before and has a complete checkpoint on the disk."""
        if uploading_job(self.output_dir) != self.job:
            return False
        return find_job_checkpoints.newest_valid(self.output_dir, digests=False).path is not None

    def fetch(self, resume_from: str | None, skipped: OnSkipped = _ignore) -> Path | None:
        """Claim the prefix, and fetch its newest checkpoint if it is newer than those on the disk.
        Return the path of the fetched checkpoint, or None if nothing was fetched. `skipped` is
        called for each newer copy that is not complete.

        Raises:
            BadRequest: the run has a newer checkpoint than `resume_from`.
            As `prefix_owner.claim_prefix`, and `fetch_copy`.
        """
        own = find_job_checkpoints.newest_valid(
            self.output_dir, trusting=True
        )  # as the ranks choose
        above = -1 if own.record is None else own.record.step
        if resume_from is not None and lies_in(resume_from, str(self.place)):
            self._check_start(_far(path_of(resume_from)), resume_from, above)
        prefix_owner.claim_prefix(self.place, self.output_dir, self.job, resume_from)
        choice = newest_copy(self.place, above)
        for each in choice.skipped:
            skipped(each)
        found = choice.path
        if found is None:
            return None
        destination = self.output_dir / found.name
        fetch_copy(_far(found), destination)
        return destination

    def _check_start(self, start: StorePath, given: str, own: int) -> None:
        """Check that a new job can start from `start`, before the job claims the prefix.

        `given` is the user's spelling of `start`. `own` is the newest step on the disk, or -1
        without a checkpoint there.

        Raises:
            BadRequest: `start` has no checkpoint, or the job would resume from a newer checkpoint
                of the run.
            As `prefix_owner.check_claim` and `start_of`.
        """
        prefix_owner.check_claim(self.place, self.output_dir, self.job, given)
        before = prefix_owner.read_claim(self.place)
        if before is not None and before.job == self.job:
            return
        if start == self.place:
            if own < 0:
                start_of(start)
            return
        step = find_job_checkpoints.read_record(start_of(start)).step
        newest = newest_copy(self.place).record
        ahead = max(own, -1 if newest is None else newest.step)
        if ahead > step:
            raise BadRequest(
                f"resume_from = {given}: is at step {step}, but the job would resume from step "
                f"{ahead} of the run; name another URL to upload to and another output_dir, or "
                f'set resume_from = "{self.place}"'
            )


def fetch_start(
    output_dir: Path, resume_from: StorePath, skipped: OnSkipped = _ignore
) -> Path | None:
    """Fetch the checkpoint `resume_from` to the disk, unless an earlier call did, and return its
    path. Return None if `output_dir` has a checkpoint of the job already. For `skipped` see
    `Mirror.fetch`.

    Raises:
        BadRequest: `resume_from` is not a job's checkpoint.
        As `fetch_copy`.
    """
    destination = output_dir / FETCHED
    if find_job_checkpoints.newest_valid(output_dir, digests=False).path is not None:
        return None
    if destination.is_dir() and fetched_url(output_dir) == str(resume_from):
        try:
            find_job_checkpoints.verify_checkpoint_files(destination, digests=False)
            return destination
        except BadFile:
            pass
    record_fetched_url(output_dir, None)
    fetch_copy(_far(start_of(resume_from, skipped)), destination)
    record_fetched_url(output_dir, str(resume_from))
    return destination


def start_of(resume_from: StorePath, skipped: OnSkipped = _ignore) -> Path:
    """Return the checkpoint to resume from: `resume_from`, or the newest one in this directory.
    For `skipped` see `Mirror.fetch`.

    Raises:
        BadRequest: `resume_from` has no checkpoint of a job.
        BadFile: no checkpoint is complete.
    """
    resume_from.forget()
    choice = find_job_checkpoints.resolve_resume_from(
        resume_from, digests=False, structure=refuse_part
    )
    for each in choice.skipped:
        skipped(each)
    assert choice.path is not None
    return choice.path


def _far(path: Path) -> StorePath:
    assert isinstance(path, StorePath)
    return path

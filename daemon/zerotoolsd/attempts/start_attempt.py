"""Starts an attempt: commits it as `launching` before any of its files exist, then starts its
supervisor.

From the commit of `launching` to the commit of `running`, no other task of the event loop runs.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import ZerotoolsError
from zerotools.io.files.mounts import MountPoint, ReadMounts, read_mounts
from zerotools.jobs import states
from zerotools.sensors.numa import ReadTopology, read_topology
from zerotoolsd.attempts import crash_points, last_report, prepare_run_directory, resource_limits
from zerotoolsd.attempts.attempt_watcher import AttemptWatcher, OnOver
from zerotoolsd.attempts.backends.fork_server_pool import ForkServerPool
from zerotoolsd.attempts.backends.start_by_systemd_or_as_child import NotReady
from zerotoolsd.attempts.choose_numa_binding import UNBOUND, RankBinder
from zerotoolsd.attempts.delay_starts import TURN_SECONDS, RestartThrottle, StartBackoff
from zerotoolsd.attempts.make_attempt_plan import EarlierCheckpoints, LaunchSettings
from zerotoolsd.queue import clocks, lifecycle
from zerotoolsd.queue.change_state import StateChanger
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.lifecycle import Admit, Started
from zerotoolsd.queue.rows import LAUNCHING, AttemptRow, JobRow, UnreadableSpec
from zerotoolsd.supervisor.attempt_plan import ATTEMPT, Plan
from zerotoolsd.supervisor.durable_files import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.transient_os_errors import error_text, is_transient
from zerotoolsd.users.account import NameLookupTimeout, UnknownAccount
from zerotoolsd.users.open_as_user import opened_run_directory
from zerotoolsd.users.served_users import ServedUsers

SAME_SECONDS = 5.0
"""If two start times differ by more than this many seconds, they belong to two supervisors."""
NO_USER_SECONDS = 300.0
"""Seconds that a start is delayed if its user is in no list of the machine. While sssd or a similar
service restarts, a lookup gives the same answer as for a user who was removed.
"""


@dataclass(frozen=True, kw_only=True)
class HostReaders:
    """The functions that read the mounted file systems and the NUMA nodes of the host."""

    mounts: ReadMounts = read_mounts
    topology: ReadTopology = read_topology


@dataclass(frozen=True, kw_only=True)
class StartResources:
    """The functions that read the resources of the machine for the start of an attempt.

    `gpu_locks` returns the data with which the supervisor locks GPUs, for a list of GPU UUIDs.
    `unaccounted` returns, for each GPU UUID, the used bytes of GPU memory that belong to no
    process. `placer` chooses the processors of ranks (None: any processors). `mounts` reads the
    mounted file systems.
    """

    gpu_locks: Callable[[Sequence[str]], Mapping[str, Any]] = lambda gpus: {}
    unaccounted: Callable[[Sequence[str]], Mapping[str, int]] = lambda gpus: {}
    placer: RankBinder | None = None
    mounts: ReadMounts = read_mounts


class AttemptStarter:
    """Starts attempts of jobs. The directories of the jobs are below `jobs_dir`.

    If an attempt cannot be started, its end is reported to `on_over` of the watcher.
    `on_first_start` is called before the first attempt of a job, with the seconds for which the job
    was queued.
    """

    def __init__(
        self,
        *,
        transitions: StateChanger,
        watcher: AttemptWatcher,
        pending: StartBackoff,
        jobs_dir: Path,
        settings: LaunchSettings,
        resources: StartResources,
        users: ServedUsers,
        warm: ForkServerPool,
    ) -> None:
        self.on_first_start: Callable[[float], None] = lambda seconds: None
        self._resources = resources
        self._users = users
        self._transitions = transitions
        self._store = transitions.store
        self._watcher = watcher
        self._pending = pending
        self._jobs_dir = jobs_dir
        self._settings = settings
        self._warm = warm
        self._how: dict[str, str] = {}
        """For each token, the way in which the attempt was started. It is kept until the start
        is committed.
        """
        self._loading = RestartThrottle(settings.config.retry, self.loads)

    def launch(
        self,
        job: JobRow,
        gpu_uuids: tuple[str, ...],
        gpu_bytes: int | None = None,
        gpu_part: float = 1.0,
        size: int | None = None,
    ) -> None:
        """Add the next attempt of `job` on these GPUs to the queue, commit this, and start the
        attempt.

        `gpu_bytes` is the memory that the attempt gets of each GPU (None: whole GPUs), and
        `gpu_part` is this memory as a fraction of the GPU. `size` is the number of ranks of an
        elastic job.
        """
        attempts = self._store.attempts(job.id)
        number = len(attempts) + 1
        found = last_report.latest_checkpoint(job, attempts)
        attempt = AttemptRow(
            job_id=job.id,
            number=number,
            token=secrets.token_hex(16),
            state=LAUNCHING,
            run_dir=str(self._jobs_dir / str(job.id) / f"attempt-{number}"),
            gpu_uuids=gpu_uuids,
            resumed_from=str(found[1]) if found else job.spec.resume_from,
            started=None,
            ended=None,
            result=None,
            host=os.uname().nodename,
            world_size=size or job.spec.world_size,
            gpu_part=gpu_part,
            gpu_baseline=self._resources.unaccounted(gpu_uuids),
        )
        after, now = self._transitions.state_after(job, Admit()), time.time()
        with self._store.change(job, after, lifecycle.ADMIT, now=now, attempt=number) as change:
            change.add_attempt(attempt, gpu_bytes)
        self._transitions.publish(job, after)
        if not attempts:
            self.on_first_start(max(0.0, now - job.created))
        crash_points.crash_at(crash_points.LAUNCHING_COMMITTED)
        self.begin(attempt, self._watcher.on_over)

    def begin(self, attempt: AttemptRow, failed: OnOver) -> None:
        """Start an attempt that is already in the queue as launching.

        If the machine prevents the start, it is tried again later. If the start fails for another
        reason, `failed` is called.
        """
        job = self._store.job(attempt.job_id)
        before = self._store.attempts(job.id)[: attempt.number - 1]
        if why := self._loading.why_not_now(attempt):
            self._pending.wait_for_turn(job.id, why, TURN_SECONDS)
            return
        if why := self._store.disk_reserve.why_lost():
            self._pending.put_off(job.id, why)
            return
        try:
            mounted = self._resources.mounts()
            if missing := what_is_missing(before[-1] if before else None, mounted):
                self._pending.put_off(job.id, missing)
                return
            user = self._users.of(job.uid)
            placer = self._resources.placer
            bindings = UNBOUND if placer is None else placer.bindings_for(job.spec, attempt)
            plan = prepare_run_directory.prepare_run_directory(
                job,
                attempt,
                settings=self._settings,
                earlier=EarlierCheckpoints(
                    newest=last_report.checkpoints_before(before),
                    by_program=last_report.reported_by_program(before),
                ),
                gpu_locks=self._resources.gpu_locks(attempt.gpu_uuids),
                user=user,
                mounted=mounted,
                bindings=bindings,
            )
            warm, how = self._warm.start(attempt, plan, job.spec, user)
            limits = None if user is None else self._cgroup_limits(job)
            self._watcher.start(attempt, user, limits, warm)
        except OSError as error:
            cause = f"could not be started: {error_text(error)}"
            if is_transient(error, own_files=True):
                self._pending.put_off(job.id, error_text(error))
                return
            failed(attempt, {"outcome": lifecycle.CRASHED, "cause": cause})
            return
        except (NotReady, NameLookupTimeout) as error:
            self._pending.put_off(job.id, str(error))
            return
        except UnknownAccount as error:
            if self._pending.seconds(job.id) < NO_USER_SECONDS:
                self._pending.put_off(job.id, str(error))
            else:
                failed(attempt, {"outcome": lifecycle.BAD_JOB, "cause": str(error)})
            return
        except UnreadableSpec:
            raise
        except ZerotoolsError as error:
            failed(attempt, {"outcome": lifecycle.BAD_JOB, "cause": str(error)})
            return
        if told := [each for each in (how, bindings.said) if each is not None]:
            self._how[attempt.token] = "; ".join(told)
        self._pending.forget(job.id)
        self._loading.began(attempt)
        crash_points.crash_at(crash_points.SUPERVISOR_SPAWNED)
        if self._watcher.has_supervisor(attempt):
            self.mark_running(attempt, clocks.read_clocks())

    def _cgroup_limits(self, job: JobRow) -> Mapping[str, int] | None:
        """Return the limits of the control group for a job of another user; None if the job
        gets no control group.
        """
        allowed = self._settings.config.limits
        limits = resource_limits.attempt_limits(job.spec.limits, allowed)
        return limits if limits or allowed.cgroups else None

    def loads(self, attempt: AttemptRow) -> bool:
        """Return whether the attempt is running and has not done a step yet."""
        if not self._watcher.watches(attempt):
            return False
        return last_report.report_so_far(Path(attempt.run_dir)).step is None

    def found_running(self, attempt: AttemptRow, began: Moment) -> None:
        """Call `mark_running` if the attempt is still launching in the queue."""
        current = self._store.attempts(attempt.job_id)[attempt.number - 1]
        if current.token == attempt.token and current.state == LAUNCHING:
            self.mark_running(current, began)

    def mark_running(self, attempt: AttemptRow, began: Moment) -> None:
        """Record in the queue that the supervisor of the attempt has been running since `began`. Do
        nothing if this is already recorded.
        """
        job, here = self._store.job(attempt.job_id), clocks.read_clocks()
        if began.time > here.time or (began.clock or 0.0) > (here.clock or 0.0):
            began = here  # the user can write this record: no attempt begins in the future
        later = attempt.began is not None and began.seconds_since(attempt.began) > SAME_SECONDS
        # A later start: the first supervisor ended before it began anything, because of a full
        # disk. The wait since then does not count as running time.
        if attempt.state != LAUNCHING and job.state != states.LAUNCHING and not later:
            return
        after = self._transitions.state_after(job, Started())
        now, number = time.time(), attempt.number
        why = self._how.pop(attempt.token, None)
        kind = lifecycle.STARTED
        with self._store.change(job, after, kind, now=now, attempt=number, why=why) as change:
            if attempt.state == LAUNCHING or later:
                change.attempt_started(number, began)
        self._transitions.publish(job, after)


_LONGEST = 500


def what_is_missing(last: AttemptRow | None, table: Iterable[MountPoint]) -> str | None:
    """Return a sentence if a file system that the attempt `last` used is not mounted now; None
    otherwise.

    `table` has the current mounts. Raises OSError.
    """
    if last is None:
        return None
    try:
        with opened_run_directory(Path(last.run_dir)) as base:
            tree = read_json(base / ATTEMPT, LARGEST_RECORD)
        named = () if tree is None else Plan.from_json(tree).mounts
    except FileNotFoundError:
        return None
    except (TypeError, ValueError):  # the ranks can write there, too
        return None
    here = {point.path for point in table}
    gone = [each for each in named if isinstance(each, str) and each not in here] if here else []
    if not gone:
        return None
    words = " and ".join(gone)[:_LONGEST]
    return (
        f"{words} {'is' if len(gone) == 1 else 'are'} not mounted any more, but the job has "
        f"files there; mount {'it' if len(gone) == 1 else 'them'} again"
    )

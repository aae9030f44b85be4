"""Makes a job that watches a training run that a user started by hand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs import states
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import is_reference
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.file_checks.file_checker_pool import Ask, SlowCheck
from zerotoolsd.interface.api_types import Adoption, Conflict, Unavailable
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.admission.adoptable_process import inspect_process
from zerotoolsd.service.submission import LOOK_SECONDS, JobSubmission

MOST_WATCHED = 64
"""The largest number of processes that jobs of one user may watch at a time.

Such jobs use no GPUs of the queue, but some memory of the daemon.
"""
_LONGEST_NAME = 60
_WATCHES = '"adopted": "'
"""Text in the job file of every job that watches a process."""


@dataclass(frozen=True)
class Adopted:
    """A job that watches a process, the pids of the descendants of that process, and the UUIDs of
    the GPUs that these processes use.
    """

    job: JobRow
    below: tuple[int, ...]
    gpu_uuids: tuple[str, ...]


class Adopting:
    """Queues jobs that watch processes which users started by hand."""

    def __init__(self, dispatcher: Dispatcher, submission: JobSubmission, ask: Ask) -> None:
        self._dispatcher = dispatcher
        self._submission = submission
        self._ask = ask
        self._turn = asyncio.Lock()
        """Held while a process is adopted, so that only one of two requests for it succeeds."""

    async def adopt(self, wanted: Adoption, uid: int) -> Adopted:
        """Queue a job that watches the process `wanted`; see `JobRequests.adopt`."""
        user = self._dispatcher.users.of(uid)
        try:
            found = await self._ask(
                LOOK_SECONDS, inspect_process, wanted.pid, os.getpid(), user=user
            )
        except TimeoutError as error:
            is_slow = isinstance(error, SlowCheck)
            why = "try again when the machine is less busy" if is_slow else "/proc does not answer"
            raise Unavailable(
                f"process {wanted.pid} could not be checked within {LOOK_SECONDS:g} s: {why}"
            ) from None
        spec = job_from_dict(_tree(found, wanted), source=f"process {wanted.pid}")
        async with self._turn:
            self._refuse_watched(wanted.pid, str(spec.script.adopted), uid)
            job, _ = await self._submission.submit(spec, uid=uid, key=None)
        below = tuple(pid for pid in found["below"] if type(pid) is int)
        return Adopted(job, below, await self._gpus({wanted.pid, *below}))

    def _refuse_watched(self, pid: int, identity: str, uid: int) -> None:
        """Raise Conflict if a job of this user watches the process already, or if the user's jobs
        watch too many processes.

        Jobs of other users do not count: they cannot really watch the process, and must not prevent
        its owner from watching it.
        """
        watched = 0
        for job in self._dispatcher.store.jobs((*states.ACTIVE, states.QUEUED), uid=uid):
            if identity in job.spec_text:
                raise Conflict(f"process {pid} is watched already, by job {job.id}")
            watched += _WATCHES in job.spec_text
        if watched >= MOST_WATCHED:
            raise Conflict(
                f"{count_text(watched, 'process', 'processes')} of yours "
                f"{'is' if watched == 1 else 'are'} watched already, and no more are allowed, "
                "because the daemon starts a few processes to watch each; cancel some of these "
                "jobs (their processes continue)"
            )

    async def _gpus(self, pids: set[int]) -> tuple[str, ...]:
        snapshot = await self._dispatcher.machine.snapshot()
        gpus = () if snapshot is None else snapshot.gpus
        return tuple(
            gpu.uuid
            for gpu in gpus
            if gpu.uuid is not None and any(each.pid in pids for each in gpu.processes or ())
        )


def _tree(found: Mapping[str, Any], wanted: Adoption) -> dict[str, Any]:
    """Return the job file of a job that watches the process."""
    script = {name: found[name] for name in ("adopted", "command", "directory")}
    script["checkpoint_dir"] = wanted.checkpoint_dir
    tree = {
        "name": wanted.name or _name_of(found["command"]),
        "engine": "script",
        "device": "cpu",
        "max_restarts": 0,
        "time_limit": wanted.time_limit,
        "captured_env": {},
        "script": {name: value for name, value in script.items() if value is not None},
    }
    return {name: value for name, value in tree.items() if value is not None}


def _name_of(command: list[str]) -> str:
    """Return a name for the job from its command: `train` for `python -u train.py --lr 1e-4`.

    If the command starts a launcher, it is the name of the program that the launcher starts.
    """
    words = [word for word in command if word.endswith(".py")]
    name = PurePath(words[-1] if words else command[0]).name.removesuffix(".py")
    printable = "".join(each for each in name if each.isprintable())
    return "adopted" if is_reference(printable) else printable[:_LONGEST_NAME] or "adopted"

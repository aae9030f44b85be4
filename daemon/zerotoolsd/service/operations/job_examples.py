"""The first examples of a job as its model sees them, in a cache."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.interface.api_types import CheckedJob
from zerotoolsd.queue.rows import JobRow, UnreadableSpec

MOST_KEPT = 32
"""Answers, of at most 64 KiB each."""
KEPT_SECONDS, FAILURE_SECONDS = 600.0, 10.0
"""The user may change or repair the data meanwhile."""

Look = Callable[[JobSpec, int, int], Awaitable[CheckedJob]]
"""Function of (job, uid of its user, number of examples) that returns them; raises
ZerotoolsError."""
_Key = tuple[int, int, int]


@dataclass(frozen=True)
class _Kept:
    answer: dict[str, Any]
    until: float


class JobExamples:
    """Asks the interpreter of a job, by `look`, one at a time for each user.

    A call continues after its client disconnects: the next client gets the cached answer.
    """

    def __init__(
        self,
        look: Look,
        *,
        most_kept: int = MOST_KEPT,
        failure_seconds: float = FAILURE_SECONDS,
    ) -> None:
        self._look = look
        self._most_kept, self._failure_seconds = most_kept, failure_seconds
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._looking: dict[int, asyncio.Task[None]] = {}

    async def read(self, job: JobRow, show: int, wait: float) -> dict[str, Any]:
        """Return `show` examples of `job`; without them if they take longer than `wait` seconds,
        and with the `problem` if they cannot be shown."""
        try:
            spec = job.spec
        except UnreadableSpec as error:
            return _answer_of(job.id, problem=str(error))
        now = asyncio.get_running_loop().time
        key, deadline = (job.id, hash(job.spec_text), show), now() + wait
        while (answer := self._answer(key, now())) is None:
            looking = self._looking.get(job.uid)
            if looking is None:
                looking = self._begin(key, job.uid, spec)
            if (left := deadline - now()) <= 0:
                return _answer_of(job.id, is_ready=False)
            done, _ = await asyncio.wait([looking], timeout=left)
            for each in done:
                each.result()  # of an error that nobody foresaw
        return answer

    def _answer(self, key: _Key, now: float) -> dict[str, Any] | None:
        kept = self._kept.get(key)
        if kept is None or kept.until < now:
            return None
        self._kept.move_to_end(key)
        return kept.answer

    def _begin(self, key: _Key, uid: int, spec: JobSpec) -> asyncio.Task[None]:
        async def look() -> None:
            try:
                self._keep(key, await self._found(key, uid, spec))
            finally:
                del self._looking[uid]

        self._looking[uid] = asyncio.create_task(look())
        return self._looking[uid]

    async def _found(self, key: _Key, uid: int, spec: JobSpec) -> dict[str, Any]:
        job_id, _, show = key
        if spec.engine == "script":
            return _answer_of(job_id)
        # The examples are the same, and the checkpoint may be gone.
        fresh = replace(spec, resume_from=None, resume_order=None)
        try:
            found = await self._look(fresh, uid, show)
        except ZerotoolsError as error:
            return _answer_of(job_id, problem=str(error))
        return _answer_of(job_id, notes=found.notes, sample=found.sample)

    def _keep(self, key: _Key, answer: dict[str, Any]) -> None:
        seconds = KEPT_SECONDS if answer["problem"] is None else self._failure_seconds
        self._kept[key] = _Kept(answer, asyncio.get_running_loop().time() + seconds)
        self._kept.move_to_end(key)
        if len(self._kept) > self._most_kept:
            self._kept.popitem(last=False)


def _answer_of(job_id: int, *, is_ready: bool = True, **found: Any) -> dict[str, Any]:
    return {
        "job": job_id,
        "ready": is_ready,
        "notes": [],
        "sample": None,
        "problem": None,
        **found,
    }

"""The search for a path in the texts of many jobs: up to 100,000 removed jobs, and 10,000 waiting
ones.

The paths of the jobs are joined into one text. If a path is not found in it, which takes a
millisecond, no job names it. Only otherwise are the jobs checked one by one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import PurePath

from zerotools.jobs import states
from zerotoolsd.dispatch.cleaning.removal import Mention
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.store import Store

UNFINISHED = tuple(state for state in states.STATES if state not in states.TERMINAL)

LookUp = Callable[[JobRow], Awaitable[list[Mention]]]


class NamedPaths:
    """The paths that jobs name during one clean. A job queued meanwhile has a higher number than
    all before it, and an ended one stays so. `owner` is the caller, None: all; `together` are the
    jobs named for removal."""

    def __init__(
        self,
        store: Store,
        look_up: LookUp,
        owner: int | None = None,
        together: Collection[int] = (),
    ) -> None:
        self.owner = owner
        self._together = together
        self._store = store
        self._look_up = look_up
        self._texts: list[str] = []
        self._named: dict[int, list[Mention]] = {}
        self._newest = 0
        self._all_text = ""
        self._writers: dict[str, set[int]] | None = None

    async def by_unfinished(self, places: Sequence[str]) -> tuple[JobRow, Mention] | None:
        """Return an unfinished job that names one of `places`, or something in it, and the
        mention."""
        await self._catch_up()
        if not any(place in self._all_text for place in places):
            return None
        for job_id, mentions in self._named.items():
            found = next((m for m in mentions if any(m.is_in(place) for place in places)), None)
            if found is not None and (job := self._unfinished(job_id)) is not None:
                return job, found
        return None

    def _unfinished(self, job_id: int) -> JobRow | None:
        try:
            job = self._store.job(job_id)
        except KeyError:
            return None
        return job if job.state in UNFINISHED else None

    async def _catch_up(self) -> None:
        ids = sorted(
            job_id for state in UNFINISHED for job_id in self._store.ids(state, above=self._newest)
        )
        for job_id in ids:
            self._newest = job_id
            if (job := self._unfinished(job_id)) is None:
                continue
            mentions = self._named[job_id] = await self._look_up(job)
            self._texts += [text for each in mentions for text in {each.text, each.real}]
        if ids:
            self._all_text = "\0".join(self._texts)

    async def by_others_output(self, paths: Sequence[str], own: int) -> int | None:
        """Return an ended job that stays, and wrote to one of `paths`, or into it."""
        if self._writers is None:
            self._writers = {}
            for state in states.TERMINAL:
                for job_id in self._store.ids(state):
                    await self._note_output(job_id, self._writers)
        for path in paths:
            for job_id in sorted(self._writers.get(path, ())):
                if job_id == own or job_id in self._together:
                    continue
                with suppress(KeyError):
                    return self._store.job(job_id).id
        return None

    async def _note_output(self, job_id: int, writers: dict[str, set[int]]) -> None:
        try:
            job = self._store.job(job_id)
        except KeyError:
            return
        for mention in await self._look_up(job):
            if mention.key == "output_dir":
                for place in {*_upwards(mention.text), *_upwards(mention.real)}:
                    writers.setdefault(place, set()).add(job_id)


def _upwards(path: str) -> Iterator[str]:
    pure = PurePath(path)
    return map(str, (pure, *pure.parents))

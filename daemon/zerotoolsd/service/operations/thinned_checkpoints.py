"""Finds which newest checkpoints of jobs are thinned, without waiting for their file systems.

A list of jobs shows the result of the last check, and a new check begins meanwhile. So a file
system that does not respond delays no list of jobs.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import replace

from zerotoolsd.file_checks.checkers import Ask
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.results.thinned_record import thinned_sentence
from zerotoolsd.users.served_users import ServedUsers

FRESH_SECONDS = 30.0
LOOK_SECONDS, PATIENCE_SECONDS = 10.0, 0.5
MOST_KEPT, MOST_LOOKS = 4096, 8


class ThinnedCheckpoints:
    """Keeps a sentence for each path. `ask` reads the files as the user of the job."""

    def __init__(self, ask: Ask, users: ServedUsers) -> None:
        self._ask = ask
        self._users = users
        self._seen: OrderedDict[tuple[int, str], tuple[float, str | None]] = OrderedDict()
        self._looks: dict[tuple[int, str], asyncio.Task[None]] = {}

    async def noted(self, view: JobView, job: JobRow, *, waits: bool) -> JobView:
        """Return `view` with `thinned` in its newest checkpoint. If `waits` is True, wait at most
        `PATIENCE_SECONDS` for a new check."""
        newest = view.latest_checkpoint
        if newest is None:
            return view
        key = (job.uid, str(newest["path"]))
        look = self._look_again(key)
        if waits and look is not None:
            await asyncio.wait([look], timeout=PATIENCE_SECONDS)
        _, said = self._seen.get(key, (0.0, None))
        return replace(view, latest_checkpoint={**newest, "thinned": said})

    def _look_again(self, key: tuple[int, str]) -> asyncio.Task[None] | None:
        seen, _ = self._seen.get(key, (float("-inf"), None))
        if time.monotonic() - seen < FRESH_SECONDS:
            return None
        if key not in self._looks and len(self._looks) < MOST_LOOKS:
            task = self._looks[key] = asyncio.create_task(self._look(key))
            task.add_done_callback(lambda _: self._looks.pop(key, None))
        return self._looks.get(key)

    async def _look(self, key: tuple[int, str]) -> None:
        uid, path = key
        said = self._seen.get(key, (0.0, None))[1]
        try:
            user = self._users.for_files(uid)
            said = await self._ask(LOOK_SECONDS, thinned_sentence, path, user=user)
        except (TimeoutError, OSError):  # the last known state is shown
            pass
        self._seen[key] = (time.monotonic(), said)
        self._seen.move_to_end(key)
        while len(self._seen) > MOST_KEPT:
            self._seen.popitem(last=False)

    async def close(self) -> None:
        """Stop all checks."""
        for task in list(self._looks.values()):
            task.cancel()
        await asyncio.gather(*self._looks.values(), return_exceptions=True)

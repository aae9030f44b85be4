"""Keeps the job files for clients: without secrets, computed once for each change of a job.

Masking secrets in 1 MB of a command can take a second. It runs in steps, so that the event loop
serves other requests between them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.text.secrets import longest_first
from zerotoolsd.attempts.environment import long_values, secret_steps
from zerotoolsd.interface.time_slice import TimeSlice
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.views import ShownSpec, set_key_steps, spec_steps, unreadable

MOST_CHARACTERS = 2 << 20
"""Total size of the job files in memory; short forms may take the same again."""
WHOLE_CHARACTERS = 16 << 10
"""A longer job file is shown short in a list."""
_LONGEST_TEXT, _SHORT_TEXT, _MOST_ENTRIES = 1000, 64, 50


class ShownSpecs:
    """Keeps the shown job file of each job, by its number."""

    def __init__(self, most: int = MOST_CHARACTERS) -> None:
        self._whole, self._short = _Kept(most), _Kept(most)

    async def of(self, job: JobRow, time_slice: TimeSlice, *, short: bool = False) -> ShownSpec:
        """Return the job file of `job`; `short`: with its long texts and lists cut, for a list of
        jobs."""
        short = short and len(job.spec_text) > WHOLE_CHARACTERS
        kept = self._short if short else self._whole
        if (known := kept.find(job)) is not None:
            return known
        spec = job.reading.spec
        if spec is None:
            return unreadable(job)
        await time_slice.pause_if_due()
        secrets = longest_first(await time_slice.run(secret_steps(spec)))
        await time_slice.pause_if_due()
        tree = job_to_dict(spec)
        if short:
            tree = shortened(tree)
        await time_slice.pause_if_due()
        shown = await time_slice.run(spec_steps(spec, tree, secrets))
        await time_slice.pause_if_due()
        unshown = longest_first((*secrets, *long_values(spec)))
        keys = await time_slice.run(set_key_steps(job, shortened=short))
        found = ShownSpec(secrets, shown, short, unshown, keys)
        kept.keep(job, found, WHOLE_CHARACTERS if short else len(job.spec_text))
        return found


@dataclass(frozen=True)
class _Entry:
    texts: tuple[str, str | None]
    shown: ShownSpec
    size: int


class _Kept:
    """Keeps the most recently used entries, up to `most` characters."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._size = 0

    def find(self, job: JobRow) -> ShownSpec | None:
        entry = self._entries.get(job.id)
        if entry is None or entry.texts != (job.spec_text, job.given_text):
            return None
        self._entries.move_to_end(job.id)
        return entry.shown

    def keep(self, job: JobRow, shown: ShownSpec, size: int) -> None:
        if (before := self._entries.pop(job.id, None)) is not None:
            self._size -= before.size
        self._entries[job.id] = _Entry((job.spec_text, job.given_text), shown, size)
        self._size += size
        while self._size > self._most and len(self._entries) > 1:
            self._size -= self._entries.popitem(last=False)[1].size


def shortened(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job file without its longest parts, with about `WHOLE_CHARACTERS`.

    A text is kept whole or removed: a part of a secret could not be recognized as one.
    """
    return _Shortening().table(tree)


class _Shortening:
    def __init__(self) -> None:
        self._left = WHOLE_CHARACTERS

    def table(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        short = {}
        for name, value in list(tree.items())[: _MOST_ENTRIES * 4]:
            self._left -= len(name)
            if len(name) <= _LONGEST_TEXT and self._left > -WHOLE_CHARACTERS:
                short[name] = self._value(value)
        return short

    def _value(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self.table(value)
        if isinstance(value, (list, tuple)):
            return [self._value(each) for each in value[:_MOST_ENTRIES]]
        if isinstance(value, str):
            if len(value) > min(_LONGEST_TEXT, max(_SHORT_TEXT, self._left)):
                return f"({len(value)} characters)"
            self._left -= len(value)
        return value

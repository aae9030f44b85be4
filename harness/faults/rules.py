"""Checks rules for jobs, in addition to `harness.invariants`.

The rules compare the current state with the previous check. A stamp is a line that a command of a
job's script writes.

- An event is not changed or lost, unless its job was removed. New events have higher numbers.
- A job changes its state only as the table of states allows.
- After a stop, no further command of the script begins.
- A script that has succeeded has written its last stamp.
- A cancelled job writes no stamp after its end.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from harness.faults.operations import END
from harness.patience import patient
from zerotools.jobs.states import CANCELLED, SUCCEEDED
from zerotoolsd.queue.insert_recovered_jobs import REBUILD
from zerotoolsd.queue.lifecycle import TRANSITIONS

SLACK_SECONDS = 0.5
"""The longest time between a stop and the stamp of a command that began before the stop."""
MOST_LATE = 2
"""The largest number of stamps that a rank may write after a stop: one of a command that began
before the stop, and one of the next command.
"""
_SAVING = "saved"
_ENDS = "SELECT job_id, max(time) FROM event WHERE to_state = ?"
"""The time at which it was known that no process of a job runs.

`job.ended` may be earlier: if the supervisor was killed, it is the time of the last heartbeat.
"""


class Rules:
    """Checks the rules for the jobs of one daemon. Their scripts write stamps to the file
    `stamps`.
    """

    def __init__(self, state: Path, stamps: Path) -> None:
        self._state = state
        self._stamps = stamps
        self._offset = 0
        self._events: dict[int, tuple[object, ...]] = {}
        self._words: dict[tuple[Path, str], list[tuple[float, str]]] = {}
        """The stamps, keyed by (directory of the attempt, rank)."""

    def broken(self, removed: Collection[int]) -> list[str]:
        """Return a sentence for each broken rule.

        Jobs in `removed` need not exist.
        """
        with closing(sqlite3.connect(self._state / "zerotools.db", isolation_level=None)) as queue:
            queue.execute("BEGIN")
            events = list(queue.execute("SELECT * FROM event ORDER BY seq"))
            rows = list(
                queue.execute(
                    "SELECT id, state, coalesce(full_text, spec) FROM job"
                    " LEFT JOIN job_text ON number = text_number"
                )
            )
            ends = dict(queue.execute(f"{_ENDS} GROUP BY job_id", (CANCELLED,)))
            moved = "SELECT job_id, from_state, kind, to_state FROM event WHERE seq > ?"
            last = max(self._events, default=0)
            changes = list(queue.execute(f"{moved} AND to_state IS NOT NULL", (last,)))
        self._read_stamps()  # later, as a finished job writes no more stamps
        return [
            *self._events_kept(events, removed),
            *self._legal(changes),
            *self._stopped(),
            *self._ended(rows, ends),
        ]

    def _events_kept(
        self, events: list[tuple[object, ...]], removed: Collection[int]
    ) -> Iterator[str]:
        known, now = self._events, {int(str(event[0])): event for event in events}
        for number, event in known.items():
            if number in now and now[number] != event:
                yield f"event {number} was {event}, and is {now[number]}"
            elif number not in now and event[2] not in removed:
                yield f"event {number} is lost: {event}"
        late = [number for number in now.keys() - known.keys() if number < max(known, default=0)]
        yield from (f"event {number} was added after newer events" for number in late)
        self._events = now

    def _legal(self, changes: list[tuple[int, str | None, str, str]]) -> Iterator[str]:
        for job, before, kind, after in changes:
            moves = before is not None and before != after and kind != REBUILD
            if moves and TRANSITIONS.get((str(before), kind)) != after:
                yield f"job {job} went from {before} to {after} by {kind}, which no rule allows"

    def _read_stamps(self) -> None:
        if not self._stamps.exists():
            return
        with self._stamps.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode().splitlines():
            place, moment, rank, word = line.rsplit(" ", 3)
            self._words.setdefault((Path(place), rank), []).append((float(moment), word))

    def _stopped(self) -> Iterator[str]:
        for (place, _), words in self._words.items():
            try:
                stopped = (place / "stop").stat().st_mtime
            except OSError:
                continue
            late = [(t, w) for t, w in sorted(words) if t > stopped and w != _SAVING]
            if late and (len(late) > MOST_LATE or late[-1][0] > stopped + patient(SLACK_SECONDS)):
                names = ", ".join(f"{word} after {moment - stopped:.2f} s" for moment, word in late)
                yield f"{place} was stopped, but wrote the stamps {names}"

    def _ended(self, rows: list[tuple[int, str, str]], ends: Mapping[int, float]) -> Iterator[str]:
        for job, state, spec in rows:
            script = json.loads(spec).get("script") or {}
            words = self.words(job)
            if state == SUCCEEDED and script.get("command") and END not in words.values():
                yield f"job {job} succeeded, but its script has not written its last stamp: {words}"
            late = [moment - ends[job] for moment in words if state == CANCELLED]
            if late and max(late) > 0:
                yield f"job {job} was cancelled, but wrote a stamp {max(late):.2f} s later"

    def words(self, job: int) -> dict[float, str]:
        """Return the stamps of a job, keyed by time in seconds since 1970."""
        mine = [w for (place, _), w in self._words.items() if place.parent.name == str(job)]
        return {moment: word for words in mine for moment, word in words}

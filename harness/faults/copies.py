"""Stories of the file that stores the queue: an older schema, a backup, a restored backup, the
removal of a job.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from harness.faults import warm
from harness.faults.daemons import GONE, SECONDS, Place, Wanted, moved
from harness.faults.points import Found, Story
from harness.faults.stories import ONCE, DaemonStory, judge
from harness.faults.tracing import Injection, counted
from harness.faults.warm import Victim
from zerotools.jobs.client.queue_backup import DATABASE, back_up_queue, restore_queue
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.queue.schema import MIGRATIONS, open_database
from zerotoolsd.queue.store import Store

COPY = "copy.db"


@dataclass(frozen=True)
class Template:
    """The files of a `Place`, which are copied as the start of other stories."""

    place: Place

    def copied(self, path: Path) -> Place:
        """Copy the files to `path`, and return the new place.

        The paths that the queues contain are changed to the new place.
        """
        place = Place(path, self.place.tensors)
        old = self.place.path
        moved(self.place.state, place.state, old, path)
        for file in old.glob("*.lines"):
            shutil.copy(file, path)
        if (old / COPY).exists():
            moved(old / COPY, path / COPY, old, path)
        return place


def queue_up(place: Place, jobs: Mapping[str, Wanted]) -> None:
    """Put `jobs` into the queue of `place` without a daemon."""
    place.state.mkdir(mode=0o700)
    store = Store(place.state)
    for name, wanted in jobs.items():
        spec = job_from_dict(wanted.tree, source="job")
        uid, now = os.geteuid(), time.time()
        store.submit(
            uid=uid,
            name=name,
            spec=spec,
            output_dir=None,
            default_output=place.state / "jobs",
            idempotency_key=name,
            now=now,
        )
    store.close()


def run_all(place: Place, jobs: Mapping[str, Wanted]) -> None:
    """Run `jobs` with a daemon until all of them have ended.

    Raises:
        AssertionError: a job did not end in time.
    """
    daemon = place.daemon()
    said = place.drive(jobs, daemon.is_running)
    daemon.terminate()
    daemon.wait(SECONDS)
    assert said is None, f"{said}: {place.log}"


def as_first_schema(place: Place) -> None:
    """Replace the queue of `place` by a queue with the first schema and the same jobs."""
    path = place.state / DATABASE
    path.rename(newer := place.state / "newer.db")
    old = open_database(place.state, MIGRATIONS[:1])
    old.execute("ATTACH ? AS newer", (str(newer),))
    for table in ("job", "attempt", "event"):
        columns = ", ".join(row[1] for row in old.execute(f"PRAGMA main.table_info({table})"))
        old.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM newer.{table}")
    old.close()
    newer.unlink()
    (place.state / f"{DATABASE}.last-change").unlink(missing_ok=True)


@dataclass(frozen=True)
class BackupStory:
    """`zerotools backup` is killed. Afterwards, a complete copy or no copy exists, and the queue is
    unchanged.
    """

    template: Template
    name: str = "backup"

    def run(self, path: Path, injection: Injection | None) -> Found:
        """Run the story; see `Story.run`."""
        place = self.template.copied(path)
        out = path / "out.db"
        victim = Victim("backup", [place.state, out], path, injection)
        victim.go()
        victim.wait(SECONDS)
        victim.end()
        found = Found(hit=victim.was_hit(), calls=counted(victim.trace))
        if not out.exists():
            back_up_queue(place.state, out)
        copied, kept = jobs_in(out), jobs_in(place.state / DATABASE)
        if not copied == kept == jobs_in(self.template.place.state / DATABASE):
            found.wrong.append(f"the copy has {copied}, but the queue has {kept}")
        return found


def jobs_in(database: Path) -> list[tuple[int, str]]:
    """Return (number, state) of each job in the queue file `database`."""
    with closing(sqlite3.connect(database)) as opened:
        return opened.execute("SELECT id, state FROM job ORDER BY id").fetchall()


@dataclass(frozen=True)
class RestoreStory:
    """`zerotools restore` is killed while it restores an old copy. In this copy, jobs wait that
    have already ended.

    A daemon that starts afterwards must not run any of these jobs a second time. It may refuse to
    start until the copy is restored again.
    """

    template: Template
    jobs: Mapping[str, Wanted]
    name: str = "restore"

    def run(self, path: Path, injection: Injection | None) -> Found:
        """Run the story; see `Story.run`."""
        place = self.template.copied(path)
        place.acknowledged = {name: n for n, name in enumerate(self.jobs, 1)}
        victim = Victim("restore", [place.state, path / COPY], path, injection)
        victim.go()
        victim.wait(SECONDS)
        victim.end()
        found = Found(hit=victim.was_hit(), calls=counted(victim.trace))
        daemon = warm.start("daemon", place.options, path)
        if place.drive(self.jobs, daemon.is_running) == "":  # it refuses, and says why
            restore_queue(path / COPY, place.state, release=True)
        daemon.end()
        found.wrong += judge(place, self.jobs)
        return found


def copy_stories(directory: Path, tensors: Path) -> list[Story]:
    """Return all stories of this module. The files with which they begin are made in
    `directory`.
    """
    trained = Place(directory / "trained", tensors)
    run_all(trained, {"t": trained.training("t", 2)})
    first = Place(directory / "first", tensors)
    queue_up(first, migrating(first))
    as_first_schema(first)
    older = Place(directory / "older", tensors)
    both = {name: older.script(name, ONCE) for name in ("a", "b")}
    queue_up(older, both)
    back_up_queue(older.state, older.path / COPY)
    run_all(older, both)
    restored = Template(older).copied(directory / "restored")
    restore_queue(restored.path / COPY, restored.state, release=True)
    return [
        DaemonStory("prune", tensors, pruning, Template(trained).copied),
        DaemonStory("migrate", tensors, migrating, Template(first).copied),
        DaemonStory("start on a restored queue", tensors, twice, Template(restored).copied),
        BackupStory(Template(older)),
        RestoreStory(Template(older), both),
    ]


def pruning(place: Place) -> dict[str, Wanted]:
    """Return the job of the story "prune": it has finished, and is removed with its checkpoints."""
    return {"t": place.training("t", 2, GONE)}


def migrating(place: Place) -> dict[str, Wanted]:
    """Return the jobs of the story "migrate": a script that waits in the queue, and a training job
    after it.
    """
    return {"waits": place.script("waits", ONCE), "t": place.training("t", 1)}


def twice(place: Place) -> dict[str, Wanted]:
    """Return two jobs that wait in the copy of the queue, although they have already ended."""
    return {name: place.script(name, ONCE) for name in ("a", "b")}

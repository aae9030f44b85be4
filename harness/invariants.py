"""Checks rules that a daemon's state directory keeps at every moment, whatever process is killed.

`broken(state_dir, acknowledged)` reads the queue, the run directories and /proc, and returns a
sentence for each broken rule. It changes nothing, and works with or without a running daemon. The
queue is read as of one moment. A process or a checkpoint counts only if it exists before and after
that moment.

- Every acknowledged job exists once.
- At most one attempt of a job has not ended, and it is the newest attempt.
- A finished job has no process, and no attempt began after an attempt that finished.
- No process has an unknown token, or the token of an attempt that has ended.
- A GPU is leased to one attempt as a whole, or to several attempts in shares of its memory. Such an
  attempt has not ended, or has left a process.
- A job that waits for other jobs (`after`) began only when these jobs had ended as required.
- All jobs of an array exist, unless one of them was removed.
- The job file of each job exists.
- The events of a job lead to its current state, and each event begins in the state in which the
  previous one ended.
- A directory with the name of a checkpoint is complete: every file has the size and the digest in
  the manifest.

The machine can make jobs fail, so failed jobs break no rule. `failed(state_dir)` returns the failed
jobs with the reasons.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from zerotools.runs import find_job_checkpoints
from zerotools.runs.manifest import verify_manifest

TERMINAL = frozenset({"succeeded", "failed", "cancelled", "stopped"})
ACTIVE = frozenset({"launching", "running", "stopping", "pausing", "yielding", "held"})
_TOKEN = b"ZEROTOOLS_TOKEN="

Row = Mapping[str, Any]


def broken(state_dir: Path, acknowledged: Collection[int] = ()) -> list[str]:
    """Return a sentence for each broken rule.

    Raises:
        sqlite3.Error: the queue cannot be read.
    """
    processes, directories = list(_tokens()), list((state_dir / "jobs").glob("*/attempt-*"))
    with closing(sqlite3.connect(state_dir / "zerotools.db", isolation_level=None)) as database:
        database.row_factory = sqlite3.Row
        database.execute("BEGIN")
        jobs = {row["id"]: row for row in database.execute("SELECT * FROM job")}
        attempts = list(database.execute("SELECT * FROM attempt ORDER BY job_id, number"))
        leases = list(database.execute("SELECT * FROM lease"))
        named = "SELECT name FROM sqlite_master WHERE name = 'dependency'"
        known = database.execute(named).fetchone() is not None  # not in older queues
        after = list(database.execute("SELECT * FROM dependency")) if known else []
        events = list(database.execute("SELECT * FROM event ORDER BY seq"))
        texts = _texts(database)
    return [
        *(f"job {number} was acknowledged and is lost" for number in {*acknowledged} - {*jobs}),
        *_attempts(jobs, attempts),
        *_directories(directories, jobs, attempts),
        *_processes(state_dir, processes, attempts),
        *_leases(attempts, leases),
        *_events(jobs, events),
        *_dependencies(jobs, attempts, after),
        *_arrays(jobs, events),
        *_job_files(jobs.values(), texts),
        *_checkpoints(jobs.values()),
    ]


def failed(state_dir: Path) -> dict[int, str]:
    """Return the reasons of failed jobs, keyed by the number of the job."""
    with closing(sqlite3.connect(state_dir / "zerotools.db")) as database:
        return dict(database.execute("SELECT id, reason FROM job WHERE state = 'failed'"))


def unused_texts(state_dir: Path) -> set[int]:
    """Return the numbers of the stored job files that belong to no job.

    A daemon deletes such job files when it starts. A running daemon has some while it queues an
    array.
    """
    with closing(sqlite3.connect(state_dir / "zerotools.db")) as database:
        database.row_factory = sqlite3.Row
        used = database.execute("SELECT text_number FROM job WHERE text_number IS NOT NULL")
        return _texts(database) - {row["text_number"] for row in used}


def _texts(database: sqlite3.Connection) -> set[int]:
    known = database.execute("SELECT name FROM sqlite_master WHERE name = 'job_text'").fetchone()
    rows = () if known is None else database.execute("SELECT number FROM job_text")
    return {row["number"] for row in rows}


def _job_files(jobs: Collection[Row], texts: Collection[int]) -> Iterator[str]:
    for job in jobs:
        number = dict(job).get("text_number")  # not in older queues
        if number is not None and number not in texts:
            yield f"job {job['id']} has lost its job file {number}"


def _attempts(jobs: Mapping[int, Row], attempts: list[sqlite3.Row]) -> Iterator[str]:
    by_job: dict[int, list[sqlite3.Row]] = {}
    for row in attempts:
        by_job.setdefault(row["job_id"], []).append(row)
    for number, rows in by_job.items():
        if number not in jobs:
            yield f"job {number} does not exist, but has attempts"
            continue
        live = [row["number"] for row in rows if row["state"] != "ended"]
        if len(live) > 1 or (live and live[-1] != rows[-1]["number"]):
            yield f"job {number} has {len(live)} attempts that are not over: {live}"
        if live and jobs[number]["state"] not in ACTIVE:
            state = jobs[number]["state"]
            yield f"job {number} is {state}, and its attempt {live[-1]} is not over"
        if [row["number"] for row in rows] != list(range(1, len(rows) + 1)):
            yield f"attempts of job {number} are missing"
        for row in rows[:-1]:
            if _outcome(json.loads(row["result"] or "{}")) == "finished":
                yield f"job {number} ran again after attempt {row['number']} had finished"


def _outcome(record: object) -> object:
    return record.get("outcome") if isinstance(record, dict) else None


def _directories(
    found: Collection[Path], jobs: Mapping[int, Row], attempts: list[sqlite3.Row]
) -> Iterator[str]:
    known = {(row["job_id"], row["number"]) for row in attempts}
    for path in found:
        key = (int(path.parent.name), int(path.name.removeprefix("attempt-")))
        if key[0] in jobs and key not in known:
            yield f"the queue does not know {path}"
    by_key = {(row["job_id"], row["number"]): row for row in attempts}
    for (number, which), row in by_key.items():
        later = by_key.get((number, which + 1))
        try:
            record = json.loads((Path(row["run_dir"]) / "exit.json").read_bytes())
        except (OSError, ValueError):
            continue
        if later is not None and _outcome(record) == "finished":
            yield f"job {number} ran again after attempt {which} had finished"


Tagged = tuple[int, str, Path]
"""A process: its pid, the token of its attempt, its run directory."""


def _processes(
    state_dir: Path, processes: Collection[Tagged], attempts: list[sqlite3.Row]
) -> Iterator[str]:
    live = {row["token"] for row in attempts if row["state"] != "ended"}
    ours = {row["token"] for row in attempts}
    for process in processes:
        pid, token, directory = process
        over = token in ours - live or (token not in ours and directory.is_relative_to(state_dir))
        if over and _tagged(pid) == process:
            yield f"pid {pid} runs outside a live attempt, with the token {token}"


def _tokens() -> Iterator[Tagged]:
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and (found := _tagged(int(entry.name))) is not None:
            yield found


def _tagged(pid: int) -> Tagged | None:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    token = next((v for v in variables if v.startswith(_TOKEN)), None)
    run_dir = next((v for v in variables if v.startswith(b"ZEROTOOLS_RUN_DIR=")), b"=")
    if token is None:
        return None
    where = Path(os.fsdecode(run_dir.partition(b"=")[2]))
    return pid, token.partition(b"=")[2].decode("ascii", "replace"), where


def _leases(attempts: list[sqlite3.Row], leases: list[sqlite3.Row]) -> Iterator[str]:
    by_key = {(row["job_id"], row["number"]): row for row in attempts}
    for lease in leases:
        row = by_key.get((lease["job_id"], lease["attempt"]))
        if row is None:
            yield f"{lease['gpu_uuid']} is leased to an attempt that does not exist"
        elif row["state"] == "ended" and lease["held_by"] is None:
            yield f"{lease['gpu_uuid']} is leased to an attempt that is over"
    users: dict[str, tuple[int, int]] = {}
    leased: dict[str, list[tuple[int, int]]] = {}
    for lease in leases:
        leased.setdefault(lease["gpu_uuid"], []).append((lease["job_id"], lease["attempt"]))
        if lease["bytes"] is None and len(leased[lease["gpu_uuid"]]) > 1:
            yield f"{lease['gpu_uuid']} is leased as a whole, and also to other attempts"
    whole = {lease["gpu_uuid"] for lease in leases if lease["bytes"] is None}
    for key, row in by_key.items():
        for uuid in json.loads(row["gpu_uuids"]) if row["state"] != "ended" else ():
            if uuid in users and uuid in whole:
                yield f"{uuid} is used by attempts {users[uuid]} and {key} (job, number) at once"
            users[uuid] = key
            if key not in leased.get(uuid, ()):
                yield f"attempt {key[1]} of job {key[0]} uses {uuid} without a lease"


def _events(jobs: Mapping[int, Row], events: list[sqlite3.Row]) -> Iterator[str]:
    states: dict[int, str | None] = {}
    for event in events:
        number = event["job_id"]
        if number is None or event["to_state"] is None:
            continue
        before = states.get(number)
        if number in states and event["from_state"] != before:
            yield (
                f"event {event['seq']} moves job {number} from {event['from_state']}, and the one "
                f"before led to {before}"
            )
        states[number] = event["to_state"]
    for number, job in jobs.items():
        if states.get(number) != job["state"]:
            yield f"job {number} is {job['state']}; its events say {states.get(number)}"


def _arrays(jobs: Mapping[int, Row], events: list[sqlite3.Row]) -> Iterator[str]:
    if any(event["kind"] == "clean" for event in events):
        return
    found: dict[int, list[Row]] = {}
    for job in jobs.values():
        if "array_id" in job.keys() and job["array_id"] is not None:  # noqa: SIM118  # of sqlite3
            found.setdefault(job["array_id"], []).append(job)
    for number, members in found.items():
        known = sorted(job["array_index"] for job in members)
        if known != list(range(members[0]["array_size"])):
            yield f"array {number} of {members[0]['array_size']} jobs has those of index {known}"


def _dependencies(
    jobs: Mapping[int, Row], attempts: list[sqlite3.Row], after: list[sqlite3.Row]
) -> Iterator[str]:
    began: dict[int, float] = {}
    for row in attempts:
        began.setdefault(row["job_id"], row["started"] or 0.0)
    for row in after:
        number, other = row["job_id"], jobs.get(row["on_id"])
        if number not in began:
            continue
        state = row["ended"] if other is None else other["state"]
        if state not in TERMINAL or (row["condition"] == "ok" and state != "succeeded"):
            yield f"job {number} started after job {row['on_id']}, which is {state}"
        elif other is not None and 0.0 < began[number] < other["ended"]:
            yield f"job {number} started before job {row['on_id']} had ended"


def _checkpoints(jobs: Collection[Row]) -> Iterator[str]:
    for job in jobs:
        for directory in find_job_checkpoints.list_checkpoints(Path(job["output_dir"])):
            before = _inode(directory)
            for problem in verify_manifest(directory):
                if before is None or _inode(directory) != before:
                    break  # it is removed just now, which takes its name first
                yield f"job {job['id']} has a damaged checkpoint: {problem.message}"


def _inode(directory: Path) -> int | None:
    try:
        return directory.stat().st_ino
    except OSError:
        return None

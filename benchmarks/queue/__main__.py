"""The daemon under load.

    chrt -r 10 python -m benchmarks.queue [--jobs 10000] [--finished 100000] [--idle SECONDS]

Prints a table, and in the end what was asked of the daemon beside what was measured. Jobs are of
`engine = "script"`. One of them runs, and all others wait for it. It takes about four minutes.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measuring import machine
from benchmarks.queue import holds, loads
from benchmarks.queue.http_load import connect, send
from benchmarks.queue.passes import (
    cpu_job,
    gpu_job,
    measure_passes,
    mixed_job,
    shared_job,
)
from benchmarks.queue.report import Asked, line, megabytes, milliseconds, percent, seconds, show
from benchmarks.queue.running import (
    Daemon,
    children,
    daemon,
    eight_gpus,
    end_everything,
    held_together,
    resident,
    share,
    submit,
)

CLIENTS = 100
USERS = 20
"""Whose jobs wait, where several users share the GPUs."""


@dataclass
class Run:
    """One run of all measurements; the last figures are shown in the end."""

    jobs: int
    finished: int
    idle_seconds: float
    asked: Asked = field(default_factory=Asked)

    def all(self, work: Path) -> None:
        """Every measurement, in the order in which the queue grows."""
        state = work / "state"
        self.passes()
        with daemon(state) as one:
            line("start with an empty state", f"READY after {one.seconds_to_ready:.2f} s")
            self.idle(one, "empty", asked=False)
            self.load(one)
            self.idle(one, f"{self.jobs:,} queued")
            self.many_clients(one)
            self.events(one)
            loads.foreign_lock(one)
            self.idle(one, "after all of that")
        self.restart(state)
        end_everything(state)
        self.gpus(work)
        self.holds(work)
        self.asked.show()

    def passes(self) -> None:
        """The scheduler alone."""
        for name, make in (("CPU", cpu_job), ("GPU", gpu_job), ("shared GPU", shared_job)):
            found = measure_passes(make, self.jobs)
            line(f"a pass over {self.jobs:,} {name} jobs", found.text())
            most = max(found.after_a_change) / 1e3
            self.asked.below(
                f"a scheduling pass over {self.jobs:,} {name} jobs", 0.02, most, milliseconds
            )

        of_users = f"{self.jobs:,} GPU jobs of {USERS} users"
        mixed = f"{self.jobs:,} jobs of all kinds and {USERS} users, with who makes room"
        chained = f"{self.jobs:,} jobs of all kinds and {USERS} users, a fifth after others"
        for name, found in (
            (of_users, measure_passes(gpu_job, self.jobs, USERS)),
            (mixed, measure_passes(mixed_job, self.jobs, USERS, preempts=True)),
            (chained, measure_passes(mixed_job, self.jobs, USERS, dependent=self.jobs // 5)),
        ):
            line(f"a pass over {name}", found.text())
            most = max(found.after_a_change) / 1e3
            self.asked.below(f"a scheduling pass over {name}", 0.05, most, milliseconds)

    def load(self, one: Daemon) -> None:
        """Submits, the supervisor of the job that runs, and pages."""
        submitted = loads.submits(one, self.jobs)
        self.asked.note(
            "acknowledged submits over 16 connections",
            ">= 500 /s",
            f"{submitted.rate:.0f} /s",
            submitted.rate >= 500 and not submitted.errors,
        )
        self.supervisor(one)
        listed = loads.pages(one, self.jobs)
        self.asked.below(
            f"a page of 100 of {self.jobs:,} jobs (median)",
            0.05,
            listed.percentile(0.5),
            milliseconds,
        )

    def supervisor(self, one: Daemon) -> None:
        """Of the one job that runs; it sleeps."""
        record = one.attempt()
        pids = [record["pid"], record["keeper"]["pid"]]
        used, held = share(pids, self.idle_seconds), held_together(pids)
        alone = ", ".join(megabytes(resident(pid)) for pid in pids)
        line(
            "supervisor and keeper of a job that sleeps",
            f"{used:.3%} CPU, {megabytes(held)} together (resident: {alone})",
        )
        self.asked.below("supervisor and keeper: CPU", 0.002, used, percent)
        self.asked.below("supervisor and keeper: memory together", 15e6, held, megabytes)

    def idle(self, one: Daemon, name: str, *, asked: bool = True) -> None:
        """The daemon with nothing to do, and the processes that it keeps."""
        one.wait_until_quiet()
        others = children(one.pid)
        used, held = share([one.pid, *others], self.idle_seconds), resident(one.pid)
        line(
            f"idle daemon, {name}",
            f"{used:.3%} CPU, {megabytes(held)} resident; with its {len(others)} helpers "
            f"{megabytes(held_together([one.pid, *others]))}",
        )
        if asked:
            self.asked.below(f"idle daemon, {name}: CPU", 0.005, used, percent)
            self.asked.below(f"idle daemon, {name}: memory", 60e6, held, megabytes)

    def many_clients(self, one: Daemon) -> None:
        """1,000 at once."""
        found = loads.clients(one)
        self.asked.note("1,000 clients at once", "0 errors", str(found.errors), not found.errors)

    def events(self, one: Daemon) -> None:
        """What an event costs, heard by nobody and by 200 streams."""
        spent = loads.cancels(one, range(100, 130))
        line("a cancel and the pass after it", f"{spent * 1e3:.1f} ms of processor")
        loads.streams(one, range(130, 160))

    def restart(self, state: Path) -> None:
        """With many jobs that are over."""
        add_finished(state, self.finished)
        with daemon(state) as one:
            line(
                f"restart, {self.finished:,} over and {self.jobs:,} queued",
                f"READY after {one.seconds_to_ready:.2f} s, at rest {one.wait_until_quiet():.2f} s "
                f"later, {megabytes(resident(one.pid))}",
            )
            what = f"READY with {self.finished:,} over, {self.jobs:,} queued"
            self.asked.below(what, 2.0, one.seconds_to_ready, seconds)
            loads.pages(one, self.jobs)

    def holds(self, work: Path) -> None:
        """Each route with the largest body that it takes, while 100 clients ask for something."""
        holds.measure(self.asked, work / "holds", CLIENTS, [])
        holds.measure_list(self.asked, work / "large", CLIENTS, self.jobs)

    def gpus(self, work: Path) -> None:
        """A queue that waits for GPUs, which are looked at all the time."""
        seen = eight_gpus(work)
        if seen is None:
            line("GPU jobs", "not measured: there is no C compiler")
            return
        with daemon(work / "gpu-state", seen) as one:
            kinds = [{"gpus": 1 + kind % 8, "time_limit": f"{1 + kind}h"} for kind in range(50)]
            jobs = (submit(number, kinds[number % 50]) for number in range(self.jobs))
            show(f"submits of {self.jobs:,} GPU jobs", send(connect(one.socket, 16), jobs))
            self.idle(one, f"{self.jobs:,} GPU jobs wait")


def add_finished(state: Path, count: int) -> None:
    """`count` jobs that are over, with an attempt each and three events: copies of the queue's."""
    with sqlite3.connect(state / "zerotools.db") as database:
        database.execute("PRAGMA foreign_keys = OFF")
        numbers = (
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        )
        kept = "uid, spec, spec_given, spec_version"
        database.execute(
            f"{numbers} INSERT INTO job (name, output_dir, state, restarts_used, best_step,"
            f" created, started, ended, {kept}) SELECT 'old', '/nowhere', 'succeeded', 0, 0, 1, 2,"
            f" 3, {kept} FROM n, (SELECT * FROM job WHERE id = 50)"
        )
        database.execute(
            "INSERT INTO attempt (job_id, number, token, state, run_dir, gpu_uuids, started, ended,"
            " result) SELECT id, 1, 'token-' || id, 'ended', '/nowhere', '[]', 2, 3, '{}' FROM job"
            " WHERE name = 'old'"
        )
        for kind in ("submit", "admit", "finished"):
            database.execute(
                "INSERT INTO event (time, job_id, kind, to_state) SELECT 1, id, ?, 'succeeded'"
                " FROM job WHERE name = 'old'",
                (kind,),
            )
    database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--finished", type=int, default=100_000)
    parser.add_argument("--idle", type=float, default=15.0, help="seconds to look at what idles")
    options = parser.parse_args()
    print(f"{machine()}\n")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_DIR")) as work:
        Run(options.jobs, options.finished, options.idle).all(Path(work))
    print(f"\nall of it took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

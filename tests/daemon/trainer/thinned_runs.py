"""Jobs whose older checkpoints a real zerotoolsd thins while they train, and that are killed then.

    python -m tests.daemon.trainer.thinned_runs [--rounds 4] [--seed 1]

A round is a job of two ranks with `thin_after = 2`, `keep_last`, `keep_every` and `best`, and a
second one that waits, to resume from a checkpoint that would be thinned. While a checkpoint is
being thinned, the thinning process, the supervisor, the daemon or a rank gets SIGKILL. After each
kill every checkpoint must be whole, and the job must go on from the newest that was not thinned; in
the end the right ones are thinned, `queue` and `show` say what is true, the second job resumes, and
weights and optimizer are those of a job that nobody touched. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import zerotools
from tests.daemon.daemons import REAL, Daemon, daemon_in
from tests.daemon.trainer.killed_jobs import CONFIG, SECONDS, KilledJob, wide_job
from tests.daemon.waiting import wait_for
from zerotools.cli.commands.show import page
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.runs import find_job_checkpoints
from zerotools.runs.thinning_record import is_thinned, is_workspace

STEPS, EVERY, WHOLE, PINNED = 64, 4, 2, 8
KILLS = ("thinning", "supervisor", "daemon", "rank")
CHECKPOINT = {
    "every": EVERY,
    "thin_after": WHOLE,
    "keep_last": 4,
    "keep_every": PINNED,
    "best": "loss",
}


class Round(KilledJob):
    """One job, its kills, and what is asked of it afterwards."""

    def __init__(self, daemon: Daemon, place: Path, chance: random.Random) -> None:
        self.chance, self.waits = chance, True
        self.stage = chance.choice((1, 2, 3))
        super().__init__(daemon, wide_job(place, "thinned", self.stage, STEPS, CHECKPOINT))
        tree = self.tree
        self.pinned = self.output / find_job_checkpoints.directory_name(PINNED)
        self._wait(self.pinned.exists, "the checkpoint that is pinned")
        second = {**tree, "name": "next", "output_dir": str(place / "next")}
        second |= {"resume_from": str(self.pinned), "checkpoint": {}}
        second["train"] = {**tree["train"], "steps": PINNED + 2}
        self.second: int = daemon.client.submit(job_from_dict(second, source="job"))["id"]

    def _wait(self, holds: Callable[[], object], what: str) -> None:
        wait_for(holds, f"{what} of job {self.job}", SECONDS)

    def _pid_that_thins(self) -> int | None:
        """The process, once it is in the middle of a checkpoint."""
        if not any(is_workspace(path.name) for path in self.output.iterdir()):
            return None
        return self.pid_that_runs("children/thin.py", "")

    def kill(self, what: str) -> None:
        """SIGKILL while a checkpoint is thinned."""
        found: list[int] = []

        def is_there() -> bool:
            pid = self._pid_that_thins()
            found.extend([pid] if pid else [])
            return bool(found) or self.is_over()

        wait_for(is_there, "a checkpoint to be thinned", SECONDS)
        assert found, f"job {self.job} was over before it was thinning again"
        who = json.loads((self.directory / "run.json").read_text("utf-8"))
        if what == "daemon":
            self.daemon.kill()
        else:
            ranks = [rank["pid"] for rank in who.get("ranks", ())]
            pids = {"thinning": found[0], "supervisor": who["pid"]}
            with suppress(ProcessLookupError):
                os.kill(pids.get(what) or self.chance.choice(ranks), signal.SIGKILL)
        self.check()
        if what == "daemon":
            self.daemon.start()
        if what in ("supervisor", "rank"):
            self.attempt += 1
            self._goes_on()
        self.kills.append(what)

    def _goes_on(self) -> None:
        """From the newest that was not thinned, as it was when the attempt began."""

        self._wait(
            lambda: any(one.get("event") == "step" for one in self.told()), "another attempt"
        )
        (resumed,) = (one["step"] for one in self.told() if one.get("event") == "resumed")
        assert resumed > 0, "it began anew"
        path = self.output / find_job_checkpoints.directory_name(resumed)
        newer = [each for each in find_job_checkpoints.list_checkpoints(self.output) if each > path]
        late = [each.name for each in newer if not is_thinned(each) and not self._is_new(each)]
        assert late == [], f"it went on from {path.name}, and not from {late}"

    def _is_new(self, path: Path) -> bool:
        """Whether this attempt wrote it."""
        return path.stat().st_mtime >= (self.directory / "run.json").stat().st_ctime

    def check(self) -> None:
        """Every checkpoint is whole, thinned or not; the one that the second job needs is not."""
        if self.waits and self.daemon.process and self.daemon.process.poll() is None:
            self.waits = self.daemon.client.job(self.second)["state"] != "succeeded"
        assert not self.waits or not is_thinned(self.pinned), f"{self.pinned} was thinned"
        for path in find_job_checkpoints.list_checkpoints(self.output):
            try:
                find_job_checkpoints.verify_checkpoint_files(path)
                found = zerotools.verify(path).verdict
            except zerotools.ZerotoolsError:
                assert not path.exists() or is_thinned(path), f"{path} is damaged"  # exchanged now
                if path.exists():
                    find_job_checkpoints.verify_checkpoint_files(path)
                continue
            assert found != "faulty", f"{path} is {found}"

    def finish(self) -> None:
        """The end of both jobs, and what is left."""
        view = self.end()
        listed = find_job_checkpoints.list_checkpoints(self.output)
        best = find_job_checkpoints.hinted_checkpoint(self.output, find_job_checkpoints.BEST)
        may_be = {*listed[:WHOLE], best, self.pinned}
        wrong = [path.name for path in listed if not is_thinned(path) and path not in may_be]
        wrong += [path.name for path in may_be - {self.pinned} if path and is_thinned(path)]
        log = (self.directory / "thinning.log").read_text()
        assert wrong == [], f"{wrong} of {[p.name for p in listed]}: {log}"
        assert [p.name for p in self.output.iterdir() if is_workspace(p.name)] == []
        self.check()
        shown = "\n".join(page(view, None))
        assert f"step {STEPS}: verified" in shown, shown
        assert self.daemon.client.job(self.job)["latest_checkpoint"]["path"] == str(listed[0])
        assert self.end(self.second)["attempts"][-1]["steps_done"] == PINNED + 2

    def line(self) -> str:
        names = [path.name for path in find_job_checkpoints.list_checkpoints(self.output)]
        thinned = sum(is_thinned(self.output / name) for name in names)
        return f"| {self.stage} | {', '.join(self.kills)} | {len(names)} | {thinned} |"


HEADING = f"""# Jobs that are thinned and killed

`python -m tests.daemon.trainer.thinned_runs`: a real zerotoolsd, 2 ranks, {STEPS} steps, a
checkpoint every {EVERY}, `thin_after = {WHOLE}`, `keep_last`, `keep_every`, `best`, and a queued
job that resumes from step {PINNED}. SIGKILL while a checkpoint is thinned. After each kill `verify`
finds every checkpoint whole, and the job goes on from the newest that is not thinned; in the end
the queued job has resumed, and weights and optimizer are those of a job that nobody touched.

| stage | killed, in this order | checkpoints left | of which thinned |
|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    print(HEADING, flush=True)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        with daemon_in(place / "state", CONFIG, REAL) as daemon:
            daemon.start()
            for number in range(asked.rounds):
                one = Round(daemon, place / str(number), chance)
                for what in chance.sample(KILLS, len(KILLS)):
                    one.kill(what)
                one.finish()
                one.compare(place / f"{number}-alone", STEPS)
                print(one.line(), flush=True)


if __name__ == "__main__":
    main()

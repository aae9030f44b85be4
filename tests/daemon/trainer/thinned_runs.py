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
from typing import Any

import zerotools
from harness.launching import job
from tests.daemon.daemons import REAL, Daemon, daemon_in
from tests.daemon.trainer.tensors import digest
from tests.daemon.waiting import wait_for
from zerotools.cli.commands.show import page
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.runs import checkpoint_dirs
from zerotools.runs.thinned import is_thinned, is_workspace

CONFIG = """
[limits]
cpu_ranks = 2
[stop]
grace_seconds = 60.0
[retry]
first_seconds = 0.05
"""
SECONDS = 300.0
STEPS, EVERY, WHOLE, PINNED = 64, 4, 2, 8
KILLS = ("thinning", "supervisor", "daemon", "rank")
CHECKPOINT = {
    "every": EVERY,
    "thin_after": WHOLE,
    "keep_last": 4,
    "keep_every": PINNED,
    "best": "loss",
}
WIDE = {"hidden_size": 256, "intermediate_size": 1024}
"""So that thinning a checkpoint takes long enough to be met."""


class Round:
    """One job, its kills, and what is asked of it afterwards."""

    def __init__(self, daemon: Daemon, place: Path, chance: random.Random) -> None:
        self.daemon, self.output, self.chance = daemon, place / "out", chance
        self.stage = chance.choice((1, 2, 3))
        place.mkdir()
        (place / "text").write_text("one sheep, two sheep, and a black one\n" * 200)
        tree = job(
            place / "text",
            ranks=2,
            zero={"stage": self.stage},
            train={"steps": STEPS},
            checkpoint=CHECKPOINT,
        )
        tree["model"] = {"config": {**tree["model"]["config"], **WIDE}}
        tree |= {"output_dir": str(self.output), "name": "thinned"}
        self.tree = tree
        self.kills: list[str] = []
        self.attempt, self.waits = 1, True
        self.job: int = daemon.client.submit(job_from_dict(tree, source="job"))["id"]
        self.pinned = self.output / checkpoint_dirs.directory_name(PINNED)
        self._wait(self.pinned.exists, "the checkpoint that is pinned")
        second = {**tree, "name": "next", "output_dir": str(place / "next")}
        second |= {"resume_from": str(self.pinned), "checkpoint": {}}
        second["train"] = {**tree["train"], "steps": PINNED + 2}
        self.second: int = daemon.client.submit(job_from_dict(second, source="job"))["id"]

    @property
    def directory(self) -> Path:
        return self.daemon.run_dir(self.job, self.attempt)

    def _wait(self, holds: Callable[[], object], what: str) -> None:
        wait_for(holds, f"{what} of job {self.job}", SECONDS)

    def _is_over(self) -> bool:
        return self.daemon.client.job(self.job)["state"] in ("succeeded", "failed", "cancelled")

    def _pid_that_thins(self) -> int | None:
        """The process, once it is in the middle of a checkpoint."""
        if not any(is_workspace(path.name) for path in self.output.iterdir()):
            return None
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
                if b"zerotoolsd/thinning.py\0" in command and str(self.output).encode() in command:
                    return int(entry.name)
        return None

    def kill(self, what: str) -> None:
        """SIGKILL while a checkpoint is thinned."""
        found: list[int] = []

        def is_there() -> bool:
            pid = self._pid_that_thins()
            found.extend([pid] if pid else [])
            return bool(found) or self._is_over()

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

        def told() -> list[dict[str, Any]]:
            path = self.directory / "progress.jsonl"
            lines = path.read_text("utf-8").splitlines(True) if path.exists() else []
            return [json.loads(line) for line in lines if line.endswith("\n")]

        self._wait(lambda: any(one.get("event") == "step" for one in told()), "another attempt")
        (resumed,) = (one["step"] for one in told() if one.get("event") == "resumed")
        assert resumed > 0, "it began anew"
        path = self.output / checkpoint_dirs.directory_name(resumed)
        newer = [each for each in checkpoint_dirs.listing(self.output) if each > path]
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
        for path in checkpoint_dirs.listing(self.output):
            try:
                checkpoint_dirs.check(path)
                found = zerotools.verify(path).verdict
            except zerotools.ZerotoolsError:
                assert not path.exists() or is_thinned(path), f"{path} is damaged"  # exchanged now
                if path.exists():
                    checkpoint_dirs.check(path)
                continue
            assert found != "faulty", f"{path} is {found}"

    def finish(self) -> None:
        """The end of both jobs, and what is left."""
        view = self._end(self.job)
        listed = checkpoint_dirs.listing(self.output)
        best = checkpoint_dirs.hinted(self.output, checkpoint_dirs.BEST)
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
        assert self._end(self.second)["attempts"][-1]["steps_done"] == PINNED + 2

    def _end(self, number: int) -> dict[str, Any]:
        """The job, once it has succeeded."""

        def is_over() -> bool:
            view = self.daemon.client.job(number)
            assert view["state"] not in ("failed", "held", "cancelled"), view["reason"]
            return bool(view["state"] == "succeeded")

        wait_for(is_over, f"the end of job {number}", SECONDS)
        return self.daemon.client.job(number)

    def compare(self, place: Path) -> None:
        """With a job that nobody touched."""
        alone = {**self.tree, "output_dir": str(place), "checkpoint": {}}
        self._end(self.daemon.client.submit(job_from_dict(alone, source="job"))["id"])
        last = checkpoint_dirs.directory_name(STEPS)
        assert digest(self.output / last) == digest(place / last)

    def line(self) -> str:
        names = [path.name for path in checkpoint_dirs.listing(self.output)]
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
                one.compare(place / f"{number}-alone")
                print(one.line(), flush=True)


if __name__ == "__main__":
    main()

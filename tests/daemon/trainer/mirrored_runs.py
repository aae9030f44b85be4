"""Jobs whose checkpoints a real zerotoolsd copies to a store while they train, and that are killed.

    python -m tests.daemon.trainer.mirrored_runs [--rounds 4] [--seed 1]

A round is a job of two ranks with `upload_to`, `upload_keep_last`, `keep_every` and `best`, and a
store on loopback that answers slowly, so that checkpoints are left out. While one is sent, what
sends it, the supervisor, the daemon or a rank gets SIGKILL; once the whole output directory is lost
with them, as a disk is. After each kill every copy that readers take for whole is so, byte for
byte, and the job goes on from the newest of disk and store; in the end the right copies are there,
the last is the last of the disk, and weights and optimizer are those of a job that nobody touched.
Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.stores.faults import FaultProxy
from harness.stores.gcs import GcsServer, client_env
from harness.stores.trouble import Wait
from tests.daemon.daemons import REAL, Daemon, daemon_in
from tests.daemon.trainer.killed_jobs import CONFIG, SECONDS, KilledJob, wide_job
from tests.daemon.trainer.tensors import digest
from tests.daemon.waiting import wait_for
from zerotools.core.errors import BadFile, ZerotoolsError
from zerotools.io.output.store_write_record import WRITING
from zerotools.io.stores.parse_url import path_of
from zerotools.io.stores.store_path import StorePath
from zerotools.ops.mirroring.fetch_copy import fetch_copy
from zerotools.ops.mirroring.list_and_remove_copies import refuse_part
from zerotools.runs import find_job_checkpoints

STEPS, EVERY, PINNED, KEPT = 96, 4, 16, 2
KILLS = ("uploading", "supervisor", "daemon", "rank", "disk")
CHECKPOINT = {"every": EVERY, "keep_last": 2, "keep_every": PINNED, "best": "loss"}
ANSWERS_AFTER = 0.05
"""Seconds."""


class Round(KilledJob):
    """One job, its kills, and what is asked of it afterwards."""

    def __init__(
        self,
        daemon: Daemon,
        store: GcsServer,
        env: dict[str, str],
        place: Path,
        number: int,
        chance: random.Random,
    ) -> None:
        self.chance, self.store, self.key = chance, store, f"run-{number}"
        far = path_of(f"gs://checkpoints/{self.key}")
        assert isinstance(far, StorePath)
        self.far = far
        self.stage = chance.choice((1, 2, 3))
        mirrored = {**CHECKPOINT, "upload_to": str(far), "upload_keep_last": KEPT}
        tree = wide_job(place, "mirrored", self.stage, STEPS, mirrored)
        super().__init__(daemon, tree | {"env": env})
        self.resumed: list[int] = []

    def _pid_that_sends(self) -> int | None:
        """The process, once it is in the middle of a checkpoint."""
        if not any(name.endswith(WRITING) for name in self.store.sizes(f"{self.key}/")):
            return None
        return self.pid_that_runs("children/mirror.py", "upload")

    def kill(self, what: str) -> None:
        """SIGKILL while a checkpoint is sent; for "disk" only when one has been sent."""
        found: list[int] = []

        def is_there() -> bool:
            pid = self._pid_that_sends()
            if what == "disk" and not self._whole():
                return self.is_over()
            found.extend([pid] if pid else [])
            return bool(found) or self.is_over()

        wait_for(is_there, "a checkpoint to be sent", SECONDS)
        assert found, f"job {self.job} was over before it was sending again"
        who = json.loads((self.directory / "run.json").read_text("utf-8"))
        if what == "daemon":
            self.daemon.kill()
        else:
            ranks = [rank["pid"] for rank in who.get("ranks", ())]
            pids = {"uploading": found[0], "supervisor": who["pid"], "disk": who["pid"]}
            with suppress(ProcessLookupError):
                os.kill(pids.get(what) or self.chance.choice(ranks), signal.SIGKILL)
        if what == "disk":
            self._lose_disk(who)
        self.check()
        if what == "daemon":
            self.daemon.start()
        if what in ("supervisor", "rank", "disk"):
            self.attempt += 1
            self._goes_on(fetched=what == "disk")
        self.kills.append(what)

    def _lose_disk(self, who: dict[str, Any]) -> None:
        """What the job had on the disk goes; whoever still writes there is killed first."""
        for rank in who.get("ranks", ()):
            with suppress(ProcessLookupError):
                os.kill(rank["pid"], signal.SIGKILL)
        shutil.rmtree(self.output, ignore_errors=True)

    def _goes_on(self, *, fetched: bool) -> None:
        def trains() -> bool:
            view = self.daemon.client.job(self.job)
            assert view["state"] not in ("failed", "held"), view["reason"]
            return any(one.get("event") == "step" for one in self.told())

        wait_for(trains, f"attempt {self.attempt} of job {self.job}", SECONDS)
        told = self.told()
        if fetched:
            assert any(one.get("event") == "fetched" for one in told), "nothing was fetched"
        resumed = [one["step"] for one in told if one.get("event") == "resumed"]
        assert resumed or not self.kills, "it began anew"
        self.resumed.extend(resumed)

    def _whole(self) -> list[StorePath]:
        """The copies that readers take for whole."""
        self.far.forget()
        found = []
        for path in find_job_checkpoints.list_checkpoints(self.far):
            with suppress(BadFile):
                find_job_checkpoints.check_and_explain(path, digests=False, structure=refuse_part)
                found.append(path)
        return [path for path in found if isinstance(path, StorePath)]

    def check(self) -> None:
        """Every one of them is what its manifest says."""
        for path in self._whole():
            with tempfile.TemporaryDirectory() as here:
                try:
                    fetch_copy(path, Path(here) / path.name)
                except (ZerotoolsError, FileNotFoundError):
                    assert path not in self._whole(), f"{path} is damaged"  # it is removed now
                    continue
                find_job_checkpoints.verify_checkpoint_files(Path(here) / path.name)

    def finish(self) -> None:
        """The end of the job, and what is left."""
        assert self.end()["reason"] is None
        self.check()
        copies, listed = self._whole(), find_job_checkpoints.list_checkpoints(self.output)
        steps = [find_job_checkpoints.step_of(path.name) or 0 for path in copies]
        best = find_job_checkpoints.hinted_checkpoint(self.far, find_job_checkpoints.BEST)
        assert copies[0].name == listed[0].name
        extra = [s for s in steps[KEPT:] if s % PINNED]
        assert extra in ([], [find_job_checkpoints.step_of(best.name) if best else None])
        left = [name for name in self.store.sizes(f"{self.key}/") if name.endswith(WRITING)]
        assert left == [], left
        with tempfile.TemporaryDirectory() as here:
            fetch_copy(copies[0], Path(here) / "last")
            assert digest(Path(here) / "last") == digest(listed[0])

    def line(self) -> str:
        sent = sum(
            one.get("event") == "uploaded"
            for number in range(1, self.attempt + 1)
            for one in self.told(number)
        )
        steps = ", ".join(map(str, self.resumed))
        return f"| {self.stage} | {', '.join(self.kills)} | {steps} | {sent} of {STEPS // EVERY} |"


HEADING = f"""# Jobs that are copied to a store and killed

`python -m tests.daemon.trainer.mirrored_runs`: a real zerotoolsd, 2 ranks, {STEPS} steps, a
checkpoint every {EVERY}, `upload_to` a store on loopback that takes {1000 * ANSWERS_AFTER:.0f} ms
longer for each answer, `upload_keep_last = {KEPT}`, `keep_every`, `best`. SIGKILL while a
checkpoint is sent; "disk": the output directory is deleted, too. After each kill every copy that
readers take for whole is so, byte for byte. In the end the last copy is the last checkpoint, and
weights and optimizer are those of a job that nobody touched.

| stage | killed, in this order | went on from step | checkpoints sent |
|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    print(HEADING, flush=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        GcsServer() as store,
        FaultProxy(store.url) as proxy,
    ):
        proxy.add(Wait(ANSWERS_AFTER))
        os.environ.update(store.env)
        place = Path(directory)
        with daemon_in(place / "state", CONFIG, REAL) as daemon:
            daemon.start()
            for number in range(asked.rounds):
                one = Round(
                    daemon, store, client_env(proxy.url), place / str(number), number, chance
                )
                for what in chance.sample(KILLS, len(KILLS)):
                    one.kill(what)
                one.finish()
                one.compare(place / f"{number}-alone", STEPS)
                print(one.line(), flush=True)


if __name__ == "__main__":
    main()

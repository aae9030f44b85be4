"""A job under Slurm copies its checkpoints to an object store, and a second job resumes from there.

    python -m harness.slurm.stored

Two nodes of a private cluster train 2 x 2 ranks, and copy each checkpoint to a store on loopback.
In the meantime, a rank gets SIGKILL. Then all files on the disk are deleted. A second job resumes
from the store on one node, and does twice as many steps. Its losses must be those of an
uninterrupted job within 0.2 %, because other numbers of ranks round sums differently.

Needs root, Debian's packages (`./scripts/slurm`) and the extra `remote`.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.launching import job
from harness.slurm.__main__ import EVERY, MEMORY, Rounds, _losses, _pid_of, wait_for
from harness.slurm.cluster import SlurmCluster
from harness.stores.gcs import GcsServer
from zerotools.jobs.slurm.job_directory import JobDirectory

STEPS = 40


class StoredRounds(Rounds):
    """Runs jobs that copy their checkpoints to a directory in a store."""

    def named(self, name: str, steps: int, **changes: Any) -> tuple[JobDirectory, str, Path]:
        """Submit the job `name` of `steps` steps. `changes` are further keys of the job file.

        Returns (its job directory, Slurm's job id, its output directory).
        """
        output = self._directory / name
        tree = job(self._text, ranks=2, train={"steps": steps}, checkpoint={"every": EVERY})
        return *self.submitted({**tree, "output_dir": str(output), **changes}), output

    def run(self, store: GcsServer) -> None:
        two = {"nodes": 2, "options": MEMORY}
        one = {"nodes": 1, "options": MEMORY}
        saving = {"every": EVERY, "upload_to": "gs://checkpoints/run"}
        env = dict(store.env)
        whole, number, undisturbed = self.named("undisturbed", 2 * STEPS, slurm=two)
        self.ended(whole, number)
        wanted = _losses(undisturbed)
        first, number, output = self.named("first", STEPS, slurm=two, checkpoint=saving, env=env)
        wait_for(lambda: self._is_at(STEPS // 2 + 2, first, number), "the step")
        pid = _pid_of("rank", first)
        assert pid is not None, "no rank runs that could be killed"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        attempts = len(self.ended(first, number)["attempts"])
        losses = _losses(output)
        shutil.rmtree(output)
        second, number, output = self.named(
            "second",
            2 * STEPS,
            slurm=one,
            checkpoint=saving,
            env=env,
            resume_from="gs://checkpoints/run",
        )
        self.ended(second, number)
        losses |= _losses(output)
        worst = max(abs(losses[step] - loss) / loss for step, loss in wanted.items())
        copies = sorted({name.split("/")[1] for name in store.sizes("run/step-")})
        print(f"attempts {attempts}; copies {', '.join(copies)}; losses within {worst:.1e}")
        assert worst < 2e-3
        assert copies[-1] == f"step-{2 * STEPS:08d}"


def main() -> int:
    """Run the command; return 0 if all checks passed."""
    with (
        tempfile.TemporaryDirectory(prefix="zerotools-") as name,
        GcsServer() as store,
        SlurmCluster(Path(name) / "cluster") as cluster,
    ):
        StoredRounds(cluster, Path(name), STEPS).run(store)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Trains the job of `./scripts/demo` on a cluster: preempted, queued again, and ended on one node.

    python -m harness.slurm.demo_job

First, two nodes of a private cluster train the job with 2 x 2 ranks to its 60 steps, without
interruption. Then the same job file is submitted again. At a third of the steps, a job of higher
priority takes the nodes. At two thirds, an administrator requeues the job with one node. The losses
of all steps must be equal within 0.2 %, because other numbers of ranks round sums differently.
Finally, a second job continues from the checkpoint on three nodes.

Needs root and Debian's packages (`./scripts/slurm`).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from harness.slurm.__main__ import MEMORY, NODES, Rounds, _losses, wait_for
from harness.slurm.cluster import SlurmCluster
from zerotools.jobs.slurm.job_directory import JobDirectory
from zerotools.runs import find_job_checkpoints

DEMO = Path(__file__).resolve().parents[2] / "scripts" / "demo"
STEPS = 60
NEAR = 2e-3
DEVICE = 'device = "cpu"\nranks = 2'


class DemoRounds(Rounds):
    """Trains the job of the demo under several names."""

    def named(
        self, name: str, nodes: tuple[int, int], steps: int, further: str = ""
    ) -> tuple[JobDirectory, str, Path]:
        """Submit the job `name` of `steps` steps. It may use from `nodes[0]` to `nodes[1]` nodes.

        Returns (its job directory, Slurm's job id, its output directory). `further` is an
        additional line of the job file, or empty.
        """
        tree = _demo_job(self._directory, name, steps, further)
        output = self._directory / name
        slurm = {"nodes": nodes[0], "max_nodes": nodes[1], "options": MEMORY}
        return *self.submitted({**tree, "output_dir": str(output), "slurm": slurm}), output

    def run(self) -> None:
        """Run the rounds.

        Raises:
            AssertionError: a check failed.
        """
        whole, number, undisturbed = self.named("undisturbed", (NODES, NODES), STEPS)
        self.ended(whole, number)
        directory, number, output = self.named("first", (1, NODES), STEPS)
        for target, step in (("preempted", STEPS // 3), ("requeued", 2 * STEPS // 3)):
            self._strike_at(target, step, directory, number)
        attempts = len(self.ended(directory, number)["attempts"])
        checkpoint = output / find_job_checkpoints.directory_name(STEPS)
        find_job_checkpoints.verify_checkpoint_files(checkpoint)
        worst = _worst(_losses(undisturbed), _losses(output))
        more = f'resume_from = "{checkpoint}"'
        second, number, further = self.named("second", (3, 3), STEPS + 20, more)
        self.ended(second, number)
        steps = sorted(_losses(further))
        print(
            f"attempts {attempts}; losses within {worst:.1e}; then on three nodes steps "
            f"{steps[0]} to {steps[-1]}"
        )
        assert attempts >= 3
        assert worst < NEAR
        assert steps == list(range(STEPS + 1, STEPS + 21))

    def _strike_at(self, target: str, step: int, directory: JobDirectory, number: str) -> None:
        wait_for(lambda: self._is_at(step, directory, number), f"step {step}")
        self._strike(target, directory, number)
        self._urged(directory.path.name)


def _demo_job(directory: Path, name: str, steps: int, further: str) -> dict[str, Any]:
    """Return the job file that the function in `scripts/demo` writes."""
    text = DEMO.read_text("utf-8")
    begin = text.index("job_file() {")
    function = text[begin : text.index("\n}\n", begin) + 3]
    command = f'work=$1; shift\n{function}\njob_file "$@"'
    arguments = [str(directory), name, DEVICE, str(steps), further]
    python = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    subprocess.run(["bash", "-euc", command, "demo", *arguments], check=True, env=python)
    return tomllib.loads((directory / f"{name}.toml").read_text("utf-8"))


def _worst(wanted: dict[int, float], found: dict[int, float]) -> float:
    assert found.keys() == wanted.keys(), f"steps {sorted(wanted.keys() ^ found.keys())}"
    return max(abs(found[step] - loss) / loss for step, loss in wanted.items())


def main() -> int:
    """Run the command; return 0 if all checks passed."""
    with (
        tempfile.TemporaryDirectory(prefix="zerotools-") as name,
        SlurmCluster(Path(name) / "cluster") as cluster,
    ):
        DemoRounds(cluster, Path(name), STEPS).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

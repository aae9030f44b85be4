"""`--part-from slurm` under a real Slurm: a job step, a job array, and a task that was killed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.slurm.cluster import SlurmCluster, why_not
from tests.daemon.waiting import wait_for
from tests.golden_files import DEEPSPEED
from tests.ops.serving.test_byte_source import written

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
ZERO3 = DEEPSPEED / "z3-bf16-w2" / "checkpoint"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as found:
        yield found


def command(out: Path) -> list[str]:
    program = [sys.executable, "-m", "zerotools", "consolidate", str(ZERO3), str(out)]
    return [*program, "--part-from", "slurm", "--max-shard-size", "300"]


def files_of(out: Path) -> dict[str, bytes]:
    return {
        each.name: each.read_bytes()
        for each in out.iterdir()
        if not each.name.startswith(".zerotools")
    }


def expected(directory: Path) -> dict[str, bytes]:
    found = written(ZERO3, directory / "alone", max_shard_bytes=300)
    assert len(found) > 3
    return found


def test_the_tasks_of_a_step_are_the_parts(cluster: SlurmCluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = cluster.run(["srun", "-N3", "-n3", "--mem=200", "--mpi=none", *command(out)])
    assert done.returncode == 0, done.stderr
    assert "all other parts are complete too, and" in done.stdout
    assert files_of(out) == expected(tmp_path)


def test_the_tasks_of_an_array_are_the_parts(cluster: SlurmCluster, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log-%a"
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\nexec {' '.join(command(out))}\n")
    options = ("--array=3-9:3", "--mem=200", f"--output={log}", "--wait")
    done = cluster.run(["sbatch", *options, str(script)])
    said = [each.read_text() for each in sorted(tmp_path.glob("log-*"))]
    assert done.returncode == 0, (done.stderr, said)
    assert len(said) == 3
    assert files_of(out) == expected(tmp_path)


def test_a_part_that_was_cancelled_goes_on_where_it_was(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    script = tmp_path / "job.sh"
    lost = "test $SLURM_ARRAY_TASK_ID = 2 && exec sleep 600"
    script.write_text(f"#!/bin/sh\n{lost}\nexec {' '.join(command(out))}\n")
    options = ("--parsable", "--mem=200", f"--output={tmp_path}/log-%a")
    job = cluster.run(["sbatch", "--array=1-3", *options, str(script)]).stdout.strip()

    def left() -> list[str]:
        found: str = cluster.run(["squeue", "-h", "-j", job, "-r", "-o", "%K"]).stdout
        return found.split()

    wait_for(lambda: left() == ["2"], "two of three tasks to end")
    assert not out.exists()
    cluster.run(["scancel", f"{job}_2"])
    again = [each for each in command(out) if each not in ("--part-from", "slurm")]
    done = cluster.run(["srun", "-n1", "--mem=200", "--mpi=none", *again, "--part", "2/3"])
    assert done.returncode == 0, done.stderr
    assert files_of(out) == expected(tmp_path)

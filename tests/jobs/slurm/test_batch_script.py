from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

from tests.jobs.tables.test_slurm import job
from zerotools.jobs.slurm.batch_script import batch_script, options_of
from zerotools.jobs.tables.spec import JobSpec

HERE = Path("/shared/jobs/my job")


def options(spec: JobSpec) -> dict[str, str]:
    found = {}
    for each in options_of(spec, HERE, 3, "abc"):
        name, _, value = shlex.split(each)[0].partition("=")
        found[name] = value
    return found


def test_the_keys_of_the_table_are_options_of_sbatch() -> None:
    slurm: dict[str, Any] = {
        "partition": "a,b",
        "account": "lab",
        "qos": "high",
        "constraint": "a100&nvme",
        "nodes": 1,
        "max_nodes": 2,
        "time": "150s",
        "memory": "10G",
        "options": ["--exclude=n7"],
    }
    found = options(job(slurm, name="über job"))
    assert found["--partition"] == "a,b"
    assert found["--constraint"] == "a100&nvme"
    assert (found["--nodes"], found["--time"], found["--mem"]) == ("1-2", "3", "10G")
    assert (found["--signal"], found["--exclude"]) == ("B:TERM@120", "n7")
    assert found["--job-name"] == "_ber_job"
    assert found["--comment"] == "zerotools:abc"
    assert found["--output"] == "/shared/jobs/my job/submissions/3/slurm.log"
    assert "--requeue" in found
    assert "--gres" not in found
    assert found["--cpus-per-task"] == "2"


def test_gpus_are_those_of_each_node() -> None:
    spec = job({"gpu_type": "h100", "cpus_per_rank": 4}, device="cuda", ranks=None, gpus=8)
    found = options(spec)
    assert (found["--gres"], found["--cpus-per-task"]) == ("gpu:h100:8", "32")
    assert "--cpus-per-task" not in options(job({}, device="cuda", ranks=None, gpus=8))


def test_the_time_is_by_default_that_of_the_job_and_the_warning() -> None:
    assert options(job({}, time_limit="1h"))["--time"] == "62"
    assert "--time" not in options(job({}))


def test_a_job_that_may_not_be_queued_again() -> None:
    found = options(job({"requeue": False}))
    assert "--no-requeue" in found
    assert "--requeue" not in found


def test_a_directory_that_a_node_does_not_see_is_said(tmp_path: Path) -> None:
    place = tmp_path / 'a "b" $HOME `id`'
    text = batch_script(job({}), place, 1, "abc", "/usr/bin/python3", "/usr/bin:/bin")
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert f"does not see {place}; set ZEROTOOLS_SLURM_DIR" in done.stderr
    place.mkdir()
    (place / "job.json").write_text("{}")
    text = batch_script(job({}), place, 1, "abc", "/nowhere/python", "/usr/bin:/bin")
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert "does not have /nowhere/python" in done.stderr

"""F72: the answer of sbatch is lost, and nothing is submitted twice or forgotten."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.waiting import wait_for
from tests.jobs.jobfile_tables.test_slurm import job
from tests.jobs.slurm.fake_programs import calls, programs
from zerotools.core.errors import BadRequest, SlurmUnreachable
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.slurm import submit_to_slurm
from zerotools.jobs.slurm.claim_output_directory import CLAIMS
from zerotools.jobs.slurm.job_directory import END, JobDirectory, job_directories, write_record
from zerotools.jobs.slurm.slurm_commands import ControllerJob
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs
from zerotools.jobs.slurm.submit_to_slurm import (
    batch_script,
    find_number,
    options_of,
    own_of,
    submit_again,
    submit_job,
)

LOST = "cat > /dev/null; echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1"
SILENT = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"
KNOWS_IT = r"""
for each in $(grep -ho 'zerotools:[0-9a-f]*' HOME/*/submissions/*/batch.sh 2>/dev/null); do
    printf '4711\tPENDING\tPriority\t%s\t1\t\tjob\n' $each
done
"""


HERE = Path("/shared/jobs/my job")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit_to_slurm, "LOOK_AGAIN_SECONDS", 0.0)


def test_a_job_whose_answer_was_lost_is_found_by_its_token(tmp_path: Path) -> None:
    home = tmp_path / "home"
    commands = programs(tmp_path, sbatch=LOST, squeue=KNOWS_IT.replace("HOME", str(home)))
    directory, number = submit_job(commands, home, job({}))
    assert number == "4711"
    assert directory.submission(1) == {**(directory.submission(1) or {}), "job_id": "4711"}
    assert len(calls(tmp_path, "sbatch")) == 1


def test_a_job_that_the_controller_never_got_leaves_nothing(tmp_path: Path) -> None:
    commands = programs(tmp_path, sbatch=LOST, squeue="exit 0")
    with pytest.raises(SlurmUnreachable, match="the job was not queued"):
        submit_job(commands, tmp_path / "home", job({}))
    assert job_directories(tmp_path / "home") == []


def test_where_nobody_can_be_asked_it_stays_open_and_is_found_later(tmp_path: Path) -> None:
    home = tmp_path / "home"
    commands = programs(tmp_path, sbatch=LOST, squeue=SILENT)
    directory, number = submit_job(commands, home, job({}))
    assert number is None
    view = SlurmJobs(commands, home).job(directory.path.name)
    assert view["state"] == "queued"
    assert "does not answer" in view["reason"]
    commands = programs(tmp_path, sbatch=LOST, squeue=KNOWS_IT.replace("HOME", str(home)))
    assert find_number(commands, directory, 1) == "4711"
    assert len(calls(tmp_path, "sbatch")) == 1


def test_the_same_key_submits_once(tmp_path: Path) -> None:
    commands, home = programs(tmp_path), tmp_path / "home"
    first = submit_job(commands, home, job({}), key="mine")
    assert submit_job(commands, home, job({}), key="mine") == first
    assert len(calls(tmp_path, "sbatch")) == 1


def test_keys_that_read_alike_in_a_path_are_two(tmp_path: Path) -> None:
    commands, home = programs(tmp_path), tmp_path / "home"
    found = [
        submit_job(commands, home, job({}), key=key)[0].path
        for key in ("a/b", "a_b", "x" * 70 + "1", "x" * 70 + "2", "a/b")
    ]
    assert len(set(found)) == 4
    assert found[0] == found[4]


def test_who_loses_a_race_for_a_key_leaves_the_job_of_the_other(tmp_path: Path) -> None:
    commands, home = programs(tmp_path), tmp_path / "home"
    directory, _ = submit_job(commands, home, job({}), key="mine")
    both = [[], *[[1]] * 9]  # the other makes its submission just after this one has looked

    class Late(JobDirectory):
        def submissions(self) -> list[int]:
            return both.pop(0)

        def new_submission(self, token: str, after: int | None = None) -> int:
            raise FileExistsError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submit_to_slurm, "new_job_directory", lambda *_: Late(directory.path))
        assert submit_job(commands, home, job({}), key="mine")[1] == "4711"
    assert directory.submission(1) is not None
    assert len(calls(tmp_path, "sbatch")) == 1


def test_two_callers_with_one_key_get_the_number_of_one_job(tmp_path: Path) -> None:
    """The second comes while sbatch of the first has not answered yet."""
    slow = "cat > /dev/null; while ! [ -e $0.go ]; do sleep 0.02; done; echo 4711"
    commands, home = programs(tmp_path, sbatch=slow, squeue="exit 0"), tmp_path / "home"
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(submit_job, commands, home, job({}), key="k") for _ in range(3)]
        wait_for(lambda: calls(tmp_path, "sbatch"), "sbatch to be called")
        (tmp_path / "bin" / "sbatch.go").touch()
        assert {each.result()[1] for each in found} == {"4711"}
    assert len(calls(tmp_path, "sbatch")) == 1


def test_a_caller_whose_first_was_refused_is_refused_itself(tmp_path: Path) -> None:
    refused = "cat > /dev/null; sleep 0.2; echo 'sbatch: error: Invalid qos' >&2; exit 1"
    commands, home = programs(tmp_path, sbatch=refused, squeue="exit 0"), tmp_path / "home"
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(submit_job, commands, home, job({}), key="k") for _ in range(2)]
        assert {str(each.exception()) for each in found} == {"sbatch: Invalid qos"}
    assert job_directories(home) == []


def test_of_many_submits_in_one_instant_one_writes_into_the_directory(tmp_path: Path) -> None:
    """Each has looked already, and found no other."""
    output = tmp_path / "runs" / "out"
    spec = job({}, output_dir=str(output))
    ready = threading.Barrier(8)
    commands = programs(tmp_path, squeue="exit 0")

    def submit(number: int) -> str:
        home = tmp_path / f"home-{number % 2}"  # also where the records are in two directories
        jobs = SlurmJobs(commands, home)
        jobs.check_output_dir_free(spec)
        ready.wait()
        try:
            claim = partial(jobs.claim_output, spec)
            submit_job(commands, home, spec, claim=claim)
        except BadRequest as error:
            return str(error)
        return "queued"

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(submit, range(8)))
    assert found.count("queued") == 1
    said = f"output_dir = {output}: job "
    assert all(each.startswith(said) for each in found if each != "queued"), found
    assert len(calls(tmp_path, "sbatch")) == 1
    assert len(list((output / CLAIMS).iterdir())) == 1


def test_a_directory_is_free_again_when_its_job_is_over_or_was_refused(tmp_path: Path) -> None:
    home, output = tmp_path / "home", tmp_path / "out"
    spec = job({}, output_dir=str(output))
    refused = programs(tmp_path, sbatch="echo 'Invalid qos' >&2; exit 1", squeue="exit 0")
    claim = partial(SlurmJobs(refused, home).claim_output, spec)
    with pytest.raises(BadRequest, match="Invalid qos"):
        submit_job(refused, home, spec, claim=claim)
    assert not output.exists()
    commands = programs(tmp_path, squeue="exit 0")
    claim = partial(SlurmJobs(commands, home).claim_output, spec)
    directory, _ = submit_job(commands, home, spec, claim=claim)
    with pytest.raises(BadRequest, match="writes there"):
        submit_job(commands, home, spec, claim=claim)
    write_record(directory.submission_path(1) / END, {"state": "failed", "reason": "x"})
    later, _ = submit_job(commands, home, spec, claim=claim)
    with pytest.raises(BadRequest, match="writes there"):
        SlurmJobs(commands, home).resume(directory.path.name)
    write_record(later.submission_path(1) / END, {"state": "failed", "reason": "x"})
    SlurmJobs(commands, home).resume(directory.path.name)
    assert [each.name for each in (output / CLAIMS).iterdir()] == ["3"]


def test_one_that_was_resumed_since_it_was_looked_at_is_not_submitted_again(
    tmp_path: Path,
) -> None:
    commands = programs(tmp_path)
    directory, _ = submit_job(commands, tmp_path / "home", job({}))
    submit_again(commands, directory, job({}), newest=1)
    with pytest.raises(BadRequest, match="another process is submitting it now"):
        submit_again(commands, directory, job({}), newest=1)
    assert directory.submissions() == [1, 2]


def test_where_slurm_keeps_no_comments_the_name_must_be_that_of_the_job(tmp_path: Path) -> None:
    directory, _ = submit_job(programs(tmp_path), tmp_path / "home", job({}, name="a b"))
    for name, is_own in (("a_b", True), ("wrap", False)):
        found = ControllerJob(number="4711", state="RUNNING", name=name)
        assert (own_of(directory, found) is not None) == is_own


def test_what_slurm_refuses_leaves_nothing(tmp_path: Path) -> None:
    refused = "cat > /dev/null; echo 'sbatch: error: Invalid partition name' >&2; exit 1"
    with pytest.raises(BadRequest, match=r"^sbatch: Invalid partition name$"):
        submit_job(programs(tmp_path, sbatch=refused), tmp_path / "home", job({}))
    assert job_directories(tmp_path / "home") == []


def test_a_number_that_was_given_again_is_not_ours(tmp_path: Path) -> None:
    directory, number = submit_job(programs(tmp_path), tmp_path / "home", job({}))
    assert number == "4711"
    other = r"printf '4711\tRUNNING\tNone\tzerotools:of-another\t1\tn1\tx\n'"
    commands = programs(tmp_path, squeue=other, scancel="exit 0")
    assert own_of(directory, commands.jobs(["4711"])["4711"]) is None
    jobs = SlurmJobs(commands, tmp_path / "home")
    assert jobs.job("4711")["slurm"]["state"] is None
    jobs.cancel("4711")
    assert calls(tmp_path, "scancel") == []


def test_the_records_are_for_their_user_alone(tmp_path: Path) -> None:
    secret = job({}, env={"HF_TOKEN": "hf_x"})
    directory, _ = submit_job(programs(tmp_path), tmp_path / "home", secret)
    assert directory.path.stat().st_mode & 0o077 == 0
    assert json.loads((directory.path / "job.json").read_text())["spec"]["env"]
    view = SlurmJobs(programs(tmp_path, squeue="exit 0"), tmp_path / "home").job("4711")
    assert "hf_x" not in json.dumps(view)
    assert isinstance(directory, JobDirectory)


def test_a_wrapper_of_sbatch_that_fails_after_it_has_queued(tmp_path: Path) -> None:
    home = tmp_path / "home"
    after = "cat > /dev/null; echo 'site policy: mail cannot be sent' >&2; exit 1"
    commands = programs(tmp_path, sbatch=after, squeue=KNOWS_IT.replace("HOME", str(home)))
    assert submit_job(commands, home, job({}))[1] == "4711"


def test_a_resume_that_is_refused_leaves_all_as_it_was(tmp_path: Path) -> None:
    home = tmp_path / "home"
    directory, _ = submit_job(programs(tmp_path), home, job({}))
    directory.request_stop("me")
    refused = programs(tmp_path, sbatch="echo 'Invalid qos' >&2; exit 1", squeue="exit 0")
    with pytest.raises(BadRequest, match="Invalid qos"):
        submit_again(refused, directory, job({}))
    assert directory.submissions() == [1]
    assert (directory.stop() or {})["who"] == "me"


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

"""Programs of users as jobs, with a real daemon: start, stop, checkpoints, and the next start."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.patience import patient
from tests.daemon.daemons import Daemon
from tests.daemon.made_attempts import is_alive, progress_of, wait_for_file
from tests.daemon.waiting import wait_for
from zerotools.core.errors import BadRequest, DaemonRefused
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec

PROGRAM = Path(__file__).with_name("own_program.py")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The directory of the user's program."""
    directory = tmp_path / "work"
    directory.mkdir()
    shutil.copy(PROGRAM, directory / "train.py")
    return directory


def own(work: Path, words: str, *, ranks: int = 1, script: Any = None, **changes: Any) -> JobSpec:
    table = {"command": ["train.py", *words.split()], "directory": str(work), **(script or {})}
    job = {"engine": "script", "device": "cpu", "ranks": ranks, "script": table, **changes}
    return job_from_dict({"python": sys.executable, **job}, source="job")


def watched(work: Path) -> dict[str, str]:
    return {"checkpoint_dir": str(work / "checkpoints")}


def test_a_program_gets_torch_s_variables_and_zerotools_and_nothing_of_ours(
    daemon: Daemon, work: Path
) -> None:
    daemon.start(RANK="7", CLOUD_SECRET="hidden", HF_HOME="/of/the/daemon")
    env = {"PYTHONPATH": "/its/own", "COLOUR": "blue"}
    words = "--api-key hunter2 env"
    daemon.client.submit(own(work, words, ranks=2, env=env))
    job = daemon.wait_for_end(1)
    assert (job["state"], job["stage"], job["reason"]) == ("succeeded", None, None)
    seen = [json.loads((daemon.run_dir() / f"rank-{n}.log").read_text()) for n in (0, 1)]
    assert [(each["RANK"], each["WORLD_SIZE"]) for each in seen] == [("0", "2"), ("1", "2")]
    assert seen[0]["COLOUR"] == "blue"
    assert job["spec"]["script"]["command"] == ["train.py", "--api-key", "***", "env"]
    told = (job, daemon.client.jobs(), daemon.client.events(), daemon.log.read_text())
    assert "hunter2" not in str(told)
    assert not {"CLOUD_SECRET", "HF_HOME"} & set(seen[0])
    assert job["environment"].startswith("only PATH, HOME, LANG")
    assert seen[0]["PYTHONPATH"].startswith("/its/own:")
    assert seen[0]["ZEROTOOLS_OUTPUT_DIR"] == job["output_dir"]
    assert "ZEROTOOLS_RESUME_FROM" not in seen[0]
    assert "HF_HUB_OFFLINE" not in seen[0]
    found = list(Path(seen[0]["PYTHONPATH"].rpartition(":")[2]).iterdir())
    assert [path.name for path in found] == ["zerotools"]


def test_steps_that_a_program_reports_are_shown_and_kept(daemon: Daemon, work: Path) -> None:
    daemon.start()
    daemon.client.submit(own(work, "steps=3 told=here"))
    job = daemon.wait_for_end(1)
    assert job["attempt"]["cause"] == "finished after step 3"
    assert (job["progress"]["step"], job["progress"]["steps"]) == (3, 3)
    assert job["progress"]["mood"] == "good"
    newest = job["latest_checkpoint"]
    assert (newest["step"], newest["path"]) == (3, str(work / "checkpoints" / "here"))
    lines = [
        json.loads(line)
        for line in (Path(job["output_dir"]) / "metrics.jsonl").read_text().splitlines()
    ]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert lines[0]["host_bytes"] > 2**20


def test_metrics_can_be_switched_off(daemon: Daemon, work: Path) -> None:
    daemon.start()
    metrics = {"jsonl": False, "tensorboard": "on"}
    daemon.client.submit(own(work, "steps=1", metrics=metrics))
    output = Path(daemon.wait_for_end(1)["output_dir"])
    assert [path.name for path in output.iterdir()] == ["tensorboard"]


def test_a_crash_is_followed_by_a_start_that_goes_on_from_the_newest_whole_checkpoint(
    daemon: Daemon, work: Path
) -> None:
    """What lay there before the job is not its own; what is cut off is passed over."""
    daemon.start()
    checkpoints = work / "checkpoints"
    (checkpoints / "checkpoint-9").mkdir(parents=True)
    words = "save=checkpoint-1 save=checkpoint-20 torn=checkpoint-30 fail=3 env"
    old = PROGRAM.read_text()  # any bytes: it must only not be taken
    (checkpoints / "checkpoint-9" / "pytorch_model.bin").write_text(old)
    daemon.client.submit(own(work, words, script=watched(work)))
    job = daemon.wait_for_end(1)
    assert (job["state"], len(job["attempts"])) == ("succeeded", 2)
    assert "rank 0 exited with 3" in job["attempts"][0]["cause"]
    seen = json.loads((daemon.run_dir(attempt=2) / "rank-0.log").read_text())
    assert seen["ZEROTOOLS_RESUME_FROM"] == str(checkpoints / "checkpoint-20")
    over = [e for e in progress_of(daemon.run_dir(attempt=2)) if e["event"] != "checkpoint"]
    assert [(e["event"], Path(e["path"]).name) for e in over] == [
        ("skipped_checkpoint", "checkpoint-30")
    ]
    assert job["latest_checkpoint"]["step"] == 20


@pytest.mark.parametrize(
    ("words", "taken", "known"),
    [
        ("file=step-5.safetensors file=step-35.safetensors cut=step-35.safetensors", "", 5),
        *(
            pytest.param(*each, marks=pytest.mark.full)
            for each in (
                ("file=step-5.safetensors file=step-35.safetensors", "step-35.safetensors", 35),
                (
                    "steps=7 said=step-5.safetensors said=step-7.safetensors file=best.safetensors",
                    *("", 7),
                ),
                ("steps=5 own=step-5.pt steps=7 own=step-7.pt", "step-7.pt", 7),
            )
        ),
    ],
)
def test_files_that_are_numbered_by_step_are_checkpoints_of_their_own(
    daemon: Daemon, work: Path, words: str, taken: str, known: int
) -> None:
    """A crash is followed by a start from the newest whole one, and so is a resume."""
    daemon.start()
    daemon.client.submit(own(work, f"{words} fail=3 env", script=watched(work)))
    job = daemon.wait_for_end(1)
    assert (job["state"], len(job["attempts"])) == ("succeeded", 2), job["reason"]
    expected = str(work / "checkpoints" / (taken or f"step-{known}.safetensors"))
    seen = json.loads((daemon.run_dir(attempt=2) / "rank-0.log").read_text())
    assert seen["ZEROTOOLS_RESUME_FROM"] == expected
    newest = job["latest_checkpoint"]
    assert (newest["step"], newest["path"]) == (known, expected)
    assert daemon.client.resume(1)["spec"]["resume_from"] == expected


def test_a_job_of_which_each_checkpoint_is_damaged_is_not_resumed(
    daemon: Daemon, work: Path
) -> None:
    daemon.start()
    daemon.client.submit(own(work, "steps=5 said=step-5.safetensors cut=step-5.safetensors"))
    assert daemon.wait_for_end(1)["state"] == "succeeded"
    with pytest.raises(DaemonRefused, match=r"it has no complete checkpoint: .*truncated.*retry"):
        daemon.client.resume(1)
    assert daemon.client.retry(1)["spec"].get("resume_from") is None


def test_checkpoints_are_found_while_the_program_runs(daemon: Daemon, work: Path) -> None:
    daemon.start()
    daemon.client.submit(own(work, "save=checkpoint-5 wait=go", script=watched(work)))
    job: dict[str, Any] = {}

    def found() -> bool:
        job.update(daemon.client.job(1))
        return job["latest_checkpoint"] is not None

    wait_for(found, "the checkpoint to be found")
    assert job["latest_checkpoint"]["step"] == 5
    (work / "go").touch()
    assert daemon.wait_for_end(1)["state"] == "succeeded"


def test_a_cancelled_program_gets_a_sigterm_and_saves_also_below_a_shell(
    daemon: Daemon, work: Path
) -> None:
    daemon.start()
    line = f"{sys.executable} train.py child graceful touch=ready hang; echo after"
    script = {"command": ["bash", "-c", line], **watched(work)}
    daemon.client.submit(own(work, "", script=script))
    wait_for_file(work / "ready")
    pids = [*daemon.pids(), int((work / "child").read_text()), int((work / "ready").read_text())]
    daemon.client.cancel(1)
    job = daemon.wait_for_end(1)
    assert job["state"] == "cancelled"
    assert job["reason"].endswith("saved at step 77 and stopped")
    assert (daemon.run_dir() / "rank-0.log").read_text() == ""
    wait_for(lambda: not any(is_alive(pid) for pid in pids), "every process to end")


def test_a_program_that_asks_is_not_ended_by_the_sigterm(daemon: Daemon, work: Path) -> None:
    daemon.start()
    daemon.client.submit(own(work, "steps=4 ask told=last", ranks=2))
    for rank in (0, 1):  # before it asks, a SIGTERM is its end
        wait_for_file(work / f"asking-{rank}")
    wait_for(lambda: len(progress_of(daemon.run_dir())) == 4, "the steps of rank 0")
    daemon.client.cancel(1)
    job = daemon.wait_for_end(1)
    assert job["state"] == "cancelled"
    assert job["latest_checkpoint"]["step"] == 4
    again = daemon.client.resume(1)
    assert again["spec"]["resume_from"] == str(work / "checkpoints" / "last")
    daemon.client.cancel(2)
    assert daemon.wait_for_end(2)["state"] == "cancelled"


def test_a_time_limit_stops_a_program_as_a_cancel_does(daemon: Daemon, work: Path) -> None:
    daemon.start()
    limit = math.ceil(patient(2.0))  # so that the program has begun by then
    words = "graceful touch=ready hang"
    daemon.client.submit(own(work, words, time_limit=limit, script=watched(work)))
    job = daemon.wait_for_end(1)
    assert (job["state"], job["latest_checkpoint"]["step"]) == ("stopped", 77)


def test_a_program_without_a_handler_ends_by_the_sigterm(daemon: Daemon, work: Path) -> None:
    daemon.start()
    daemon.client.submit(own(work, "touch=ready hang"))
    wait_for_file(work / "ready")
    daemon.client.cancel(1)
    job = daemon.wait_for_end(1)
    assert job["state"] == "cancelled"
    assert "ended by signal 15 (SIGTERM), after a request to stop" in job["reason"]


@pytest.mark.parametrize(
    ("words", "script", "sentence"),
    [
        ("x", {"command": ["gone.py"]}, "script.command: the file"),
        ("x", {"command": ["no-such-program"]}, "the program no-such-program is not in PATH"),
        ("x", {"directory": "/no/such"}, "script.directory = /no/such: no such directory"),
    ],
)
def test_what_is_not_there_is_refused_at_submit(
    daemon: Daemon, work: Path, words: str, script: Any, sentence: str
) -> None:
    daemon.start()
    with pytest.raises(BadRequest, match=sentence):
        daemon.client.submit(own(work, words, script=script))


def test_a_checkpoint_whose_name_is_not_utf8_survives_daemon_and_restart_and_can_be_opened(
    daemon: Daemon, work: Path
) -> None:
    """Found in checkpoint_dir and told of by a worker; either once ended the daemon for good."""
    daemon.start()
    tell = own(work, "steps=3 odd fail=3 env", name="told")
    daemon.client.submit(tell, idempotency_key="told")
    one = daemon.wait_for_end(1)
    daemon.kill()
    daemon.start()
    shutil.copytree(work, elsewhere := work.with_name("elsewhere"))
    shutil.rmtree(elsewhere / "checkpoints")
    daemon.client.submit(own(elsewhere, "odd fail=3 env", script=watched(elsewhere)))
    two = daemon.wait_for_end(2)
    for job, place in ((one, work), (two, elsewhere)):
        assert (job["state"], len(job["attempts"])) == ("succeeded", 2), job["reason"]
        seen = json.loads((daemon.run_dir(job["id"], 2) / "rank-0.log").read_text())
        name = os.fsencode(seen["ZEROTOOLS_RESUME_FROM"])
        assert name == os.fsencode(place) + b"/checkpoints/ck-\xe9t\xe9"
        assert Path(os.fsdecode(name)).is_dir()
        assert job["attempts"][1]["resumed_from"] == os.fsdecode(name)
    assert daemon.client.job(1)["latest_checkpoint"] == one["latest_checkpoint"]
    third = daemon.client.resume(1)
    assert third["spec"]["resume_from"] == one["attempts"][1]["resumed_from"]
    assert daemon.wait_for_end(3)["state"] == "succeeded"


def test_no_datagram_of_a_rank_harms_the_supervisor_or_the_queue(
    daemon: Daemon, work: Path
) -> None:
    daemon.start()
    daemon.client.submit(own(work, "hostile fail=9", max_restarts=1))
    job = daemon.wait_for_end(1)
    assert (job["state"], len(job["attempts"])) == ("succeeded", 2), job["reason"]
    assert job["attempts"][0]["cause"].startswith("rank 0 exited with 9: \\ud800 \udce9 \\x00")
    assert job["attempts"][1]["resumed_from"] == "/tmp/\udce9"
    daemon.kill()
    daemon.start()
    (listed,), job = daemon.client.jobs(), daemon.client.job(1)
    assert {**listed, "user": None} == {**job, "user": None}  # a busy machine finds it only later


def test_the_reason_is_the_program_s_own_error(daemon: Daemon, work: Path) -> None:
    daemon.start()
    (work / "train.py").write_text(
        "import os, sys\n"
        "print('step 1', flush=True)\n"
        "error = 'CUDA out of memory. Tried to allocate 2.00 GiB '\n"
        "values = os.environ['MY_API_KEY'] + ' ' + os.environ['COLOUR']\n"
        "raise MemoryError(error + values + '\\x1b[2J')\n"
    )
    secret = "an-innocent-value-" + "x" * 20
    daemon.client.submit(
        own(work, "", env={"MY_API_KEY": secret, "COLOUR": "bluebananas77"}, max_restarts=0)
    )
    job = daemon.wait_for_end(1)
    said = (
        "rank 0 exited with 1: MemoryError: CUDA out of memory. Tried to allocate 2.00 GiB *** ***"
    )
    assert str(job["reason"]).startswith(said)
    explained = daemon.client.explain(1)
    for text in (explained["why"], explained["end"]["cause"], job["attempt"]["cause"]):
        assert text.startswith(said)
        assert text.isprintable()
    everything = (job, explained, daemon.client.events(), daemon.log.read_text())
    assert secret not in str(everything)
    assert "bluebananas77" not in str(everything)


def test_a_rank_that_exits_with_75_has_failed_and_the_others_are_ended(
    daemon: Daemon, work: Path
) -> None:
    """75 is the status with which a rank of the built-in trainer has stopped on request."""
    daemon.start()
    (work / "train.py").write_text(
        "import os, signal, sys\nsys.exit(75) if os.environ['RANK'] == '1' else signal.pause()\n"
    )
    daemon.client.submit(own(work, "", ranks=2, max_restarts=0))
    job = daemon.wait_for_end(1)
    assert (job["state"], job["attempt"]["exit_code"]) == ("failed", 75)
    assert str(job["reason"]).startswith("rank 1 exited with 75")


@pytest.mark.parametrize("status", [65, 69, 75])
def test_statuses_of_the_built_in_trainer_are_crashes_of_a_program(
    daemon: Daemon, work: Path, status: int
) -> None:
    daemon.start()
    daemon.client.submit(own(work, f"fail={status} steps=1"))
    job = daemon.wait_for_end(1)
    assert job["state"] == "succeeded"
    first, second = job["attempts"]
    assert str(first["cause"]).startswith(f"rank 0 exited with {status}")
    assert second["cause"] == "finished after step 1"


def test_of_an_array_of_programs_those_that_have_not_succeeded_run_again(
    daemon: Daemon, work: Path
) -> None:
    daemon.start()
    script = {"command": ["bash", "-c", "exit $((ZEROTOOLS_ARRAY_INDEX % 2 * 64))"]}
    jobs = daemon.client.submit_array(own(work, "", script=script), {}, 3)
    for job in jobs:
        daemon.wait_for_end(job["id"])
    again = daemon.client.of_array(jobs[0]["id"], {"from_start": False}, "/retry")
    assert [job["output_dir"] for job in again["jobs"]] == [jobs[1]["output_dir"]]

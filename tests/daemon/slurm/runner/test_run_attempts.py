"""F69 to F71, and how a job ends: the batch script's process, with nodes that are all here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.slurm.runner.fake_allocation import FakeAllocation, forked_nodes
from tests.daemon.small_disks import SmallDisk
from zerotoolsd.slurm.runner.run_attempts import is_in_vain

TELL = ["sh", "-c", 'echo "$RANK of $WORLD_SIZE"; echo done']
SLOW = ["sh", "-c", "echo begun; exec sleep 600"]
SAVES = [
    *(sys.executable, "-u", "-c"),
    "import signal, sys, time\n"
    "signal.signal(15, lambda *_: (print('saved'), sys.exit(0)))\n"
    "print('begun')\n"
    "time.sleep(600)",
]
ONCE = ["sh", "-c", "test -e mark && exit 0; touch mark; echo begun; exec sleep 600"]


@pytest.fixture(scope="module", autouse=True)
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with forked_nodes(tmp_path_factory.mktemp("nodes")):
        yield


def end_of(found: FakeAllocation) -> tuple[object, object]:
    end = found.job.end(1) or {}
    return end.get("state"), end.get("reason")


def test_the_ranks_of_all_nodes_are_counted_and_the_job_is_over(tmp_path: Path) -> None:
    found = FakeAllocation(tmp_path, TELL, nodes=2)
    assert found.begin().wait(60) == 0, found.log()
    assert end_of(found) == ("succeeded", None)
    assert [found.lines(node=node) for node in (0, 1)] == [
        ["0 of 2", "done"],
        ["1 of 2", "done"],
    ]
    view = found.jobs.job("4711")
    assert (view["state"], view["world_size"], len(view["attempts"])) == ("succeeded", 2, 1)
    assert found.jobs.logs("4711", rank=1).data == b"1 of 2\ndone\n"


def is_waiting(found: FakeAllocation) -> bool:
    return "waits: the records of the job cannot be written" in found.log()


@pytest.fixture
def records(tmp_path: Path, small_disk: SmallDisk) -> SmallDisk:
    """The disk of the records of jobs."""
    (tmp_path / "home").symlink_to(small_disk.path)
    return small_disk


def test_a_full_disk_of_the_records_ends_no_training(tmp_path: Path, records: SmallDisk) -> None:
    program = ["sh", "-c", "touch begun; until test -e go; do sleep 0.1; done"]
    found = FakeAllocation(tmp_path, program)
    copy = found.begin()
    found.wait_for((tmp_path / "begun").exists, "the rank")
    records.fill()
    beat, seen = found.job.attempt_path(1) / "beat-master", set[int]()

    def has_tried() -> bool:
        records.take_inodes()  # again, as files are removed, too
        seen.add(beat.stat().st_mtime_ns)
        return len(seen) > 2 or copy.poll() is not None

    found.wait_for(has_tried, "a sign of life, and the state to be written")
    assert copy.poll() is None, found.log()
    records.free()
    (tmp_path / "go").touch()
    assert copy.wait(60) == 0, found.log()
    assert end_of(found) == ("succeeded", None)
    assert found.jobs.job("4711")["state"] == "succeeded"


def test_a_job_begins_when_its_records_can_be_written(tmp_path: Path, records: SmallDisk) -> None:
    found = FakeAllocation(tmp_path, TELL)
    records.fill()
    copy = found.begin()
    found.wait_for(lambda: is_waiting(found), "the start to be put off")
    assert copy.poll() is None
    records.free()
    assert copy.wait(60) == 0, found.log()
    assert found.lines() == ["0 of 1", "done"]


def test_a_copy_that_comes_after_the_end_has_nothing_to_do(tmp_path: Path) -> None:
    found = FakeAllocation(tmp_path, TELL)
    assert found.begin().wait(60) == 0, found.log()
    assert found.begin().wait(60) == 0
    assert "the job is over (succeeded" in found.log()
    assert found.job.attempts() == [1]


def test_of_two_copies_one_runs_and_the_other_waits_for_it(tmp_path: Path) -> None:
    found = FakeAllocation(tmp_path, ["sh", "-c", "echo begun; test -e go || sleep 0.1; sleep 2"])
    copies = [found.begin(), found.begin()]
    assert [copy.wait(60) for copy in copies] == [0, 0], found.log()
    assert found.job.attempts() == [1]
    assert "this process waits until that attempt" in found.log()


def test_a_program_that_fails_is_started_again_here(tmp_path: Path) -> None:
    found = FakeAllocation(
        tmp_path, ["sh", "-c", "echo no; exit 3"], max_restarts=1, retry="always"
    )
    assert found.begin().wait(60) == 1
    state, reason = end_of(found)
    assert state == "failed"
    assert "rank 0 exited with 3" in str(reason)
    assert found.job.attempts() == [1, 2]


def test_what_fails_on_one_node_ends_the_others_and_is_named(tmp_path: Path) -> None:
    command = ["sh", "-c", 'test "$RANK" = 1 && exit 3; exec sleep 600']
    found = FakeAllocation(tmp_path, command, nodes=2)
    copy = found.begin()
    found.wait_for(lambda: (found.job.run_dir(1, 1) / "exit.json").exists(), "the end of node 1")
    assert copy.wait(120) == 1
    assert "node 1 (n2): rank 0 exited with 3" in str(end_of(found)[1])


def test_its_user_cancels_it(tmp_path: Path) -> None:
    found = FakeAllocation(tmp_path, SAVES, nodes=2)
    copy = found.begin()
    found.wait_for(lambda: all(found.lines(node=n) for n in (0, 1)), "both ranks")
    found.jobs.cancel("4711")
    assert copy.wait(60) == 1
    state, reason = end_of(found)
    assert state == "cancelled"
    assert "cancelled by" in str(reason)
    assert found.lines() == ["begun", "saved"]


def test_slurm_wants_its_nodes_and_the_job_is_queued_again(tmp_path: Path) -> None:
    found = FakeAllocation(tmp_path, SAVES)
    copy = found.begin()
    found.wait_for(found.lines, "the rank")
    os.kill(copy.pid, signal.SIGTERM)
    found.wait_for(lambda: "requeue 4711" in found.asked("scontrol"), "the requeue")
    assert end_of(found) == (None, None)
    view = json.loads((found.job.path / "view.json").read_text())
    assert (view["state"], found.lines()) == ("queued", ["begun", "saved"])
    copy.kill()
    copy.wait(20)
    assert found.job.attempts() == [1]


def test_ranks_that_slurm_ends_before_they_are_asked_have_not_failed(tmp_path: Path) -> None:
    found = FakeAllocation(tmp_path, SLOW)
    copy = found.begin()
    found.wait_for(found.lines, "the rank")
    run = json.loads((found.job.run_dir(1, 0) / "run.json").read_text())
    for pid in (run["ranks"][0]["pid"], copy.pid):
        os.kill(pid, signal.SIGTERM)
    found.wait_for(lambda: "requeue 4711" in found.asked("scontrol"), "the requeue")
    assert end_of(found) == (None, None)
    copy.kill()
    copy.wait(20)


def test_a_job_that_slurm_ends_itself_is_left_to_slurm(tmp_path: Path) -> None:
    found = FakeAllocation(tmp_path, SAVES)
    copy = found.begin()
    found.wait_for(found.lines, "the rank")
    found.controller_says("COMPLETING")
    os.kill(copy.pid, signal.SIGTERM)
    assert copy.wait(60) == 1
    assert "requeue 4711" not in found.asked("scontrol")
    assert end_of(found) == (None, None)


def test_one_that_may_not_be_queued_again_stops_for_good(tmp_path: Path) -> None:
    found = FakeAllocation(tmp_path, SAVES, slurm={"requeue": False})
    copy = found.begin()
    found.wait_for(found.lines, "the rank")
    os.kill(copy.pid, signal.SIGTERM)
    assert copy.wait(60) == 1
    assert end_of(found)[0] == "stopped"


def test_a_controller_that_has_forgotten_the_job_is_said(tmp_path: Path) -> None:
    found = FakeAllocation(tmp_path, ["sh", "-c", "exit 3"], max_restarts=3, retry="always")
    found.controller_says(None)
    assert found.begin().wait(60) == 1
    state, reason = end_of(found)
    assert state == "stopped"
    assert "does not know the job any more" in str(reason)


def test_the_next_start_goes_on_after_one_that_was_killed(tmp_path: Path) -> None:
    found = FakeAllocation(tmp_path, ONCE)
    copy = found.begin()
    found.wait_for(found.lines, "the rank")
    copy.kill()
    copy.wait(20)
    found.wait_for(lambda: _kill_step(found), "the end of its processes")
    assert found.begin().wait(90) == 0, found.log()
    view = found.jobs.job("4711")
    assert [each["cause"] for each in view["attempts"]][1:] == ["finished"]
    assert "Slurm ended the attempt before its end was recorded" in view["attempts"][0]["cause"]


def kill_runner(found: FakeAllocation) -> None:
    """SIGKILL to the process that runs attempts, as by the kernel when memory runs out."""
    found.wait_for(lambda: found.jobs.job("4711")["state"] == "running", "the state")
    os.kill(json.loads((found.job.attempt_path(1) / "beat-master").read_text())["pid"], 9)
    found.wait_for(lambda: "the process before was killed" in found.log(), "the next process")


def test_an_attempt_goes_on_though_the_process_that_runs_it_is_killed(tmp_path: Path) -> None:
    wait = ["sh", "-c", "echo begun; until test -e go; do sleep 0.1; done; echo done"]
    found = FakeAllocation(tmp_path, wait, nodes=2)
    copy = found.begin()
    kill_runner(found)
    (tmp_path / "go").touch()
    assert copy.wait(60) == 0, found.log()
    assert end_of(found) == ("succeeded", None)
    assert (found.job.attempts(), found.lines(node=1)) == ([1], ["begun", "done"])


def test_after_that_kill_signals_of_slurm_and_requests_of_the_user_are_obeyed(
    tmp_path: Path,
) -> None:
    found = FakeAllocation(tmp_path, SAVES)
    copy = found.begin()
    found.wait_for(found.lines, "the rank")
    kill_runner(found)
    os.kill(copy.pid, signal.SIGTERM)
    found.wait_for(lambda: "requeue 4711" in found.asked("scontrol"), "the requeue")
    assert (end_of(found), found.lines()) == ((None, None), ["begun", "saved"])
    copy.kill()
    copy.wait(20)


def test_a_new_submission_goes_on_after_a_batch_script_that_was_killed(tmp_path: Path) -> None:
    found = FakeAllocation(tmp_path, ONCE)
    copy = found.begin()
    found.wait_for(found.lines, "the rank")
    copy.kill()
    copy.wait(20)
    found.wait_for(lambda: _kill_step(found), "the end of its processes")
    found.job.new_submission("another")
    assert found.begin(submission=1).wait(60) == 1
    assert "the job was submitted again (submission 2)" in found.log()
    assert found.begin(submission=2).wait(90) == 0, found.log()
    assert (found.job.end(2) or {})["state"] == "succeeded"


def test_what_was_left_running_is_over_before_the_job_is_cancelled(tmp_path: Path) -> None:
    found = FakeAllocation(tmp_path, ONCE)
    copy = found.begin()
    found.wait_for(lambda: found.jobs.job("4711")["state"] == "running", "the state")
    copy.kill()
    copy.wait(20)
    found.wait_for(lambda: _kill_step(found), "the end of its processes")
    found.job.request_stop("me")
    assert found.begin().wait(60) == 1
    assert end_of(found)[0] == "cancelled"
    assert found.job.attempts() == [1]


def _kill_step(found: FakeAllocation) -> bool:
    """Slurm ends all processes of a job whose batch script has gone."""
    record = json.loads((found.job.run_dir(1, 0) / "run.json").read_text())
    beat = json.loads((found.job.attempt_path(1) / "beat-0").read_text())
    for pid in (beat["pid"], record["keeper"]["pid"], record["pid"]):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return True


def test_starts_that_save_nothing_new_are_in_vain() -> None:
    assert is_in_vain([0, 0, 0])
    assert is_in_vain([20, 20, 0, 20])
    assert not is_in_vain([0, 0])
    assert not is_in_vain([0, 0, 20])
    assert not is_in_vain([20, 20, 40, 40])


def test_a_node_without_srun_is_named_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = FakeAllocation(tmp_path, TELL)
    (tmp_path / "bin" / "srun").unlink()
    (few := tmp_path / "few").mkdir()
    for name in ("sh", "cat", "head"):
        (few / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(few))
    assert found.begin().wait(60) == 1, found.log()
    state, reason = end_of(found)
    assert (state, reason) == ("stopped", "srun: No such file or directory")


def test_the_time_limit_of_the_job_is_kept_here(tmp_path: Path) -> None:
    found = FakeAllocation(tmp_path, SAVES, time_limit=1)
    assert found.begin().wait(60) == 1
    state, reason = end_of(found)
    assert state == "stopped"
    assert "its time limit of 1 s is over" in str(reason)

"""The supervisor as a process: what it starts, ends, and writes down."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.hung_disks import hung_disk
from tests.daemon.made_attempts import (
    finish,
    is_alive,
    make_attempt,
    noted_at_step,
    progress_of,
    started,
    supervise,
    wait_for_file,
)
from tests.daemon.waiting import wait_for
from zerotoolsd.supervisor.attempt_plan import EXIT_LOCKED, EXIT_NO_LIMITS, EXIT_USED
from zerotoolsd.supervisor.durable_files import write_json
from zerotoolsd.supervisor.procfs import boot_id, read_process
from zerotoolsd.supervisor.stop.kill_descendants import is_still_alive


def test_ranks_that_finish_are_a_finished_attempt(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "steps=3 release exit=0")
    process = supervise(run)
    wait_for_file(run / "waiting-0")
    wait_for_file(run / "waiting-1")
    wait_for(lambda: noted_at_step(3, run), "the supervisor to note steps and memory")
    (run / "release").touch(0o600)
    record = finish(run, process)
    assert record["outcome"] == "finished"
    assert record["exit_code"] == 0
    assert record["steps_done"] == 3
    assert record["peak_gpu_bytes"] == 3
    assert record["peak_host_bytes"] > 2**20
    assert record["progress"]["loss"] == pytest.approx(1 / 3)
    assert [rank["exit_code"] for rank in record["ranks"]] == [0, 0]
    assert sum(m["event"] == "step" for m in progress_of(run)) == 6
    assert not (run / "notify.sock").exists()
    assert all(path.stat().st_mode & 0o077 == 0 for path in run.iterdir())


def test_a_search_that_does_not_end_is_left_as_a_helper(tmp_path: Path) -> None:
    """No rank has begun, so nothing that is left uses a GPU."""
    finder = ("/bin/sh", "-c", "exec sleep 600")
    run = make_attempt(tmp_path / "run", "exit=0", finder=finder, kill_seconds=0.0)
    write_json(run / "request.json", {"reason": "cancel"})
    record = finish(run, supervise(run))
    assert (record["outcome"], record["cause"]) == ("stopped", "stopped before it began")
    assert [line["helper"] for line in record["unkillable"]] == [True]


def test_what_follows_a_finished_run_is_told_and_changes_nothing(tmp_path: Path) -> None:
    commands = {
        "fine": ("/bin/sh", "-c", "echo done"),
        "broken": ("/bin/sh", "-c", "echo a; echo 'no room' >&2; exit 1"),
        "absent": ("/no/such/program",),
    }
    told = {}
    for name, closing in commands.items():
        run = make_attempt(tmp_path / name, "steps=3 exit=0", closing=closing)
        record = finish(run, supervise(run))
        assert record["outcome"] == "finished"
        told[name] = record["closing"]["why"]
    assert told["fine"] is None
    assert told["broken"] == "no room"
    assert told["absent"] == "/no/such/program cannot be started: No such file or directory"
    run = make_attempt(tmp_path / "stopped", "steps=1 exit=1", closing=commands["fine"])
    assert "closing" not in finish(run, supervise(run))


def test_a_stop_ends_what_follows_a_finished_run(tmp_path: Path) -> None:
    closing = ("/bin/sh", "-c", f"touch {tmp_path}/began; exec sleep 1000")
    run = make_attempt(tmp_path / "run", "steps=3 exit=0", closing=closing)
    process = supervise(run)
    wait_for_file(tmp_path / "began")
    process.terminate()
    record = finish(run, process)
    assert (record["outcome"], record["closing"]["why"]) == ("finished", "it was stopped")


def test_ranks_get_torch_s_variables_and_their_number(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "env", env={"FAKE": "env", "ZEROTOOLS_RUN_DIR": "x"})
    (run / "attempt.json").write_text(
        (run / "attempt.json").read_text().replace('"x"', json.dumps(str(run)))
    )
    finish(run, supervise(run))
    seen = [json.loads((run / f"rank-{rank}.log").read_text()) for rank in (0, 1)]
    assert [env["RANK"] for env in seen] == ["0", "1"]
    assert [env["LOCAL_RANK"] for env in seen] == ["0", "1"]
    assert {env["WORLD_SIZE"] for env in seen} == {"2"}
    assert seen[0]["MASTER_PORT"] == seen[1]["MASTER_PORT"]
    assert "PATH" not in seen[0]


def test_run_json_names_the_supervisor_before_the_ranks_end(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "release")
    process = supervise(run)
    record = started(run)
    for name, pid in (("pid", record["pid"]), ("keeper", process.pid)):
        said, own = record["keeper"] if name == "keeper" else record, read_process(pid)
        assert own is not None
        assert (said["pid"], said["start_ticks"]) == (pid, own.start_ticks)
    supervisor = read_process(record["pid"])
    assert supervisor is not None
    assert supervisor.parent == process.pid
    assert record["boot_id"] == boot_id()
    assert [is_alive(rank["pid"]) for rank in record["ranks"]] == [True, True]
    (run / "release").touch()
    assert finish(run, process)["outcome"] == "finished"


def test_a_second_copy_exits_while_the_first_runs_and_after_it(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "release")
    first = supervise(run)
    wait_for_file(run / "waiting-0")
    assert supervise(run).wait(timeout=10) == EXIT_LOCKED
    (run / "release").touch()
    finish(run, first)
    assert supervise(run).wait(timeout=10) == EXIT_USED


def test_a_failed_rank_ends_the_others_and_is_named(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "rank=1:error=it_broke rank=1:exit=9 hang")
    record = finish(run, supervise(run))
    assert record["outcome"] == "crashed"
    assert (record["rank"], record["exit_code"]) == (1, 9)
    assert record["cause"] == "rank 1 exited with 9: it broke"
    assert record["ranks"][0]["killed"]


def test_a_rank_ended_by_a_signal_is_the_initiator(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "rank=1:signal=9 exit=1")
    record = finish(run, supervise(run))
    assert (record["rank"], record["signal"], record["exit_code"]) == (1, 9, None)
    assert "rank 1 was ended by signal 9 (SIGKILL)" in record["cause"]


def test_the_rank_that_told_of_its_error_first_is_the_initiator(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "rank=1:error=first rank=0:release exit=1")
    process = supervise(run)
    wait_for(lambda: progress_of(run), "the error of rank 1")
    (run / "release").touch()
    assert finish(run, process)["rank"] == 1


@pytest.mark.parametrize(("code", "outcome"), [(64, "bad_job"), (65, "bad_checkpoint")])
def test_a_job_that_cannot_run_as_written_is_told_apart(
    tmp_path: Path, code: int, outcome: str
) -> None:
    run = make_attempt(tmp_path / "run", f"error=no_such_file exit={code}")
    record = finish(run, supervise(run))
    assert (record["outcome"], record["cause"]) == (outcome, "no such file")


def test_an_attempt_whose_limits_cannot_be_set_does_not_begin(tmp_path: Path) -> None:
    # No kernel takes so much: also where groups have controllers.
    run = make_attempt(tmp_path / "run", "exit=0", limits={"io_weight": 2**40})
    assert supervise(run).wait(timeout=20) == EXIT_NO_LIMITS
    said = (run / "supervisor.log").read_text()
    assert said.startswith("the limits of the job cannot be set: ")
    assert not (run / "run.json").exists()


def test_a_program_that_does_not_exist_is_said(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "", argv=("/no/such/python", "x"))
    record = finish(run, supervise(run))
    assert record["outcome"] == "not_started"
    assert record["cause"] == "/no/such/python cannot be started: No such file or directory"


def test_a_rank_that_ends_early_does_not_pass_for_success(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "rank=1:exit=0 hang", straggler_seconds=0.05)
    record = finish(run, supervise(run))
    assert record["outcome"] == "killed"
    assert record["cause"] == "rank 1 had finished, but another rank still ran 0.05 s later"


def test_a_stop_request_lets_the_ranks_save(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "stop")
    process = supervise(run)
    wait_for(lambda: len(progress_of(run)) == 2, "both ranks to train")
    write_json(run / "request.json", {"reason": "cancel"})
    process.send_signal(signal.SIGTERM)
    record = finish(run, process)
    assert (run / "stop").read_text() == "cancel"
    assert (record["outcome"], record["stop_reason"]) == ("stopped", "cancel")
    assert (record["exit_code"], record["checkpoint"]["step"]) == (75, 7)
    assert record["cause"] == "saved at step 7 and stopped"


def test_a_stop_before_training_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "hang", grace_seconds=1000.0)
    process = supervise(run)
    wait_for_file(run / "run.json")
    write_json(run / "request.json", {"reason": "cancel"})
    process.send_signal(signal.SIGTERM)
    record = finish(run, process)
    assert (record["outcome"], record["cause"]) == ("stopped", "stopped before training began")


def test_a_stop_from_outside_before_training_is_no_stop_as_asked(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "hang", grace_seconds=1000.0)
    process = supervise(run)
    wait_for_file(run / "run.json")
    process.send_signal(signal.SIGTERM)
    record = finish(run, process)
    assert (record["outcome"], record["cause"]) == ("killed", "stopped before training began")


def test_p5_ranks_that_ignore_the_stop_are_killed_after_the_grace(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "deaf steps=1 hang", grace_seconds=0.05)
    process = supervise(run)
    wait_for(lambda: len(progress_of(run)) == 2, "both ranks to train")
    write_json(run / "request.json", {"reason": "cancel"})
    process.send_signal(signal.SIGTERM)
    record = finish(run, process)
    assert record["outcome"] == "killed"
    assert record["cause"] == "did not stop within 0.05 s after the request"
    assert [rank["signal"] for rank in record["ranks"]] == [9, 9]


TWO_RANKS = """
import os, pathlib, signal, sys, time
def save(*_):
    time.sleep(1.5)
    pathlib.Path("saved").touch()
    sys.exit(0)
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, save)
pathlib.Path("ready-" + os.environ["RANK"]).touch()
signal.pause()
"""


def test_a_rank_without_a_handler_does_not_cut_the_grace_of_one_that_saves(tmp_path: Path) -> None:
    argv = (sys.executable, "-I", "-S", "-c", TWO_RANKS)
    run = make_attempt(tmp_path / "run", "", argv=argv, own_program=True, cwd=str(tmp_path))
    process = supervise(run)
    for rank in (0, 1):
        wait_for_file(tmp_path / f"ready-{rank}")
    write_json(run / "request.json", {"reason": "cancel"})
    process.send_signal(signal.SIGTERM)
    record = finish(run, process)
    assert (tmp_path / "saved").exists()
    assert [rank["exit_code"] for rank in record["ranks"]] == [0, None]


def test_p5_a_rank_that_sleeps_in_the_kernel_is_named_and_not_waited_for(tmp_path: Path) -> None:
    with hung_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("no file system may be mounted here")
        look = "import os, sys; open('asks', 'w'); os.listdir(sys.argv[1])"
        run = make_attempt(
            tmp_path / "run",
            "",
            argv=(sys.executable, "-I", "-S", "-c", look, str(disk.door)),
            cwd=str(tmp_path),
            own_program=True,
            world_size=1,
            grace_seconds=0.0,
            kill_seconds=0.2,
        )
        disk.hang()
        process = supervise(run)
        wait_for_file(tmp_path / "asks")
        rank = started(run)["ranks"][0]["pid"]
        wait_for(lambda: _waits_for_a_disk(rank), "the rank to look")
        write_json(run / "request.json", {"reason": "cancel"})
        record = finish(run, process)
        assert record["outcome"] == "killed"
        (line,) = record["unkillable"]
        assert (line["pid"], line["rank"], line["state"]) == (rank, 0, "D")
        assert is_still_alive(line)
        disk.let_go()
        wait_for(lambda: not is_still_alive(line), "it to end at last")


def _waits_for_a_disk(pid: int) -> bool:
    """Whether the process waits for the answer of a FUSE."""
    return "request_wait" in Path(f"/proc/{pid}/wchan").read_text()


def test_p5_no_descendant_outlives_the_attempt(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "rank=0:orphan rank=1:child release")
    process = supervise(run)
    wait_for_file(run / "waiting-0")
    wait_for_file(run / "waiting-1")
    left = [int((run / name).read_text()) for name in ("orphan", "child")]
    assert all(is_alive(pid) for pid in left)
    (run / "release").touch()
    record = finish(run, process)
    assert record["outcome"] == "finished"
    assert record["unkillable"] == []
    assert not any(is_alive(pid) for pid in left)


def test_ranks_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    # Its environment says nothing of the attempt: it is known by whose child it became.
    run = make_attempt(tmp_path / "run", "rank=0:orphan release")
    process = supervise(run)
    wait_for_file(run / "waiting-0")
    wait_for_file(run / "waiting-1")
    before = started(run)
    pids = [rank["pid"] for rank in before["ranks"]]
    os.kill(before["pid"], signal.SIGKILL)
    record = finish(run, process)
    assert (record["outcome"], record["cause"]) == ("lost", "lost: its supervisor was killed")
    assert [rank["killed"] for rank in record["ranks"]] == [True, True]
    assert not any(is_alive(pid) for pid in [*pids, int((run / "orphan").read_text())])


def test_a_flood_of_output_neither_blocks_the_rank_nor_fills_the_disk(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", f"flood={2**24}", world_size=1, log_limit_bytes=2**18)
    record = finish(run, supervise(run))
    text = (run / "rank-0.log").read_bytes()
    assert record["outcome"] == "finished"
    assert len(text) < 2**18 + 2**17
    assert text.startswith(b"0123456789abcde\n")
    assert text.endswith(b"the end\n")
    assert b"bytes were dropped here" in text


def test_paths_longer_than_a_socket_address_work(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / ("d" * 120) / ("e" * 120), "steps=1")
    assert len(os.fsencode(run)) > 240
    assert finish(run, supervise(run))["steps_done"] == 1


def test_the_supervisor_imports_the_standard_library_alone() -> None:
    import subprocess
    import sys

    from zerotoolsd.supervisor import entry

    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import zerotoolsd.supervisor.main;"
        "print([m for m in sys.modules if m.partition('.')[0] not in sys.stdlib_module_names"
        " and not m.startswith(('zerotoolsd', '__main__'))])"
    )
    root = str(Path(str(entry.__file__)).parents[2])
    command = [sys.executable, "-I", "-S", "-c", program, root]
    assert subprocess.check_output(command, text=True).strip() == "[]"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (
            {"resume_from": None, "passed_over": [{"path": "/4", "why": "cut"}], "lost": "/4: cut"},
            ("bad_checkpoint", "/4: cut"),
        ),
        ({"not_ready": "/4: Input/output error"}, ("not_ready", "/4: Input/output error")),
    ],
)
def test_a_program_whose_checkpoints_are_all_damaged_is_not_begun(
    tmp_path: Path, answer: dict[str, Any], outcome: tuple[str, str]
) -> None:
    finder = ("/bin/sh", "-c", f"echo '{json.dumps(answer)}'; cat")
    run = make_attempt(tmp_path / "run", "exit=0", finder=finder)
    record = finish(run, supervise(run))
    assert (record["outcome"], record["cause"]) == outcome
    assert record["ranks"] == []


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("kill -KILL $$", ("not_ready", "the search for checkpoints was ended by SIGKILL")),
        ("exit 1", ("crashed", "the search for checkpoints failed; see supervisor.log")),
    ],
)
def test_a_search_for_checkpoints_that_is_killed_is_not_the_job_s_fault(
    tmp_path: Path, command: str, outcome: tuple[str, str]
) -> None:
    """When memory runs out, the kernel kills it first: no rank runs yet."""
    run = make_attempt(tmp_path / "run", "exit=0", finder=("/bin/sh", "-c", command))
    record = finish(run, supervise(run))
    assert (record["outcome"], record["cause"]) == outcome
    assert record["ranks"] == []


def test_another_search_finds_what_a_killed_one_has_not(tmp_path: Path) -> None:
    first = json.dumps({"resume_from": None, "passed_over": []})
    last = json.dumps({"path": "/ck/2", "step": 2})
    script = f"test \"$1\" = last && exec echo '{last}'; echo '{first}'; kill -KILL $$"
    finder = ("/bin/sh", "-c", script, "finder")
    run = make_attempt(tmp_path / "run", "exit=0", finder=finder)
    record = finish(run, supervise(run))
    assert record["outcome"] == "finished"
    assert (record["checkpoint"]["path"], record["checkpoint"]["step"]) == ("/ck/2", 2)


def test_limits_that_are_only_wished_keep_no_attempt_from_running(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "exit=0", wished_limits={"memory": 2**31})
    assert finish(run, supervise(run))["outcome"] == "finished"

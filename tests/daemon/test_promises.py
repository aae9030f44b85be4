"""The daemon's promises P1, P2, P3, P5, P6 and P9, each with real processes and a real kill."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
from contextlib import closing, suppress

import pytest

from tests.daemon.daemons import Daemon, make_job
from tests.daemon.made_attempts import is_alive, noted_at_step, progress_of, wait_for_file
from tests.daemon.waiting import wait_for
from zerotools.core.errors import DaemonRefused, DaemonUnreachable
from zerotoolsd.attempts import crash_points
from zerotoolsd.supervisor.durable_files import read_json, write_json
from zerotoolsd.supervisor.exit_record.process_ledgers import read_process_tree
from zerotoolsd.supervisor.procfs import read_process


def test_p1_an_acknowledged_submit_survives_a_kill_right_after_the_reply(daemon: Daemon) -> None:
    daemon.config.write_text("[limits]\ncpu_ranks = 1\n")
    daemon.start()
    blocked = make_job("steps=1", ranks=1)
    ids = [daemon.client.submit(blocked, idempotency_key=f"k{n}")["id"] for n in range(5)]
    daemon.kill()
    daemon.start()
    assert sorted(job["id"] for job in daemon.client.jobs()) == ids
    again = [daemon.client.submit(blocked, idempotency_key=f"k{n}")["id"] for n in range(5)]
    assert again == ids
    for job_id in ids:
        assert daemon.wait_for_end(job_id)["state"] == "succeeded"


def test_p1_what_jobs_wait_for_survives_a_kill(daemon: Daemon) -> None:
    daemon.start()
    first = daemon.client.submit(make_job("release exit=0", ranks=1))["id"]
    daemon.wait_for_state(first, "running")
    terms = {"after": [{"job": first}], "priority": 3}
    after = daemon.client.submit(make_job("exit=0", ranks=1), terms=terms)["id"]
    held = daemon.client.submit(make_job("exit=0", ranks=1), terms={"hold": True})["id"]
    daemon.client.edit(held, {"set": {"name": "edited"}})
    daemon.client.drain("a new driver")
    daemon.kill()
    daemon.start()
    known = {job["id"]: (job["state"], job["priority"]) for job in daemon.client.jobs()}
    assert known == {first: ("running", 0), after: ("waiting", 3), held: ("on_hold", 0)}
    (daemon.run_dir() / "release").touch()
    daemon.wait_for_end(first)
    assert daemon.wait_for_state(after, "queued")["attempts"] == []
    assert daemon.client.undrain()["drain"] is None
    assert daemon.client.release(held)["name"] == "edited"
    assert {daemon.wait_for_end(number)["state"] for number in (after, held)} == {"succeeded"}


@pytest.mark.parametrize(
    "point", [crash_points.LAUNCHING_COMMITTED, crash_points.SUPERVISOR_SPAWNED]
)
def test_p2_an_attempt_starts_once_though_the_daemon_dies_while_starting_it(
    daemon: Daemon, point: str
) -> None:
    daemon.start(ZEROTOOLSD_CRASH_AT=point)
    with suppress(DaemonUnreachable):
        daemon.client.submit(make_job("release exit=0"), idempotency_key="k")
    daemon.wait_for_death()
    daemon.start()
    wait_for_file(daemon.run_dir() / "waiting-0")
    wait_for_file(daemon.run_dir() / "waiting-1")
    job = daemon.wait_for_state(1, "running")
    assert [attempt["number"] for attempt in job["attempts"]] == [1]
    (daemon.run_dir() / "release").touch()
    job = daemon.wait_for_end(1)
    assert (job["state"], len(job["attempts"])) == ("succeeded", 1)
    starts = [e for e in daemon.client.events()["events"] if e["kind"] == "started"]
    assert len(starts) == 1
    assert not (daemon.run_dir(attempt=2)).exists()


def test_p2_an_end_that_was_seen_but_not_committed_is_not_forgotten(daemon: Daemon) -> None:
    daemon.start(ZEROTOOLSD_CRASH_AT=crash_points.END_SEEN)
    daemon.client.submit(make_job("steps=2 exit=0"))
    daemon.wait_for_death()
    job = daemon.start().wait_for_end(1)
    assert (job["state"], job["attempt"]["steps_done"]) == ("succeeded", 2)
    assert len(job["attempts"]) == 1


def test_p3_jobs_outlive_a_stopped_daemon_and_are_taken_up_again(daemon: Daemon) -> None:
    daemon.start()
    daemon.client.submit(make_job("release exit=0"))
    daemon.wait_for_state(1, "running")
    pids = daemon.pids()
    assert daemon.stop() == 0
    assert all(is_alive(pid) for pid in pids)
    daemon.start()
    assert daemon.client.job(1)["state"] == "running"
    (daemon.run_dir() / "release").touch()
    job = daemon.wait_for_end(1)
    assert (job["state"], job["attempt"]["exit_code"]) == ("succeeded", 0)
    assert daemon.pids() == pids


def test_p3_a_job_that_fails_while_the_daemon_is_dead_is_recorded(daemon: Daemon) -> None:
    daemon.start()
    daemon.client.submit(make_job("release exit=9", max_restarts=0))
    daemon.wait_for_state(1, "running")
    supervisor = daemon.pids()[0]
    daemon.kill()
    (daemon.run_dir() / "release").touch()
    wait_for(lambda: not is_alive(supervisor), "the supervisor to end")
    job = daemon.start().wait_for_end(1)
    assert (job["state"], job["attempt"]["exit_code"]) == ("failed", 9)
    assert "exited with 9; max_restarts = 0 allows no more restarts" in job["reason"]


def test_p3_a_daemon_that_was_stopped_for_a_while_goes_on_where_it_was(daemon: Daemon) -> None:
    daemon.start()
    daemon.client.submit(make_job("release exit=0", ranks=1))
    daemon.wait_for_state(1, "running")
    pids = daemon.pids()
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    (daemon.run_dir() / "release").touch()
    wait_for(lambda: not any(is_alive(pid) for pid in pids), "the job to end meanwhile")
    daemon.process.send_signal(signal.SIGCONT)
    job = daemon.wait_for_end(1)
    assert (job["state"], len(job["attempts"])) == ("succeeded", 1)


def test_p5_cancel_ends_every_process_also_a_detached_one(daemon: Daemon) -> None:
    daemon.start()
    daemon.client.submit(make_job("rank=0:orphan rank=1:child stop"))
    daemon.wait_for_state(1, "running")
    run = daemon.run_dir()
    left = [int(wait_for_file(run / name).read_text()) for name in ("orphan", "child")]
    wait_for(lambda: len(progress_of(run)) == 2, "both ranks to train")
    pids = [*daemon.pids(), *left]
    daemon.client.cancel(1)
    job = daemon.wait_for_end(1)
    assert job["state"] == "cancelled"
    assert job["reason"].endswith("saved at step 7 and stopped")
    assert job["latest_checkpoint"]["step"] == 7
    wait_for(lambda: not any(is_alive(pid) for pid in pids), "every process to end")


def test_p5_cancel_ends_a_rank_that_ignores_every_request(daemon: Daemon) -> None:
    daemon.config.write_text("[stop]\ngrace_seconds = 0.05\n")
    daemon.start()
    daemon.client.submit(make_job("deaf train steps=1 hang"))
    daemon.wait_for_state(1, "running")
    wait_for(lambda: len(progress_of(daemon.run_dir())) == 2, "both ranks to train")
    pids = daemon.pids()
    daemon.client.cancel(1)
    job = daemon.wait_for_end(1)
    assert job["state"] == "cancelled"
    assert "did not stop within 0.05 s" in job["reason"]
    wait_for(lambda: not any(is_alive(pid) for pid in pids), "every process to end")


def test_p5_cancel_works_though_the_run_directory_was_removed(daemon: Daemon) -> None:
    daemon.start()
    daemon.client.submit(make_job("release"))
    wait_for_file(daemon.run_dir() / "waiting-0")
    wait_for_file(daemon.run_dir() / "waiting-1")
    pids = daemon.pids()
    shutil.rmtree(daemon.run_dir())
    daemon.client.cancel(1)
    assert daemon.wait_for_end(1)["state"] == "cancelled"
    assert not any(is_alive(pid) for pid in pids)


def test_p5_a_cancel_that_was_committed_is_carried_out_by_the_next_daemon(
    daemon: Daemon,
) -> None:
    daemon.start(ZEROTOOLSD_CRASH_AT=crash_points.CANCEL_COMMITTED)
    daemon.client.submit(make_job("stop"))
    daemon.wait_for_state(1, "running")
    wait_for(lambda: len(progress_of(daemon.run_dir())) == 2, "both ranks to train")
    with pytest.raises(DaemonUnreachable):
        daemon.client.cancel(1)
    daemon.wait_for_death()
    job = daemon.start().wait_for_end(1)
    assert (job["state"], job["attempt"]["cause"]) == ("cancelled", "saved at step 7 and stopped")


def test_p5_the_processes_of_a_killed_supervisor_are_ended(daemon: Daemon) -> None:
    daemon.start()
    daemon.client.submit(make_job("steps=2 attempt=1:orphan attempt=1:hang exit=0", ranks=1))
    orphan = int(wait_for_file(daemon.run_dir() / "orphan").read_text())
    wait_for(lambda: noted_at_step(2, daemon.run_dir()), "the supervisor to note steps and memory")
    supervisor = daemon.pids()[0]
    os.kill(supervisor, signal.SIGKILL)
    job = daemon.wait_for_end(1)
    assert job["state"] == "succeeded"
    first = job["attempts"][0]
    assert first["cause"].startswith("lost: its supervisor was killed")
    assert first["steps_done"] == 2
    assert first["peak_host_bytes"] > 2**20
    assert not is_alive(orphan)


@pytest.mark.parametrize(
    ("daemon_lives", "cgroups"), [(True, "false"), (False, "false"), (False, "true")]
)
def test_p5_what_hides_from_a_killed_supervisor_and_keeper_is_ended_before_the_next_attempt(
    daemon: Daemon, daemon_lives: bool, cgroups: str
) -> None:
    daemon.config.write_text(f"[limits]\ncgroups = {cgroups}\n[retry]\nfirst_seconds = 0.01\n")
    daemon.start()
    daemon.client.submit(make_job("attempt=1:escape steps=2 attempt=1:hang exit=0", ranks=1))
    hidden = int(wait_for_file(daemon.run_dir() / "escape").read_text())
    identity = read_process(hidden)
    assert identity is not None
    key = (hidden, identity.start_ticks)
    note = daemon.run_dir() / "family"
    if cgroups == "false":
        wait_for(lambda: key in read_process_tree(note).known, "the supervisor to note it")
    run = read_json(daemon.run_dir() / "run.json")
    assert run is not None
    if not daemon_lives:
        daemon.kill()
    for pid in (run["keeper"]["pid"], run["pid"]):
        os.kill(pid, signal.SIGKILL)
    if not daemon_lives:
        assert is_alive(hidden)
        daemon.start()
    job = daemon.wait_for_end(1)
    assert job["state"] == "succeeded"
    assert job["attempts"][0]["cause"].endswith("of its processes were ended")
    assert not is_alive(hidden)
    assert not note.exists()


def test_p5_a_supervisor_that_was_stopped_is_told_of_and_hears_a_cancel(daemon: Daemon) -> None:
    daemon.config.write_text("[stop]\ngrace_seconds = 0.05\n")
    daemon.start()
    daemon.client.submit(make_job("train steps=1 deaf hang"))
    pids = daemon.pids()
    wait_for(lambda: len(progress_of(daemon.run_dir())) == 2, "both ranks to train")
    run = read_json(daemon.run_dir() / "run.json")
    assert run is not None
    for pid in (run["keeper"]["pid"], pids[0]):
        os.kill(pid, signal.SIGSTOP)
    said = f"its supervisor, pid {pids[0]}, is stopped"
    wait_for(lambda: said in (daemon.client.job(1)["reason"] or ""), "the stop to be seen")
    daemon.client.cancel(1)
    assert daemon.wait_for_end(1)["state"] == "cancelled"
    assert not any(is_alive(pid) for pid in pids)


def test_p5_a_supervisor_that_was_stopped_is_woken_once_its_job_has_ended(daemon: Daemon) -> None:
    daemon.start()
    daemon.client.submit(make_job("release exit=0", ranks=1))
    daemon.wait_for_state(1, "running")
    wait_for_file(daemon.run_dir() / "waiting-0")
    os.kill(daemon.pids()[0], signal.SIGSTOP)
    (daemon.run_dir() / "release").touch()
    assert daemon.wait_for_end(1)["state"] == "succeeded"


def test_p9_a_full_disk_refuses_submits_and_lets_jobs_go_on(daemon: Daemon) -> None:
    daemon.start()
    daemon.client.submit(make_job("release steps=3 exit=0"))
    daemon.wait_for_state(1, "running")
    wait_for_file(daemon.run_dir() / "waiting-0")
    assert daemon.process is not None
    pid, (_, most) = daemon.process.pid, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))
    with pytest.raises(DaemonRefused, match="the job cannot be queued: writing the queue failed"):
        daemon.client.submit(make_job("exit=0"))
    assert daemon.client.job(1)["state"] == "running"
    (daemon.run_dir() / "release").touch()
    wait_for_file(daemon.run_dir() / "exit.json")
    assert daemon.client.job(1)["state"] == "running"
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
    assert daemon.wait_for_end(1)["attempt"]["steps_done"] == 3
    assert len(daemon.client.jobs()) == 1


def test_p9_a_full_disk_does_not_end_the_supervisor(daemon: Daemon) -> None:
    daemon.start()
    daemon.client.submit(make_job("release steps=3 exit=0"))
    wait_for_file(daemon.run_dir() / "waiting-1")
    supervisor, *ranks = daemon.pids()
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.prlimit(supervisor, resource.RLIMIT_FSIZE, (0, most))
    (daemon.run_dir() / "release").touch()
    wait_for(lambda: not any(is_alive(pid) for pid in ranks), "the ranks to end")
    assert is_alive(supervisor)
    resource.prlimit(supervisor, resource.RLIMIT_FSIZE, (most, most))
    job = daemon.wait_for_end(1)
    assert (job["state"], len(job["attempts"])) == ("succeeded", 1)
    assert job["attempt"]["steps_done"] == 3


def test_p6_a_job_that_garbles_its_own_records_does_not_stop_the_daemon(daemon: Daemon) -> None:
    daemon.start()
    daemon.client.submit(make_job("release", max_restarts=0))
    daemon.wait_for_state(1, "running")
    run = daemon.run_dir()
    pids = daemon.pids()
    token = (read_json(run / "run.json") or {})["token"]
    daemon.kill()
    write_json(run / "exit.json", {"token": token, "outcome": "finished", "checkpoint": {}})
    job = daemon.start().wait_for_end(1)
    assert job["state"] == "failed"
    assert "exit.json" in job["reason"]
    wait_for(lambda: not any(is_alive(pid) for pid in pids[1:]), "its ranks to end")


def test_p6_jobs_that_this_version_cannot_read_do_not_hide_the_others(daemon: Daemon) -> None:
    daemon.start()
    daemon.client.submit(make_job("exit=0", name="old"))
    daemon.wait_for_end(1)
    daemon.client.submit(make_job("release exit=0", name="runs"))
    daemon.wait_for_state(2, "running")
    wait_for_file(daemon.run_dir(2) / "waiting-0")  # else the next daemon fences the attempt
    daemon.kill()
    with closing(sqlite3.connect(daemon.state / "zerotools.db")) as store, store:
        store.execute("UPDATE job SET spec = '{\"gone\": 1}', spec_given = NULL")
    daemon.start()
    jobs = {job["name"]: job for job in daemon.client.jobs()}
    assert {name: job["state"] for name, job in jobs.items()} == {
        "old": "succeeded",
        "runs": "running",
    }
    assert "gone is a key that this version does not know" in jobs["old"]["reason"]
    daemon.client.submit(make_job("exit=0", ranks=1, name="new"))
    assert daemon.wait_for_end(3)["state"] == "succeeded"
    (daemon.run_dir(2) / "release").touch()
    assert daemon.wait_for_end(2)["state"] == "succeeded"

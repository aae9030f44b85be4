"""Which attempts follow another, from where, and how many: with real processes."""

from __future__ import annotations

import os
import signal

from tests.daemon.daemons import Daemon, make_job
from tests.daemon.made_attempts import progress_of
from tests.daemon.waiting import wait_for
from zerotoolsd.supervisor.durable_files import read_json


def test_a_crashed_job_resumes_from_its_newest_checkpoint(daemon: Daemon) -> None:
    daemon.start()
    daemon.client.submit(make_job("train save=5 attempt=1:signal=9 save=9 exit=0", ranks=1))
    job = daemon.wait_for_end(1)
    assert job["state"] == "succeeded"
    first, second = job["attempts"]
    assert (first["signal"], first["resumed_from"]) == (9, None)
    assert second["resumed_from"] == f"{job['output_dir']}/step-00000005"
    # What the daemon found by size is not an order: the ranks choose again, by digest.
    spec = read_json(daemon.run_dir(attempt=2) / "spec.json")
    assert spec is not None
    assert "resume_from" not in spec
    assert job["latest_checkpoint"]["step"] == 9


def test_a_crash_loop_ends_with_the_restarts(daemon: Daemon) -> None:
    daemon.config.write_text("[retry]\nfirst_seconds = 0.0\n")
    daemon.start()
    daemon.client.submit(make_job("exit=1", ranks=1, max_restarts=2, retry="always"))
    job = daemon.wait_for_end(1)
    assert (job["state"], len(job["attempts"])) == ("failed", 3)
    assert job["reason"] == "rank 0 exited with 1; max_restarts = 2 allows no more restarts"


def test_what_would_come_again_is_not_repeated(daemon: Daemon) -> None:
    daemon.config.write_text("[retry]\nfirst_seconds = 0.0\n")
    daemon.start()
    daemon.client.submit(make_job("exit=2", ranks=1))
    daemon.client.submit(make_job("exit=1", ranks=1))
    wrong, again = daemon.wait_for_end(1), daemon.wait_for_end(2)
    assert (wrong["state"], len(wrong["attempts"])) == ("failed", 1)
    assert wrong["reason"] == (
        "rank 0 exited with 2; not started again: exit status 2 means that the program got "
        "wrong arguments, so it would fail again"
    )
    assert (again["state"], len(again["attempts"])) == ("failed", 2)
    assert again["reason"].endswith(
        "the previous attempt ended with the same error before its first step, and this attempt "
        "got no further"
    )


def test_ranks_that_stop_without_being_asked_are_not_started_for_ever(daemon: Daemon) -> None:
    daemon.start()
    daemon.client.submit(make_job("steps=2 exit=75", ranks=1, max_restarts=1))
    job = daemon.wait_for_end(1)
    assert (job["state"], len(job["attempts"])) == ("failed", 2)
    assert (
        job["reason"]
        == "stopped at step 2 without a request; max_restarts = 1 allows no more restarts"
    )


def test_a_job_whose_supervisor_is_stopped_from_outside_waits_and_counts(daemon: Daemon) -> None:
    daemon.start()
    daemon.client.submit(make_job("attempt=1:stop exit=0", ranks=1))
    wait_for(lambda: progress_of(daemon.run_dir()), "the rank to train")
    os.kill(daemon.pids()[0], signal.SIGTERM)
    job = daemon.wait_for_end(1)
    assert job["state"] == "succeeded"
    assert job["attempts"][0]["cause"] == (
        "saved at step 7 and stopped by a SIGTERM that zerotools did not send"
    )
    kinds = [event["kind"] for event in daemon.client.events()["events"]]
    assert kinds[2:6] == ["started", "crashed", "retry", "admit"]

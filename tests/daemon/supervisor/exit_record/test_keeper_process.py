"""The end of an attempt is on record though the supervisor is killed at the worst moments."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.made_attempts import is_alive, make_attempt, own_token
from tests.daemon.waiting import wait_for
from zerotoolsd.attempts import attempt_status
from zerotoolsd.supervisor.attempt_plan import ATTEMPT, EXIT, RUN, Plan
from zerotoolsd.supervisor.durable_files import ReservedRecord, read_json, write_json
from zerotoolsd.supervisor.exit_record.keeper_process import Records, run_keeper
from zerotoolsd.supervisor.exit_record.process_ledgers import RankLedger
from zerotoolsd.supervisor.main import supervise
from zerotoolsd.supervisor.rank_reports import Progress
from zerotoolsd.supervisor.start_ranks import become_subreaper
from zerotoolsd.supervisor.supervise_loop import RankMonitor

Act = Callable[[Plan, Records, RankLedger], None]


class Deadly(ReservedRecord):
    """A record at whose writing the process is killed."""

    def __init__(self, inner: ReservedRecord, which: int = signal.SIGKILL) -> None:
        self._inner = inner
        self._which = which

    def write(self, record: Mapping[str, Any], sleep: Any = None) -> bool:
        os.kill(os.getppid() if self._which == 0 else os.getpid(), signal.SIGKILL)
        return self._inner.write(record)

    def drop(self) -> None:
        self._inner.drop()


def kept(run: Path, act: Act) -> tuple[int, dict[str, Any] | None]:
    """Wait status of a keeper whose supervisor does `act`; what is on record then."""
    pid = os.fork()
    if not pid:
        status = 70
        try:
            os.chdir(run)
            # Not the terminal's nor the test's own.
            log = os.open("supervisor.log", os.O_CREAT | os.O_WRONLY, 0o600)
            os.dup2(log, 1), os.dup2(log, 2)
            become_subreaper()
            plan = Plan.from_json(read_json(Path(ATTEMPT)) or {})
            status = run_keeper(plan, lambda records, ledger: act(plan, records, ledger))
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    return status, read_json(run / EXIT)


def until_exit(plan: Plan, records: Records, ledger: RankLedger) -> None:
    supervise(plan, Records(Deadly(records.exit), records.ended), ledger)


def until_ended(plan: Plan, records: Records, ledger: RankLedger) -> None:
    assert records.ended is not None
    supervise(plan, Records(records.exit, Deadly(records.ended)), ledger)


@pytest.mark.parametrize("kill", [until_exit, until_ended])
def test_ranks_that_have_finished_are_a_finished_attempt(tmp_path: Path, kill: Act) -> None:
    run = make_attempt(tmp_path / "run", "steps=3 exit=0", closing=("/bin/true",))
    status, record = kept(run, kill)
    assert (status, record and record["outcome"]) == (0, "finished")
    assert record is not None
    assert record["closing"] == {"why": "its supervisor was killed before the attempt had ended"}
    assert [rank["exit_code"] for rank in record["ranks"]] == [0, 0]
    assert not (run / "notify.sock").exists()


@pytest.mark.parametrize("kill", [until_exit, until_ended])
def test_an_upload_that_was_cut_off_is_told_of(tmp_path: Path, kill: Act) -> None:
    run = make_attempt(tmp_path / "run", "steps=3 exit=0", uploading=("/bin/true",))
    _, record = kept(run, kill)
    assert record is not None
    assert record["outcome"] == "finished"
    assert record["uploading"] == {"why": "its supervisor was killed before the attempt had ended"}


@pytest.mark.parametrize(("reason", "is_told"), [("cancel", True), ("preempt", False)])
def test_an_upload_after_a_stop_that_was_cut_off_is_told_of(
    tmp_path: Path, reason: str, is_told: bool
) -> None:
    run = make_attempt(tmp_path / "run", "exit=75", uploading=("/bin/true",))
    (run / "stop").write_text(reason)
    _, record = kept(run, until_exit)
    assert record is not None
    assert (record["outcome"], "uploading" in record) == ("stopped", is_told)


@pytest.mark.parametrize(
    ("fake", "own_program", "outcome", "cause"),
    [
        ("exit=64", False, "bad_job", "rank 0 exited with 64"),
        ("rank=1:exit=9 hang", False, "crashed", "rank 1 exited with 9"),
        ("rank=1:signal=9 hang", False, "crashed", "rank 1 was ended by signal 9 (SIGKILL)"),
        ("exit=0", True, "finished", "finished"),
        ("exit=3", True, "crashed", "rank 0 exited with 3"),
    ],
)
def test_a_rank_s_own_end_is_told_as_the_supervisor_had_told_it(
    tmp_path: Path, fake: str, own_program: bool, outcome: str, cause: str
) -> None:
    run = make_attempt(tmp_path / "run", fake, own_program=own_program)
    _, record = kept(run, until_exit)
    assert record is not None
    assert record["outcome"] == outcome
    assert record["cause"].startswith(cause)
    assert record["cause"].endswith("; its supervisor was killed")


def test_a_stop_is_passed_on_though_the_supervisor_is_faster_than_its_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the ranks may run before the keeper does anything after its fork."""

    def act(plan: Plan, records: Records, ledger: RankLedger) -> None:
        os.kill(os.getppid(), signal.SIGTERM)
        supervise(plan, records, ledger)

    def fork_slowly() -> int:
        pid = fork()
        if pid and os.getppid() == test:  # this is the keeper
            wait_for(lambda: signal.SIGTERM in signal.sigpending(), "the stop")
        return pid

    run = make_attempt(tmp_path / "run", "hang")
    write_json(run / "request.json", {"reason": "pause"})
    fork, test = os.fork, os.getpid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fork", fork_slowly)
        status, record = kept(run, act)
    assert (status, record and record["outcome"]) == (0, "stopped")


def test_a_stop_after_the_supervisor_was_reaped_reaches_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have its pid by then."""

    def waitpid_and_stop(pid: int, options: int) -> tuple[int, int]:
        found = waitpid(pid, options)
        if os.getppid() == test:  # this is the keeper
            patched.setattr(os, "kill", lambda *_: os._exit(99))
            signal.raise_signal(signal.SIGTERM)
        return found

    run = make_attempt(tmp_path / "run", "exit=0")
    waitpid, test = os.waitpid, os.getpid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "waitpid", waitpid_and_stop)
        status, record = kept(run, supervise)
    assert (status, record and record["outcome"]) == (0, "finished")


def test_ranks_that_end_while_the_supervisor_is_gone_are_known(tmp_path: Path) -> None:
    """Not reaped by anybody: the kernel keeps their ends for the keeper."""

    def act(plan: Plan, records: Records, ledger: RankLedger) -> None:
        (Path("run.json")).write_text('{"token": "' + plan.token + '"}')
        ledger.begin()
        for index in range(2):
            ledger.started(index, os.posix_spawn(sys.executable, ("python", "-I", "-c", ""), {}))
        for _ in range(2):  # zombies of both
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        wait_for(lambda: not any(is_alive(line.pid or 0) for line in ledger.lines()), "the ends")
        os.kill(os.getpid(), signal.SIGKILL)

    run = make_attempt(tmp_path / "run", "")
    _, record = kept(run, act)
    assert record is not None
    assert (record["outcome"], record["cause"]) == (
        "finished",
        "finished; its supervisor was killed",
    )


def test_nothing_that_has_not_begun_is_over(tmp_path: Path) -> None:
    def at_once(plan: Plan, records: Records, ledger: RankLedger) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def before_the_ranks(plan: Plan, records: Records, ledger: RankLedger) -> None:
        (Path("run.json")).write_text('{"token": "' + plan.token + '"}')
        at_once(plan, records, ledger)

    assert kept(make_attempt(tmp_path / "a", ""), at_once) == (1 << 8, None)
    _, record = kept(make_attempt(tmp_path / "b", ""), before_the_ranks)
    assert record is not None
    assert record["outcome"] == "not_ready"


def test_an_error_of_the_supervisor_is_no_end_of_the_record(tmp_path: Path) -> None:
    def fails(plan: Plan, records: Records, ledger: RankLedger) -> None:
        supervise(plan, Records(None, None), ledger)  # type: ignore[arg-type]

    run = make_attempt(tmp_path / "run", "steps=1 exit=0")
    _, record = kept(run, fails)
    assert record is not None
    assert record["outcome"] == "finished"


@pytest.mark.parametrize(
    ("error", "outcome", "cause"),
    [
        (
            OSError(errno.ENOSPC, "full"),
            "not_ready",
            "its supervisor could not continue: No space left on device",
        ),
        (OSError(errno.EPERM, "no"), "lost", "lost: its supervisor was killed"),
    ],
)
def test_a_supervisor_that_the_machine_lets_down_is_not_the_job_s_fault(
    tmp_path: Path, error: OSError, outcome: str, cause: str
) -> None:
    def fails(plan: Plan, records: Records, ledger: RankLedger) -> None:
        write_json(Path(RUN), {"token": plan.token})
        ledger.begin()
        raise error

    _, record = kept(make_attempt(tmp_path / "run", ""), fails)
    assert record is not None
    assert (record["outcome"], record["cause"]) == (outcome, cause)


def test_ranks_run_on_though_their_pids_cannot_be_noted_yet(tmp_path: Path) -> None:
    def act(plan: Plan, records: Records, ledger: RankLedger) -> None:
        monitor = RankMonitor(plan, Progress(), ledger)
        monitor.spawn()
        in_the_way = Path(f".{RUN}.{os.getpid()}.new")
        in_the_way.mkdir()
        monitor.note_ranks({"token": plan.token})
        write_json(Path("seen.json"), {"before": Path(RUN).exists()})
        in_the_way.rmdir()
        monitor.run()

    waits = "for i in $(seq 2000); do grep -qs ranks run.json && exit 0; sleep 0.01; done; exit 1"
    argv, run_dir = ("/bin/sh", "-c", waits), tmp_path / "run"
    made = make_attempt(run_dir, "", argv=argv, cwd=str(run_dir))
    kept(made, act)
    assert read_json(made / "seen.json") == {"before": False}
    run = read_json(made / RUN)
    assert run is not None
    assert [line["rank"] for line in run["ranks"]] == list(range(len(run["ranks"])))
    assert run["ranks"]


def test_the_supervisor_needs_no_keeper(tmp_path: Path) -> None:
    def keeper_is_killed(plan: Plan, records: Records, ledger: RankLedger) -> None:
        supervise(plan, Records(Deadly(records.exit, 0), records.ended), ledger)

    run = make_attempt(tmp_path / "run", "steps=1 exit=0")
    status, _ = kept(run, keeper_is_killed)
    assert os.WTERMSIG(status) == signal.SIGKILL
    record = wait_for(lambda: read_json(run / EXIT), "the record")
    assert (record["outcome"], "by_keeper" in record) == ("finished", False)


def test_ranks_for_which_there_are_no_descriptors_are_not_the_job_s_fault(tmp_path: Path) -> None:
    def act(plan: Plan, records: Records, ledger: RankLedger) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = len(list(Path("/proc/self/fd").iterdir()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 10, hard))
        supervise(plan, records, ledger)

    _, record = kept(make_attempt(tmp_path / "run", "exit=0"), act)
    assert record is not None
    assert record["outcome"] == "not_ready"
    assert record["cause"].endswith("cannot be started: Too many open files")
    assert all(rank["killed"] for rank in record["ranks"])


def both_killed(run: Path, act: Act) -> attempt_status.AttemptStatus:
    """What the daemon finds where supervisor and keeper were killed in one moment."""

    def then_both(plan: Plan, records: Records, ledger: RankLedger) -> None:
        os.kill(os.getppid(), signal.SIGSTOP)  # it does nothing any more
        act(plan, records, ledger)

    pid = os.fork()
    if not pid:
        try:
            os._exit(kept(run, then_both)[0] & 0xFF)
        finally:
            os._exit(70)
    own = wait_for(lambda: (r := read_json(run / "run.json")) and "ranks" in r and r, "the ranks")
    wait_for(lambda: not is_alive(own["pid"]), "the supervisor to be killed")
    os.kill(own["keeper"]["pid"], signal.SIGKILL)
    os.waitpid(pid, 0)
    return attempt_status.run_dir_status(run, own_token())


@pytest.mark.parametrize(
    ("fake", "outcome"), [("exit=0", "finished"), ("rank=0:exit=3 rank=1:exit=0", "crashed")]
)
def test_ends_that_were_noted_are_known_though_both_are_killed_at_once(
    tmp_path: Path, fake: str, outcome: str
) -> None:
    run = make_attempt(tmp_path / "run", fake, straggler_seconds=0.5)
    found = both_killed(run, until_exit)
    assert isinstance(found, attempt_status.Gone)
    assert found.record is not None
    assert found.record["outcome"] == outcome
    assert found.record["cause"].endswith("; its supervisor and its keeper were killed")


def test_a_rank_that_was_running_when_both_were_killed_is_lost(tmp_path: Path) -> None:
    def when_both_run(plan: Plan, records: Records, ledger: RankLedger) -> None:
        if not os.fork():
            wait_for(lambda: Path("waiting-0").exists() and Path("waiting-1").exists(), "both")
            os.kill(os.getppid(), signal.SIGKILL)
            os._exit(0)
        supervise(plan, records, ledger)

    found = both_killed(make_attempt(tmp_path / "run", "release exit=0"), when_both_run)
    assert isinstance(found, attempt_status.Gone)
    assert found.record is not None
    assert found.record["outcome"] == "lost"

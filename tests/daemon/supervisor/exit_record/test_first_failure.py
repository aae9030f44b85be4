"""Which rank began it: rules and the signs that they go by."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from zerotoolsd.supervisor.exit_record.decide_outcome import (
    is_abnormal,
    judge_one_node,
    judge_ranks,
    judge_stalled,
    judge_watched,
)
from zerotoolsd.supervisor.exit_record.first_failure import (
    LONGEST,
    error_line,
    first_failed_rank,
    last_error,
)
from zerotoolsd.supervisor.start_ranks import KnownRank

CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"
TIMEOUT = "RuntimeError: Timed out waiting 600000ms for recv operation to complete"
WATCHDOG = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812)"
KILLED, ABORTED, CRASHED = int(signal.SIGKILL), int(signal.SIGABRT), int(signal.SIGSEGV)


class LoggedRank(KnownRank):
    def __init__(self, index: int, status: int, at: float | None, log: str, **more: Any) -> None:
        super().__init__(index, status, ended_clock=at, **more)
        self.log_text = log

    def last_lines(self) -> str:
        return self.log_text


def exited(index: int, code: int, at: float | None, log: str = "") -> LoggedRank:
    return LoggedRank(index, code << 8, at, log)


def ended(index: int, number: int, at: float | None, log: str = "") -> LoggedRank:
    return LoggedRank(index, number, at, log)


def killed(index: int, at: float, log: str = "") -> LoggedRank:
    return LoggedRank(index, KILLED, at, log, killed=True)


def error(rank: int, clock: float, message: str) -> dict[str, Any]:
    return {"rank": rank, "clock": clock, "message": message, "event": "error"}


CASES: dict[str, tuple[list[LoggedRank], list[dict[str, Any]], int | None, int]] = {
    "one raises, the others lose it": (
        [exited(0, 1, 20.2), exited(1, 1, 20.1), exited(2, 1, 20.2)],
        [error(1, 20.0, "ValueError: no"), error(0, 20.15, CLOSED), error(2, 20.16, CLOSED)],
        None,
        1,
    ),
    "the others tell of it before it tells itself": (
        [exited(0, 1, 20.2), exited(1, 1, 20.1), exited(2, 1, 20.2)],
        [error(0, 20.0, CLOSED), error(2, 20.0, CLOSED), error(1, 20.1, "ValueError: no")],
        None,
        1,
    ),
    "it ends without a word": (
        [exited(0, 1, 20.2), exited(1, 3, 20.2), exited(2, 1, 20.2)],
        [error(0, 20.0, CLOSED), error(2, 20.1, CLOSED)],
        None,
        1,
    ),
    "it is killed from outside": (
        [exited(0, 1, 20.1), exited(1, 1, 20.1), ended(2, KILLED, 20.1)],
        [error(0, 20.0, "Oops: peer"), error(1, 20.0, CLOSED)],
        None,
        2,
    ),
    "an own error long before a crash of another": (
        [ended(0, CRASHED, 20.6), exited(1, 1, 20.1)],
        [error(1, 20.0, "ValueError: no")],
        None,
        1,
    ),
    "a crash, and errors after it": (
        [exited(0, 1, 20.3), ended(1, CRASHED, 20.0)],
        [error(0, 20.2, "Oops: peer")],
        None,
        1,
    ),
    "all wait for one that we then kill": (
        [exited(0, 1, 20.0), killed(1, 21.0), exited(2, 1, 20.0)],
        [error(0, 20.0, TIMEOUT), error(2, 20.0, TIMEOUT)],
        None,
        1,
    ),
    "one of those that gave up was killed while it was ending": (
        [exited(0, 1, 20.0, TIMEOUT), killed(1, 21.0), killed(2, 21.0, TIMEOUT)],
        [],
        None,
        1,
    ),
    "two are left, and heartbeats say which was waited for": (
        [exited(0, 1, 20.0), killed(1, 21.0), killed(2, 21.0)],
        [error(0, 20.0, TIMEOUT)],
        2,
        2,
    ),
    "NCCL's watchdog aborts those that wait": (
        [ended(0, ABORTED, 20.0, WATCHDOG), killed(1, 21.0), ended(2, ABORTED, 20.1, WATCHDOG)],
        [],
        None,
        1,
    ),
    "NCCL's desync report names it": (
        [
            ended(
                0,
                ABORTED,
                20.0,
                "ranks that caused the desync are:\n   - [2] joined but\n" + WATCHDOG,
            ),
            killed(1, 21.0),
            killed(2, 21.0),
        ],
        [],
        1,
        2,
    ),
    "gloo's monitored barrier names it": (
        [exited(0, 1, 20.0), killed(1, 21.0), killed(2, 21.0)],
        [error(0, 20.0, "[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 30000 ms")],
        None,
        1,
    ),
    "only the logs of a user's program tell": (
        [exited(0, 1, 20.0, CLOSED), exited(1, 1, 20.05, "ZeroDivisionError: division by zero")],
        [],
        None,
        1,
    ),
    "nothing but followers": (
        [exited(0, 1, 20.1, CLOSED), exited(1, 1, 20.0, CLOSED)],
        [],
        None,
        1,
    ),
    "as the keeper sees it, without clocks": (
        [exited(0, 1, None), ended(1, KILLED, None)],
        [],
        None,
        1,
    ),
    "a refusal, which all ranks raise": (
        [exited(0, 64, 20.1), exited(1, 1, 20.0)],
        [error(1, 20.0, "ValueError: no"), error(0, 20.1, "model.path: no such directory")],
        None,
        0,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rank_that_began_it_is_found(case: str) -> None:
    ranks, errors, awaited, expected = CASES[case]
    broken = [rank for rank in ranks if is_abnormal(rank)]
    assert first_failed_rank(ranks, broken, errors, awaited).rank.index == expected


class Told:
    trained, steps_done, checkpoint, awaited, finished = True, 811, None, None, False

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        self.errors = errors


def cause_of(*ranks: KnownRank, errors: list[dict[str, Any]] | None = None) -> str:
    return judge_ranks(ranks, Told(errors or []), stop=None, killed_because=None).cause


def test_the_cause_says_what_is_known_of_a_sigkill() -> None:
    def cause(*, oom: bool | None) -> str:
        return cause_of(LoggedRank(0, KILLED, 1.0, "", oom_killed=oom))

    began = "rank 0 was ended by signal 9 (SIGKILL)"
    assert cause(oom=None) == f"{began}, which the kernel does when memory runs out"
    assert "the kernel has just killed a process of this machine" in cause(oom=True)
    assert "not from the kernel for lack of memory" in cause(oom=False)


def test_a_program_that_ends_with_0_as_it_stalled_is_not_finished() -> None:
    ranks = [exited(0, 0, 9.0)]
    finished = judge_ranks(ranks, Told([]), stop=None, killed_because=None)
    told = "neither output nor a report for 60 s"
    own = judge_stalled(finished, told, None, ranks, own_program=True)
    assert (own.outcome, own.cause) == (
        "crashed",
        f"ended, because {told}; after that it saved and stopped",
    )
    ours = judge_stalled(finished, told, None, ranks, own_program=False)
    assert ours.outcome == "finished", "it got on after all, to its end"


def test_the_cause_says_that_a_rank_did_not_answer() -> None:
    cause = cause_of(exited(0, 1, 9.0), killed(1, 10.0), errors=[error(0, 9.0, TIMEOUT)])
    assert cause == f"rank 1 did not answer the other ranks, and was killed; their error: {TIMEOUT}"


def test_a_machine_that_is_not_ready_is_told_by_the_rank_and_not_by_its_status() -> None:
    def outcome(*errors: dict[str, Any]) -> str:
        told = Told(list(errors))
        return judge_ranks([exited(0, 69, 1.0)], told, stop=None, killed_because=None).outcome

    said = error(0, 1.0, "/data/out: Stale file handle")
    assert outcome({**said, "kind": "not_ready"}) == "not_ready"
    assert outcome(said) == outcome() == "crashed"


@pytest.mark.parametrize(
    ("ranks", "errors", "outcome"),
    [
        # Both ranks of this node lost one of another.
        ([exited(0, 1, 9.0), exited(1, 1, 9.1)], [error(0, 9.0, CLOSED), error(1, 9.0, CLOSED)], 1),
        # One was killed by us as the other had failed, and had not noticed.
        ([exited(0, 1, 9.0), killed(1, 10.0)], [error(0, 9.0, CLOSED)], 1),
        ([ended(0, ABORTED, 9.0, "ncclRemoteError: remote process exited")], [], 1),
        # A rank of this node began it.
        ([exited(0, 1, 9.0), ended(1, KILLED, 9.0)], [error(0, 9.0, CLOSED)], 0),
        ([exited(0, 1, 9.0), exited(1, 1, 9.0)], [error(0, 9.0, CLOSED), error(1, 9.1, "no")], 0),
        # What is not of the ranks' own network.
        ([exited(0, 1, 9.0)], [error(0, 9.0, "BrokenPipeError: [Errno 32] Broken pipe")], 0),
        ([exited(0, 1, 9.0)], [error(0, 9.0, "OSError: [Errno 111] Connection refused")], 0),
        ([exited(0, 1, 9.0)], [error(0, 9.0, "ConnectionError: ('Connection aborted.',")], 0),
        # One of this node had ended before.
        ([exited(0, 1, 9.0), exited(1, 0, 8.0)], [error(0, 9.0, CLOSED)], 0),
        # Nobody went: they waited in vain, and that may be for a rank of this node.
        ([exited(0, 1, 9.0), exited(1, 1, 9.0)], [error(n, 9.0, TIMEOUT) for n in (0, 1)], 0),
    ],
)
def test_a_node_that_lost_another_is_not_the_one_that_failed(
    ranks: list[LoggedRank], errors: list[dict[str, Any]], outcome: int
) -> None:
    found = judge_one_node(ranks, Told(errors), stop=None, killed_because=None)
    assert found.outcome == ("crashed", "not_ready")[outcome]
    if outcome:
        assert found.cause.startswith("another node of the job is gone (")


def test_a_watcher_that_was_stopped_before_it_listened_has_ended_nothing() -> None:
    ranks = [ended(0, signal.SIGTERM, 1.0)]
    found = judge_watched(ranks, Told([]), stop="cancel", killed_because=None)
    assert (found.outcome, found.cause) == ("stopped", "no longer watched; the process continues")
    assert judge_watched(ranks, Told([]), stop=None, killed_because=None).outcome == "crashed"


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
LOST = "RuntimeError: [..] Connection closed by peer [127.0.0.1]:4711"


def traceback(error: str, rank: str = "") -> str:
    lines = ("Traceback (most recent call last):", '  File "a.py", line 3, in f', "    g()", error)
    return "\n".join(rank + line for line in lines)


TORCHRUN = f"""{traceback(OOM)}
step 1
W1128 17:56:04 1725 torch/distributed/elastic/multiprocessing/api.py:1028] Sending closing signal
E1128 17:56:04 1725 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)
{traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")}
============================================================
train.py FAILED
Root Cause (first observed failure):
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 2447)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
"""
DEEPSPEED = f"""{traceback(OOM, "[rank0]: ")}
{traceback(LOST, "[rank1]: ")}
[2026-11-28 17:56:04,480] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 4711
[2026-11-28 17:56:05,480] [ERROR] [launch.py:322:sigkill_handler] ['python', 'a.py'] exits with 1
"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  |     raise ExceptionGroup("many", [ValueError("a"), TypeError("b")])
  | ExceptionGroup: many (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 1, in f
    | ValueError: a
    +---------------- 2 ----------------
    | TypeError: b
    +------------------------------------
"""
CHAINED_GROUP = f"{GROUP}\nDuring handling ..:\n\n{traceback(OOM)}"
ACCELERATE = traceback(OOM) + "\n" + traceback("subprocess.CalledProcessError: Command '..' failed")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (traceback(OOM), OOM),
        (f"{traceback('KeyError: 1')}\n\nDuring handling ..:\n\n{traceback(OOM)}\nbye", OOM),
        (TORCHRUN, OOM),
        (DEEPSPEED, OOM),
        (ACCELERATE, OOM),
        (f"{traceback(OOM)}\n{traceback(LOST)}", OOM),
        (traceback(LOST), LOST),
        (
            "step 1\nbash: line 1: trian: command not found",
            "bash: line 1: trian: command not found",
        ),
        ("sh: 1: trian: not found", "sh: 1: trian: not found"),
        ("\x1b[31mfatal: \x1b[1mno data\x1b[0m\n", "fatal: no data"),
        ("loss 3.2\rloss 3.1\rError: the disk is gone\n", "Error: the disk is gone"),
        (GROUP, "ExceptionGroup: many (2 sub-exceptions)"),
        (CHAINED_GROUP, OOM),
        (f"{traceback('torch.distributed.elastic.x.ChildFailedError: ')}\nxx", None),
        ("train.py: error: argument --lr: invalid float value", None),
        ("loss 3.2\nloss 3.1\nall saved", None),
        ("", None),
    ],
)
def test_the_line_with_the_reason_is_found(text: str, line: str | None) -> None:
    found = error_line(text)
    assert found == (text if text.startswith("train.py") else line)


def test_a_line_is_bounded_and_no_output_takes_long() -> None:
    assert len(error_line("Error: " + "x" * 60_000) or "") == LONGEST
    for text in (
        "[" * 65_536,
        "a." * 32_768,
        "\x1b[" * 32_768,
        f"{traceback('')}\n{'a.' * 30_000}",
    ):
        error_line(text)


def test_the_last_error_is_the_programs_own() -> None:
    launcher = traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
    assert last_error(f"{traceback('ValueError: mine')}\n{launcher}") == "ValueError: mine"
    assert last_error("all is well") is None

"""What a killed process noted is there for the other one."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.daemon.made_attempts import make_attempt
from zerotoolsd.supervisor.exit_record.inferred_record import inferred
from zerotoolsd.supervisor.exit_record.rank_ledger import RankLedger, RankLine
from zerotoolsd.supervisor.plan import Plan


def test_what_a_killed_child_noted_is_known(tmp_path: object) -> None:
    ledger = RankLedger(3)
    assert not ledger.has_begun
    child = os.fork()
    if not child:
        ledger.begin()
        ledger.started(0, 100)
        ledger.started(2, 300)
        ledger.killed(2)
        ledger.ended(300, signal.SIGKILL)
        ledger.ended(999, 0)  # a child that is no rank
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert ledger.has_begun
    assert ledger.lines() == [
        RankLine(100, None, killed=False),
        RankLine(None, None, killed=False),
        RankLine(300, signal.SIGKILL, killed=True),
    ]


def test_what_one_notes_another_reads(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = RankLedger(2, path)
    assert not RankLedger.read(path, 2).has_begun
    ledger.begin()
    ledger.started(0, 11)
    ledger.started(1, 12)
    ledger.killed(1)
    ledger.ended(11, 3 << 8)
    ledger.ended(99, 0)
    found = RankLedger.read(path, 2)
    assert found.has_begun
    assert found.lines() == ledger.lines()
    assert found.lines() == [RankLine(11, 3 << 8, False), RankLine(12, None, True)]


def test_what_is_no_ledger_of_these_ranks_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    RankLedger(2, path)
    with pytest.raises(ValueError, match="ledger is not the ledger of 3 ranks"):
        RankLedger.read(path, 3)
    with pytest.raises(FileNotFoundError):
        RankLedger.read(tmp_path / "none", 1)
    os.mkfifo(tmp_path / "pipe")  # in which a reader would wait for ever
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        RankLedger.read(tmp_path / "pipe", 1)


def test_a_program_that_reported_completion_has_finished_though_its_supervisor_is_gone(
    tmp_path: Path,
) -> None:
    ledger = RankLedger(1, tmp_path / "ledger")
    ledger.begin()
    ledger.started(0, 11)
    ledger.finished(is_so=True)
    ledger.ended(11, signal.SIGTERM)
    run = make_attempt(tmp_path / "run", "", own_program=True, world_size=1)
    plan = Plan.from_json(json.loads((run / "attempt.json").read_text()))

    def outcome() -> str:
        known = RankLedger.read(tmp_path / "ledger", 1)
        return str(inferred(plan, known, [0], {}, "pause", "it was killed")["outcome"])

    assert outcome() == "finished"
    ledger.finished(is_so=False)
    assert outcome() == "killed"

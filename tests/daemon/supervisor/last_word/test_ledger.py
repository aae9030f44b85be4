"""What a killed process noted is there for the other one."""

from __future__ import annotations

import os
import signal

from zerotoolsd.supervisor.last_word.ledger import RankLedger, RankLine


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

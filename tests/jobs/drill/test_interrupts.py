"""Signals that end a drill."""

from __future__ import annotations

import os
import signal

import pytest

from zerotools.jobs.drill.interrupts import ending_signals, uninterrupted


def test_they_end_what_is_inside_and_nothing_after_it() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, ending_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_they_are_not_heard_while_all_is_ended() -> None:
    with uninterrupted():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)

"""Short drills, with a real daemon."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.chaos.chaos_options import ChaosOptions
from zerotools.jobs.chaos.own_processes import VARIABLE
from zerotools.jobs.chaos.run_chaos import ending_signals, ignoring_signals, run_chaos


def left() -> list[str]:
    """The directories of drills of this process's user of which something runs."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        mark = os.fsencode(f"{VARIABLE}=")
        found += [os.fsdecode(each) for each in variables if each.startswith(mark)]
    return found


def test_every_promise_holds_and_nothing_is_left(tmp_path: Path) -> None:
    place = tmp_path / ("with a space " + "and long" * 20)  # no address of a socket is so long
    place.mkdir()
    said: list[str] = []
    report = run_chaos(
        ChaosOptions(minutes=0.06, seed=4, every=0.3, jobs=2, directory=place), said.append
    )
    assert [each.broken for each in report.promises] == [[]] * 8
    assert report.is_upheld
    assert report.faults
    assert [str(fault) for fault in report.faults] == said[:-1]
    kinds = [fault.kind for fault in report.faults][:11]
    assert len(set(kinds)) == len(kinds)
    assert set(report.states) <= {"succeeded", "cancelled"}
    assert 0 < report.tally.steps_kept <= report.tally.steps_run
    assert 0.0 < report.tally.effective <= 1.0
    assert report.began == sum(report.states.values()) >= 2
    tree = report.to_json()
    assert (tree["held"], tree["directory"]) == (True, None)
    assert tree["faults"]["all"] == sum(tree["faults"]["by_kind"].values()) == len(said) - 1
    assert list(place.iterdir()) == []
    assert not [each for each in left() if str(tmp_path) in each]


def test_a_directory_in_which_nothing_can_be_made(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="cannot make a directory there"):
        run_chaos(ChaosOptions(seed=1, directory=tmp_path / "gone"))


def test_they_end_what_is_inside_and_nothing_after_it() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, ending_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_they_are_not_heard_while_all_is_ended() -> None:
    with ignoring_signals():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)

"""The memory in which a rank says what it is at."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from zerotoolsd.supervisor.heartbeats.shared_heartbeat import (
    VARIABLE,
    Beat,
    Pulse,
    PulseBoard,
    open_pulse,
)


@pytest.fixture
def board() -> Iterator[PulseBoard]:
    made = PulseBoard(3)
    yield made
    made.close()


def pulse_of(board: PulseBoard, rank: int) -> Pulse:
    return open_pulse({VARIABLE: board.path}, rank)


def test_a_line_says_what_a_rank_is_at(board: PulseBoard) -> None:
    first, second = pulse_of(board, 0), pulse_of(board, 2)
    assert board.read(0) == Beat()
    first.enter("loading", "loading step 40")
    second.enter("step")
    second.answers_dumps()
    second.beat(812)
    assert board.read(0) == Beat(1, "loading", "loading step 40")
    assert board.read(1) == Beat()
    assert board.read(2) == Beat(3, "step", "", 812, dumps=True)
    first.beat()
    assert board.read(0).count == 2, "what did not change is new all the same"


def test_a_wait_for_others_shows_until_it_is_over(board: PulseBoard) -> None:
    pulse = pulse_of(board, 1)
    pulse.enter("saving")
    with pulse.waiting("all-reduce"):
        found = board.read(1)
        assert (found.doing, found.waits) == ("all-reduce", True)
    assert (board.read(1).doing, board.read(1).waits) == ("", False)
    with pytest.raises(RuntimeError), pulse.waiting("all-reduce"):
        raise RuntimeError
    assert board.read(1).waits, "one that fails in it is still there"


def test_only_the_main_thread_proves_that_it_gets_on(board: PulseBoard) -> None:
    pulse = pulse_of(board, 0)
    pulse.enter("step")

    def beside() -> None:
        for step in range(100):
            pulse.beat(step)
            with pulse.waiting("all-reduce"):
                pass

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    assert board.read(0) == Beat(1, "step")


def test_whoever_has_no_board_beats_for_nobody(board: PulseBoard) -> None:
    for path in (None, "/no/such/file", "/dev/null", "/proc/self/mem"):
        pulse = open_pulse({} if path is None else {VARIABLE: path}, 0)
        assert not pulse.connected
        pulse.enter("step")
        with pulse.waiting("all-reduce"):
            pulse.beat(7)
    assert not pulse_of(board, 3).connected, "there are three ranks"


def test_what_a_rank_scribbles_there_does_no_harm(board: PulseBoard) -> None:
    fd = os.open(board.path, os.O_RDWR)
    os.pwrite(fd, b"\xff" * 110, 0)
    os.close(fd)
    found = board.read(0)
    assert found.step == 2**63 - 1
    assert found.doing.isprintable()

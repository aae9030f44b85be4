"""The memory in which a rank says what it is at."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from zerotoolsd.supervisor.heartbeats.shared_heartbeat import (
    VARIABLE,
    Beat,
    HeartbeatReader,
    HeartbeatWriter,
    open_heartbeat,
)


@pytest.fixture
def reader() -> Iterator[HeartbeatReader]:
    made = HeartbeatReader(3)
    yield made
    made.close()


def heartbeat_of(reader: HeartbeatReader, rank: int) -> HeartbeatWriter:
    return open_heartbeat({VARIABLE: reader.path}, rank)


def test_a_line_says_what_a_rank_is_at(reader: HeartbeatReader) -> None:
    first, second = heartbeat_of(reader, 0), heartbeat_of(reader, 2)
    assert reader.read(0) == Beat()
    first.enter("loading", "loading step 40")
    second.enter("step")
    second.answers_dumps()
    second.beat(812)
    assert reader.read(0) == Beat(1, "loading", "loading step 40")
    assert reader.read(1) == Beat()
    assert reader.read(2) == Beat(3, "step", "", 812, dumps=True)
    first.beat()
    assert reader.read(0).number == 2, "what did not change is new all the same"


def test_a_wait_for_others_shows_until_it_is_over(reader: HeartbeatReader) -> None:
    heartbeat = heartbeat_of(reader, 1)
    heartbeat.enter("saving")
    with heartbeat.waiting("all-reduce"):
        found = reader.read(1)
        assert (found.doing, found.waits) == ("all-reduce", True)
    assert (reader.read(1).doing, reader.read(1).waits) == ("", False)
    with pytest.raises(RuntimeError), heartbeat.waiting("all-reduce"):
        raise RuntimeError
    assert reader.read(1).waits, "one that fails in it is still there"


def test_only_the_main_thread_proves_that_it_gets_on(reader: HeartbeatReader) -> None:
    heartbeat = heartbeat_of(reader, 0)
    heartbeat.enter("step")

    def beside() -> None:
        for step in range(100):
            heartbeat.beat(step)
            with heartbeat.waiting("all-reduce"):
                pass

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    assert reader.read(0) == Beat(1, "step")


def test_whoever_has_no_board_beats_for_nobody(reader: HeartbeatReader) -> None:
    for path in (None, "/no/such/file", "/dev/null", "/proc/self/mem"):
        heartbeat = open_heartbeat({} if path is None else {VARIABLE: path}, 0)
        assert not heartbeat.connected
        heartbeat.enter("step")
        with heartbeat.waiting("all-reduce"):
            heartbeat.beat(7)
    assert not heartbeat_of(reader, 3).connected, "there are three ranks"


def test_what_a_rank_scribbles_there_does_no_harm(reader: HeartbeatReader) -> None:
    fd = os.open(reader.path, os.O_RDWR)
    os.pwrite(fd, b"\xff" * 110, 0)
    os.close(fd)
    found = reader.read(0)
    assert found.step == 2**63 - 1
    assert found.doing.isprintable()

"""Datagrams: what is kept, and that nothing a rank sends can do harm."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.matrices import FULL
from zerotoolsd.attempts.last_report import report_so_far
from zerotoolsd.supervisor.rank_reports import Progress, pause_between

Send = Callable[[bytes], None]
OFTEN = 1 if FULL else 7
"""After so many steps the end of the file is read: each part of it, by turns."""


@pytest.fixture
def progress(tmp_path: Path) -> Iterator[Progress]:
    before = Path.cwd()
    os.chdir(tmp_path)
    one = Progress()
    yield one
    one.close()
    os.chdir(before)


@pytest.fixture
def send(progress: Progress) -> Iterator[Send]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.connect("notify.sock")

        def send_and_drain(data: bytes) -> None:
            link.send(data)
            progress.drain()

        yield send_and_drain


def message(**fields: Any) -> bytes:
    return json.dumps({"rank": 0, **fields}).encode()


def kept() -> list[Any]:
    return [json.loads(line) for line in Path("progress.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[]",
        b"7",
        b"{}",
        b'{"rank": "0"}',
        b'{"rank": true}',
        b'{"rank": 0, "event": "step", "x": "' + b"y" * 5000 + b'"}',
        b"[" * 4000,
    ],
    ids=range(10),
)
def test_what_is_no_message_is_ignored(send: Send, data: bytes) -> None:
    send(data)
    assert kept() == []


def test_events_are_kept_and_heartbeats_are_not(progress: Progress, send: Send) -> None:
    send(message(phase="load", step=3))
    send(message(phase="train", event="step", step=4, loss=0.5, gpu_peak_bytes=10))
    assert [each["step"] for each in kept()] == [4]
    assert (progress.steps_done, progress.peak_gpu_bytes) == (4, 10)
    assert progress.last_step is not None
    assert progress.last_step["loss"] == 0.5


def test_a_job_trains_once_a_rank_says_so(progress: Progress, send: Send) -> None:
    assert not progress.trained
    send(message(phase="init"))
    send(message(phase="load"))
    assert not progress.trained
    send(message(rank=1, phase="train"))
    assert progress.trained


def test_a_loss_that_is_no_number_stays_valid_json(progress: Progress, send: Send) -> None:
    send(b'{"rank": 0, "event": "step", "step": 1, "loss": NaN, "grad_norm": -Infinity}')
    assert kept()[0]["loss"] is None
    assert progress.last_step is not None
    assert progress.last_step["grad_norm"] is None


@pytest.mark.parametrize("step", [-1, 2**63, "7", 1.5, None, True, [1]])
def test_a_step_that_cannot_be_one_is_not_believed(
    progress: Progress, send: Send, step: Any
) -> None:
    send(message(event="checkpoint", step=step, path="/x"))
    assert (progress.steps_done, progress.checkpoint) == (0, None)


def test_the_end_of_the_file_always_tells_the_peak_and_the_checkpoint(
    progress: Progress, send: Send
) -> None:
    progress.record_host_bytes(1000)
    progress.record_host_bytes(1049)
    progress.record_host_bytes(900)
    assert [line["peak_host_bytes"] for line in kept()] == [1000]
    send(message(event="checkpoint", step=10, path="/a"))
    for step in range(11, 1011):
        send(message(event="step", step=step))
        if step % OFTEN:
            continue
        known = report_so_far(Path())
        assert (known.checkpoint_step, known.peak_host_bytes or 0) >= (10, 1000)
    assert progress.peak_host_bytes == 1049


def test_the_end_of_the_file_always_tells_the_newest_evaluation(
    progress: Progress, send: Send
) -> None:
    for step, accuracy in ((5, 0.25), (10, 0.5)):
        send(message(event="eval", step=step, accuracy=accuracy))
    send(message(event="eval", step="12"))
    for step in range(11, 1011):
        send(message(event="step", step=step))
        if step % OFTEN:
            continue
        known = report_so_far(Path()).evaluation
        assert known is not None
        assert (known["step"], known["accuracy"]) == (10, 0.5)


def test_the_newest_checkpoint_counts(progress: Progress, send: Send) -> None:
    send(message(event="checkpoint", step=10, path="/a"))
    send(message(event="checkpoint", step=20, path="/b"))
    assert progress.checkpoint is not None
    assert progress.checkpoint["path"] == "/b"


def test_nothing_is_found_of_a_program_that_reports(progress: Progress, send: Send) -> None:
    progress.add_checkpoint("/out/step-3", None)
    assert progress.checkpoint is not None
    assert report_so_far(Path()).checkpoint_found
    send(message(event="checkpoint", step=5, path="/out/step-5.safetensors"))
    progress.add_checkpoint("/out", None)
    assert progress.checkpoint["path"] == "/out/step-5.safetensors"
    known = report_so_far(Path())
    assert (known.checkpoint_step, known.checkpoint_found) == (5, False)


def test_no_run_makes_the_file_much_larger_than_its_bound() -> None:
    """By the size at which each pause begins, and records of 300 bytes."""
    mib, years = 2**20, 0.0
    assert pause_between("step", 32 * mib) == 0
    for size, pause in ((33, 1), (65, 10), (129, 100), (257, 1000)):
        assert pause_between("step", size * mib) == pause
        years += size * mib / 300 * pause / (365 * 86400)
    assert years > 10
    assert pause_between("checkpoint", 129 * mib) == 10


def test_a_program_that_floods_is_thinned_whatever_it_sends(progress: Progress, send: Send) -> None:
    progress._size = 40 * 2**20
    for number in range(20):
        send(message(event=f"mine-{number}", x="y" * 3000))
        send(message(event="eval", loss=0.5))
    events = [each["event"] for each in kept() if each["event"] != "summary"]
    assert events == ["mine-0", "eval"]


@pytest.mark.parametrize("depth", [*range(13, 20), 200, *range(900, 1000)])
def test_a_message_that_is_nested_deeply_ends_nothing(
    progress: Progress, send: Send, depth: int
) -> None:
    """Some are read just below the limit of recursion, and could not be written again."""
    send(b'{"rank": 0, "event": "step", "step": 1, "x": ' + b"[" * depth + b"]" * depth + b"}")
    assert kept() == []
    assert progress.last_step is None


def test_ranks_and_paths_that_no_run_has_fill_no_memory(progress: Progress, send: Send) -> None:
    for rank in (-1, 2**16, 10**300):
        send(json.dumps({"rank": rank, "phase": "train"}).encode())
    assert progress.phases == {}
    for number in range(11_000):
        send(message(event="checkpoint", step=1, path=f"/{number}"))
    assert len(progress._reported_paths) == 10_000

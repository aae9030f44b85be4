"""`metrics.jsonl`: one line per step, whatever happened before."""

from __future__ import annotations

import json
import math
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from zerotools.io.telemetry.step_metrics_files import (
    METRICS,
    EventFile,
    Metrics,
    MetricsLog,
    crc32c,
    scalars_of,
    tfrecord_bytes,
)


def lines(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_each_step_is_one_line_and_the_directory_is_made(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "new" / METRICS)
    log.append(1, {"loss": 2.5, "lr": 1e-3})
    log.append(2, {"loss": math.nan, "grad_norm": -math.inf})
    log.sync()
    log.close()
    assert lines(log.path) == [
        {"step": 1, "loss": 2.5, "lr": 1e-3},
        {"step": 2, "loss": None, "grad_norm": None},
    ]


@pytest.mark.parametrize("width", [0, 300, 70_000], ids=["short", "long", "beyond a block"])
def test_a_later_attempt_takes_the_place_of_the_lines_from_its_first_step(
    tmp_path: Path, width: int
) -> None:
    path = tmp_path / METRICS
    first = MetricsLog(path)
    for step in range(1, 10):
        first.append(step, {"attempt": 1, "note": "x" * width})
    first.close()
    second = MetricsLog(path)
    for step in range(6, 8):
        second.append(step, {"attempt": 2})
    second.close()
    found = [(line["step"], line["attempt"]) for line in lines(path)]  # type: ignore[index]
    assert found == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 2), (7, 2)]


def test_a_run_that_starts_again_from_its_first_step_leaves_nothing_of_the_old(
    tmp_path: Path,
) -> None:
    path = tmp_path / METRICS
    path.write_text('{"step": 1}\n{"step": 2}\n')
    MetricsLog(path).append(1, {})
    assert steps(path) == [1]


def test_an_attempt_that_begins_with_an_evaluation_keeps_the_step_before_it(
    tmp_path: Path,
) -> None:
    before = Metrics(tmp_path, tensorboard="off")
    for step in (1, 2, 3):
        before.append(step, {"time": 0.5, "loss": 2.5})
        before.append(step, {"time": 0.5, "eval_loss": 3.5})
    before.close()
    after = Metrics(tmp_path, tensorboard="off")
    after.append(2, {"time": 1.5, "eval_loss": 3.0})
    after.append(2, {"time": 1.5, "eval_accuracy": 0.5})
    after.append(3, {"time": 1.5, "loss": 2.0})
    found = [(line["step"], *line.keys() - {"step", "time"}) for line in lines(tmp_path / METRICS)]  # type: ignore[attr-defined,index]
    assert found == [
        *((1, "loss"), (1, "eval_loss"), (2, "loss")),
        *((2, "eval_loss"), (2, "eval_accuracy"), (3, "loss")),
    ]
    times = [line["time"] for line in lines(tmp_path / METRICS)]  # type: ignore[index]
    assert times == [0.5, 0.5, 0.5, 1.5, 1.5, 1.5]


@pytest.mark.parametrize("torn", ['{"step": 3, "lo', "\0\0\0\n", "[]\n", "\n", '{"step": "4"}\n'])
def test_a_torn_end_is_cut_away(tmp_path: Path, torn: str) -> None:
    path = tmp_path / METRICS
    path.write_text('{"step": 1}\n{"step": 2}\n' + torn)
    MetricsLog(path).append(3, {})
    assert steps(path) == [1, 2, 3]


def test_lines_that_somebody_else_wrote_are_never_cut_away(tmp_path: Path) -> None:
    """A program may have a metrics.jsonl of its own in the same directory."""
    path = tmp_path / METRICS
    own = '{"step": 9}\n{"epoch": 1, "accuracy": 0.5}\n'
    path.write_text(own + '{"step": 4}\n')
    MetricsLog(path).append(1, {})
    assert path.read_text() == own + '{"step": 1}\n'


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / METRICS)
    log.append(1, {})
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.path.stat().st_size + 5, most[1]))
    try:
        with pytest.raises(OSError, match=r"space|large"):
            log.append(2, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    log.append(2, {})
    assert steps(log.path) == [1, 2]


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4, as the next two
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_the_checksum_is_castagnoli_s(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


def test_a_file_begins_as_tensorboard_s_own_do() -> None:
    """A record of 24 bytes: every event file begins so, with the version and a time."""
    first = tfrecord_bytes(b"\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2")
    assert first[:12] == bytes.fromhex("1800000000000000a37f4b22")
    assert len(first) == 12 + 24 + 4


def events(path: Path) -> list[bytes]:
    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        assert tfrecord_bytes(data[12 : 12 + size]) == data[: 16 + size]
        found.append(data[12 : 12 + size])
        data = data[16 + size :]
    return found


def test_an_evaluation_at_the_begin_of_an_attempt_voids_no_step(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, jsonl=False, tensorboard="on")
    metrics.append(300, {"time": 0.5, "eval_loss": 0.5})
    metrics.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    _, start, evaluation = events(path)
    assert start.endswith(b"\x10\xad\x02\x3a\x02\x08\x01")  # from step 301 on
    assert b"\x10\xac\x02" in evaluation


def test_an_attempt_voids_what_another_wrote_of_its_steps(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "tensorboard", 300)
    file.append(300, {"loss": 0.5})
    file.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    assert path.name.startswith("events.out.tfevents.")
    version, start, step = events(path)
    assert version.endswith(b"\x1a\x0dbrain.Event:2")
    assert start[9:] == b"\x10\xac\x02" + b"\x3a\x02\x08\x01"  # step 300, SessionLog START
    value = b"\x0a\x04loss" + b"\x15" + struct.pack("<f", 0.5)
    assert step[9:] == b"\x10\xac\x02" + b"\x2a\x0d" + b"\x0a\x0b" + value


def test_scalars_are_the_numbers() -> None:
    fields = {"loss": math.nan, "ok": True, "n": 3, "mood": "x", "time": 1.0, "big": 1e300}
    fields["bigger"] = 10**400
    found = scalars_of(fields)
    assert math.isnan(found.pop("loss"))
    assert found == {"n": 3.0}


def test_a_failure_is_said_once_and_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    metrics = Metrics(tmp_path / "file" / "below", tensorboard="on")
    assert "Not a directory" in (metrics.append(1, {}) or "")
    assert metrics.append(2, {}) is None
    metrics.sync()
    metrics.close()


@contextmanager
def room_in_files(size: int) -> Iterator[None]:
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)


def test_a_full_disk_leaves_whole_records_and_nothing_open(tmp_path: Path) -> None:
    """Every step tries again: a file left open by each would end the training."""
    metrics = Metrics(tmp_path, jsonl=False, tensorboard="on")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with room_in_files(30):
        said = [metrics.append(step, {"loss": 1.0}) for step in range(1, 5)]
    assert said[0] is not None
    assert said[1:] == [None] * 3
    assert list((tmp_path / "tensorboard").iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert metrics.append(5, {"loss": 1.0}) is None
    (path,) = (tmp_path / "tensorboard").iterdir()
    with room_in_files(path.stat().st_size + 10):
        metrics.append(6, {"loss": 1.0})
    metrics.append(7, {"loss": 1.0})
    metrics.close()
    assert [event[9:11] for event in events(path)][1:] == [b"\x10\x05", b"\x10\x05", b"\x10\x07"]

"""The files of a run's step metrics: `metrics.jsonl`, and TensorBoard's event files.

`metrics.jsonl` has one JSON object per line: one for each step, and more for values that are
measured after it, with names that begin with `eval_`. An attempt that resumes from an earlier step
replaces the lines from that step, so that the file is the same as after an uninterrupted run. If
the attempt first evaluates, the line of that step is kept. Lines of other writers are objects
without a step. These lines, and all lines before them, are never changed. When `append` returns,
the line has been passed to the kernel; after `sync` it is on the disk.

An event file is written without TensorBoard: a sequence of TFRecords (length, CRC-32C of it, data,
CRC-32C of that), each of one `Event` protocol buffer, of which few fields are needed.

Standard library only, and no newer syntax than that of Python 3.9: programs of users write with
this too.
"""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import struct
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TENSORBOARD = "tensorboard"
_LARGEST_FLOAT32 = 3.4028235677973366e38
_NO_SCALARS = ("steps", "time")
_EVALUATION = "eval_"


class Metrics:
    """Writes the metrics files of one run into its output directory. Errors never end the
    training.
    """

    def __init__(self, output_dir: Path, *, jsonl: bool = True, tensorboard: str = "auto") -> None:
        """Prepare the files. `tensorboard` is `"on"`, `"off"`, or `"auto"`, which means on if
        TensorBoard is installed.
        """
        writes_events = tensorboard == "on" or (
            tensorboard == "auto" and _is_installed(TENSORBOARD)
        )
        self._lines = MetricsLog(output_dir / METRICS) if jsonl else None
        self._directory = output_dir / TENSORBOARD if writes_events else None
        self._events: EventFile | None = None
        self._failed = False

    def append(self, step: int, fields: Mapping[str, Any]) -> str | None:
        """Write the values `fields` of a step. If writing fails for the first time, return the
        reason in one sentence; else None.
        """
        problem = None
        try:
            if self._lines is not None:
                self._lines.append(step, dict(fields))
            if self._directory is not None:
                first = step + _is_evaluation(fields)
                self._events = self._events or EventFile(self._directory, first)
                self._events.append(step, scalars_of(fields))
        except OSError as error:
            problem = f"{error.filename or 'metrics'}: {error.strerror}"
        if problem is None or self._failed:
            return None
        self._failed = True
        return problem

    def sync(self) -> None:
        """Flush the written lines to the disk. Errors are ignored."""
        if self._lines is not None:
            try:
                self._lines.sync()
            except OSError:
                return

    def close(self) -> None:
        """Close the files."""
        if self._lines is not None:
            self._lines.close()
        if self._events is not None:
            self._events.close()
            self._events = None


def scalars_of(fields: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of `fields` that are numbers and fit in a 32-bit float. NaN and infinities
    are included.
    """
    found = {}
    for name, value in fields.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            fits = abs(value) <= _LARGEST_FLOAT32 or _is_special(value)
            if fits and name not in _NO_SCALARS:
                found[name] = float(value)
    return found


def _is_special(value: float) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_installed(name: str) -> bool:
    try:
        return name in sys.modules or find_spec(name) is not None
    except (ImportError, ValueError):
        return False


METRICS = "metrics.jsonl"
_BLOCK = 1 << 16


class MetricsLog:
    """Appends lines of metrics to the file `path`. Its directory is made if it does not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def append(self, step: int, fields: dict[str, Any]) -> None:
        """Append the line of a step. NaN and infinities are written as null.

        Raises:
            OSError: the disk is full, or this user may not write to the directory.
        """
        if self._file is None:
            self._file = _open_before(self.path, step, _is_evaluation(fields))
        line = json.dumps({"step": step, **fields}, default=str)
        if "NaN" in line or "Infinity" in line:
            line = json.dumps(json.loads(line, parse_constant=lambda _: None))
        try:
            write_whole(self._file, line.encode() + b"\n")
        except OSError as error:
            error.filename = str(self.path)
            raise

    def sync(self) -> None:
        """Flush the written lines to the disk. Raises OSError."""
        if self._file is not None:
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _is_evaluation(fields: Mapping[str, Any]) -> bool:
    """Return whether `fields` are the values of an evaluation, and not of a step."""
    names = fields.keys() - {"step", "time"}
    return bool(names) and all(name.startswith(_EVALUATION) for name in names)


def _open_before(path: Path, step: int, evaluates: bool) -> int:
    """Open `path` for appending, remove its lines of `step` and later steps, and return the
    descriptor.

    If `evaluates` is True, an evaluation after `step` follows, and the line of the step itself is
    kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    file = os.open(path, flags, 0o644)
    try:
        end = _end_of_lines_before(file, step, evaluates)
        if end < os.fstat(file).st_size:
            os.ftruncate(file, end)
    except BaseException:  # closed, and raised again
        os.close(file)
        raise
    return file


def _end_of_lines_before(file: int, step: int, evaluates: bool) -> int:
    """Return the offset in bytes after the last line that is kept when the run resumes at `step`.
    The file is searched from its end.
    """
    start = os.fstat(file).st_size
    held, stop = b"", 0  # held[:stop] is file[start : start + stop], not checked yet
    while True:
        newline = held.rfind(b"\n", 0, max(stop - 1, 0))
        if newline < 0 and start > 0:
            size = min(_BLOCK, start)
            start -= size
            held = os.pread(file, size, start) + held[:stop]
            stop = len(held)
            continue
        line = held[newline + 1 : stop]
        if not line:
            return 0
        if line.endswith(b"\n") and _stays(line, step, evaluates):
            return start + stop
        stop = newline + 1


def _stays(line: bytes, step: int, evaluates: bool) -> bool:
    """Return whether a line is kept when the run resumes at `step`. Lines of earlier steps and
    lines of other writers are kept.

    A line that is not a JSON object is not kept, because it was cut off.
    """
    try:
        tree = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(tree, dict):
        return False
    found = tree.get("step")
    if not isinstance(found, int):
        return "step" not in tree
    return found < step or (evaluates and found == step and not _is_evaluation(tree))


_VERSION = "brain.Event:2"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
_START = b"\x08\x01"  # SessionLog(status=START): steps from this one on are void


class EventFile:
    """Writes the numbers of one attempt of a run to a new TensorBoard event file in `directory`."""

    def __init__(self, directory: Path, first_step: int) -> None:
        """Make the file. Raises OSError if this fails."""
        directory.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}"
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        path = directory / name
        self._file = os.open(path, flags, 0o644)
        start = _field(_STEP, _VARINT, first_step) + _field(_SESSION_LOG, _BYTES, _START)
        try:
            self._write(_field(_FILE_VERSION, _BYTES, _VERSION.encode()), now)
            self._write(start, now)
        except OSError:
            os.close(self._file)  # the next step tries again
            path.unlink()
            raise

    def append(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the numbers of a step, keyed by name. Raises OSError."""
        values = b"".join(_value(tag, scalar) for tag, scalar in scalars.items())
        event = _field(_STEP, _VARINT, step) + _field(_SUMMARY, _BYTES, values)
        self._write(event, time.time())

    def _write(self, event: bytes, now: float) -> None:
        write_whole(self._file, tfrecord_bytes(_field(_WALL_TIME, _FIXED64, now) + event))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def tfrecord_bytes(data: bytes) -> bytes:
    """Return the TFRecord that contains `data`."""
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _value(tag: str, scalar: float) -> bytes:
    value = _field(1, _BYTES, tag.encode()) + _field(2, _FIXED32, scalar)
    return _field(1, _BYTES, value)


def _field(number: int, kind: int, value: int | float | bytes) -> bytes:
    """Return the encoding of one field of a protocol buffer. `kind` is the wire type."""
    key = _varint(number << 3 | kind)
    if kind == _FIXED64:
        return key + struct.pack("<d", value)
    if kind == _FIXED32:
        return key + struct.pack("<f", value)
    if isinstance(value, bytes):
        return key + _varint(len(value)) + value
    return key + _varint(int(value))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def _table() -> tuple[int, ...]:
    def entry(byte: int) -> int:
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        return byte

    return tuple(map(entry, range(256)))


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of `data`, the CRC-32 with the Castagnoli polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def write_whole(file: int, data: bytes) -> None:
    """Append all of `data` to a file or nothing, because half a record would make later records
    unreadable.

    Raises:
        OSError: the disk is full; the file has not changed.
    """
    start = os.fstat(file).st_size
    if os.write(file, data) < len(data):
        os.ftruncate(file, start)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

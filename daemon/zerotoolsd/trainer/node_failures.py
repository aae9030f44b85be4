"""Tells the other nodes why a node ended; they only notice closed connections.

A note is in output_dir, which all nodes share, under the token of the meeting. It has a permanent
failure: a mistake in the job, or a checkpoint that cannot be used. A node that loses another one
reads the note, and ends with it, instead of waiting for a node that will not come again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.rank.failures import EXIT_BAD_CHECKPOINT, EXIT_BAD_JOB, exit_code, sentence
from zerotoolsd.trainer.rank.group import WorldGroup
from zerotoolsd.trainer.rank.meeting import FAILED

LOOK_SECONDS = 3.0
"""Seconds until a note must be visible: the node writes it before its connections close."""
_PAUSE_SECONDS = 0.1
_LARGEST = 1 << 16


@contextmanager
def failures_told(directory: Path, group: WorldGroup) -> Iterator[None]:
    """Write a note of a permanent failure of this node; end with the note of another node.

    Raises:
        BadRequest: another node ended permanently; with its sentence.
    """
    if group.rank.nodes == 1:
        yield
        return
    note = directory / f"{FAILED}{group.meeting}"
    try:
        yield
    except BaseException as error:  # raised again, or replaced by another node's sentence
        if exit_code(error) in (EXIT_BAD_JOB, EXIT_BAD_CHECKPOINT):
            _write(note, f"node {group.rank.node}: {sentence(error)}")
        elif isinstance(error, RuntimeError) and (told := _read(note)) is not None:
            raise BadRequest(told) from error
        raise


def _write(note: Path, text: str) -> None:
    with suppress(OSError), note.open("x", encoding="utf-8") as file:  # the first one counts
        file.write(json.dumps(text[:_LARGEST]))


def _read(note: Path) -> str | None:
    until = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < until:
        with suppress(OSError, ValueError):
            found = json.loads(note.read_text("utf-8")[: 2 * _LARGEST])
            return found if isinstance(found, str) else None
        time.sleep(_PAUSE_SECONDS)
    return None

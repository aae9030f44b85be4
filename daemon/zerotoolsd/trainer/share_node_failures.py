"""Shares the permanent failure of one node with the other nodes of the job, so that all nodes end
with the same reason.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.rank.process_group import WorldGroup
from zerotoolsd.trainer.rank.rank_errors import (
    EXIT_BAD_CHECKPOINT,
    EXIT_BAD_JOB,
    exit_code,
    one_line,
)
from zerotoolsd.trainer.rank.rendezvous_of_nodes import FAILED

LOOK_SECONDS = 3.0
"""Seconds to wait for the file with the reason of a failed node. A failed node writes this file
before its connections close.
"""
_PAUSE_SECONDS = 0.1
_LARGEST = 1 << 16


@contextmanager
def share_failures(directory: Path, group: WorldGroup) -> Iterator[None]:
    """Return a context manager that shares permanent failures between the nodes.

    The nodes share `directory`. If the body fails permanently on a node (a mistake in the job, or a
    damaged checkpoint), this node writes the reason to a file in `directory`. The name of the file
    contains the token of the rendezvous. The other nodes only see that their connections are
    closed. They then read this file, and end with the same reason.

    Raises:
        BadRequest: another node failed permanently. The message is its reason.
    """
    if group.rank.nodes == 1:
        yield
        return
    note = directory / f"{FAILED}{group.meeting}"
    try:
        yield
    except BaseException as error:  # raised again, or replaced by another node's sentence
        if exit_code(error) in (EXIT_BAD_JOB, EXIT_BAD_CHECKPOINT):
            _write(note, f"node {group.rank.node}: {one_line(error)}")
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
